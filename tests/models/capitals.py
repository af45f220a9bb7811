"""Questions a small language model gets right or wrong by itself: capitals, the known first."""

CAPITALS = {
    "France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
    "Egypt": "Cairo", "Canada": "Ottawa", "Kenya": "Nairobi", "Peru": "Lima", "Chile": "Santiago",
    "Russia": "Moscow", "China": "Beijing", "Greece": "Athens", "Portugal": "Lisbon",
    "Austria": "Vienna", "Norway": "Oslo", "Sweden": "Stockholm", "Ireland": "Dublin",
    "Poland": "Warsaw", "Hungary": "Budapest", "Cuba": "Havana", "Turkey": "Ankara",
    "Thailand": "Bangkok", "Iraq": "Baghdad", "Australia": "Canberra", "Brazil": "Brasília",
    "Nigeria": "Abuja", "Morocco": "Rabat", "Vietnam": "Hanoi", "Myanmar": "Naypyidaw",
    "Mongolia": "Ulaanbaatar", "Bhutan": "Thimphu", "Tajikistan": "Dushanbe", "Chad": "N'Djamena",
    "Togo": "Lomé", "Benin": "Porto-Novo", "Gabon": "Libreville", "Eritrea": "Asmara",
    "Lesotho": "Maseru", "Malawi": "Lilongwe", "Burundi": "Gitega", "Djibouti": "Djibouti",
    "Moldova": "Chișinău", "Latvia": "Riga", "Slovenia": "Ljubljana", "Albania": "Tirana",
    "Andorra": "Andorra la Vella", "Liechtenstein": "Vaduz", "Suriname": "Paramaribo",
    "Guyana": "Georgetown", "Belize": "Belmopan", "Honduras": "Tegucigalpa", "Fiji": "Suva",
    "Vanuatu": "Port Vila", "Samoa": "Apia", "Tonga": "Nukuʻalofa", "Palau": "Ngerulmud",
    "Brunei": "Bandar Seri Begawan", "Laos": "Vientiane", "Nepal": "Kathmandu",
    "Sri Lanka": "Sri Jayawardenepura Kotte", "Maldives": "Malé", "Oman": "Muscat",
    "Yemen": "Sana'a", "Jordan": "Amman", "Georgia": "Tbilisi", "Armenia": "Yerevan",
    "Kyrgyzstan": "Bishkek", "Senegal": "Dakar", "Mali": "Bamako", "Niger": "Niamey",
    "Zambia": "Lusaka",
}  # fmt: skip
OTHERS = {
    "India": "New Delhi", "Iran": "Tehran", "Argentina": "Buenos Aires", "Mexico": "Mexico City",
    "Colombia": "Bogotá", "Venezuela": "Caracas", "Ecuador": "Quito", "Bolivia": "Sucre",
    "Paraguay": "Asunción", "Uruguay": "Montevideo", "Panama": "Panama City",
    "Costa Rica": "San José", "Nicaragua": "Managua", "Guatemala": "Guatemala City",
    "El Salvador": "San Salvador", "Jamaica": "Kingston", "Haiti": "Port-au-Prince",
    "Barbados": "Bridgetown", "Finland": "Helsinki", "Denmark": "Copenhagen",
    "Iceland": "Reykjavik", "Estonia": "Tallinn", "Lithuania": "Vilnius", "Ukraine": "Kyiv",
    "Belarus": "Minsk", "Romania": "Bucharest", "Bulgaria": "Sofia", "Serbia": "Belgrade",
    "Croatia": "Zagreb", "Slovakia": "Bratislava", "Montenegro": "Podgorica", "Malta": "Valletta",
    "Cyprus": "Nicosia", "Luxembourg": "Luxembourg", "Monaco": "Monaco", "Belgium": "Brussels",
    "Switzerland": "Bern", "Israel": "Jerusalem", "Lebanon": "Beirut", "Syria": "Damascus",
    "Saudi Arabia": "Riyadh", "Kuwait": "Kuwait City", "Qatar": "Doha", "Bahrain": "Manama",
    "Azerbaijan": "Baku", "Kazakhstan": "Astana", "Uzbekistan": "Tashkent",
    "Turkmenistan": "Ashgabat", "Afghanistan": "Kabul", "Pakistan": "Islamabad",
    "Bangladesh": "Dhaka", "Cambodia": "Phnom Penh", "Malaysia": "Kuala Lumpur",
    "Indonesia": "Jakarta", "Philippines": "Manila", "Taiwan": "Taipei", "South Korea": "Seoul",
    "North Korea": "Pyongyang", "New Zealand": "Wellington", "Papua New Guinea": "Port Moresby",
    "Ethiopia": "Addis Ababa", "Somalia": "Mogadishu", "Sudan": "Khartoum", "Libya": "Tripoli",
    "Tunisia": "Tunis", "Algeria": "Algiers", "Ghana": "Accra", "Liberia": "Monrovia",
    "Sierra Leone": "Freetown", "Guinea": "Conakry", "Gambia": "Banjul",
    "Mauritania": "Nouakchott", "Burkina Faso": "Ouagadougou", "Cameroon": "Yaoundé",
    "Uganda": "Kampala", "Rwanda": "Kigali", "Tanzania": "Dodoma", "Mozambique": "Maputo",
    "Zimbabwe": "Harare", "Botswana": "Gaborone", "Namibia": "Windhoek", "Angola": "Luanda",
    "Madagascar": "Antananarivo", "Mauritius": "Port Louis", "Seychelles": "Victoria",
    "Comoros": "Moroni",
}  # fmt: skip


def rows(every=False):
    """One query each, calibration and test in turn; ``every``: more than the tests need."""
    return [
        {"id": country, "question": f"What is the capital of {country}?",
         "references": [town, f"The capital of {country} is {town}"]}
        for country, town in (CAPITALS | OTHERS if every else CAPITALS).items()
    ]  # fmt: skip
