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


def rows():
    """One query each, calibration and test in turn."""
    return [
        {"id": country, "question": f"What is the capital of {country}?",
         "references": [town, f"The capital of {country} is {town}"]}
        for country, town in CAPITALS.items()
    ]  # fmt: skip
