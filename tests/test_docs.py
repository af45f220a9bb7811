"""The documentation against reality: tree, levels, links, places, options, verbs, code, build."""

import dataclasses
import logging
import os
import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
from tests.tree import tree

import fusevlm
from fusevlm.cli import COMMANDS, main
from fusevlm.fuse.presets import Options
from fusevlm.settings import SECTIONS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, *(ROOT / f"{name}.md" for name in ("CONTRIBUTING", "CHANGELOG", "SECURITY"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(path):
    return str(path.relative_to(ROOT))


def blocks(path, language):
    return [body for kind, body in FENCE.findall(path.read_text()) if kind == language]


def prose(path):
    return FENCE.sub("", path.read_text())


def anchors(path):
    """The ids that headings get: lower case, punctuation dropped, spaces to dashes."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


def contributing(heading):
    """The text blocks of a section of CONTRIBUTING.md."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [body for kind, body in FENCE.findall(section) if kind == "text"]


def test_contributing_shows_the_tree():
    assert contributing("The tree by room") == [tree() + "\n"], "put in what make tree prints"
    listed = re.findall(r"\S+\.py(?= )", tree())
    real = [p for home in ("src/fusevlm", "factory") for p in (ROOT / home).rglob("*.py")]
    assert sorted(listed) == sorted(p.name for p in real if p.name != "__init__.py")
    assert not re.search(r"\S+\.py *$", tree(), re.MULTILINE), "a file has no docstring"


def test_contributing_shows_the_levels(capsys):
    runpy.run_path(str(ROOT / "tests" / "test_architecture.py"), run_name="__main__")
    assert contributing("Levels") == [capsys.readouterr().out]


def test_the_readme_fits_two_screens():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    assert "<!-- demo table -->\n```text\n" in text


def exists(place):
    """Whether ``room/file.py:Class.method``, or ``room.file:name`` as the paper's table has it."""
    file, _, attribute = place.partition(":")
    module = file.removesuffix(".py").replace("/", ".")
    found = import_module(f"fusevlm.{module}".removesuffix(".__init__"))
    for part in attribute.split(".") if attribute else ():
        fields = getattr(found, "__dataclass_fields__", {})
        found = fields[part] if part in fields else getattr(found, part)
    return True


@pytest.mark.parametrize("page", ["architecture.md", "glossary.md", "method.md"])
def test_places_in_the_code_exist(page):
    places = re.findall(r"`([\w/]+\.py(?::[\w.]+)?)`", (ROOT / "docs" / page).read_text())
    assert len(places) > 10
    assert all(exists(place) for place in places if not place.startswith(("factory", "tests")))


def test_the_tests_of_the_safety_page_exist():
    rows = (ROOT / "docs" / "safety.md").read_text().split("\n## ")[1].splitlines()[4:]
    for row in (line for line in rows if line):
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        assert all(f"def {test}(" in (ROOT / file).read_text() for file, test in named)


def test_the_places_of_paper_and_practice_exist():
    text = (ROOT / "docs" / "paper-and-practice.md").read_text()
    cells = re.findall(r"^\| \d+ \|.+\| ([^|]+) \|$", text, re.MULTILINE)
    places = [place for cell in cells for place in re.findall(r"`([^`]+)`", cell)]
    assert len(places) > 30
    assert all(exists(place) for place in places)


def test_every_word_of_the_glossary_has_its_place():
    text = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    words = {word for word, *_ in rows}
    assert {"query", "sample", "answer", "generation", "meaning", "unit"} <= words
    assert {"prior statistic", "evidence", "score", "method", "criterion", "judge"} <= words
    assert all("`" in where for *_, where in rows)


@pytest.mark.parametrize("path", LINKED, ids=name)
def test_relative_links_resolve(path):
    links = re.findall(r"\]\(([^)\s]+)\)", prose(path))
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), f"{name(path)} links to {link}"
        if anchor:
            assert anchor in anchors(file), f"{name(path)} links to {link}"


def test_links_are_found_at_all():
    assert sum(len(re.findall(r"\]\(", prose(path))) for path in PAGES) > 30


def test_paper_and_practice_has_every_row():
    text = (ROOT / "docs" / "paper-and-practice.md").read_text()
    rows = re.findall(r"^\| (\d+) \|(.+)\|$", text, re.MULTILINE)
    numbers = [int(number) for number, _ in rows]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 29
    for number, cells in rows:
        filled = [cell.strip() for cell in re.split(r"(?<!\\)\|", cells)]
        assert len(filled) == 5, f"row {number} has {len(filled) + 1} cells"
        assert all(filled), f"row {number} has an empty cell"


@pytest.mark.parametrize("option", [field.name for field in dataclasses.fields(Options)])
def test_every_option_is_documented(option):
    pages = [ROOT / "docs" / page for page in ("paper-and-practice.md", "method.md")]
    assert any(re.search(rf"`{option}(=[^`]+)?`", prose(page)) for page in pages)


def test_the_option_table_has_the_defaults_of_both_presets():
    from fusevlm.fuse.presets import PRESETS

    rows = re.findall(
        r"^\| `(\w+)` \| (.+?) \| (.+?) \|",
        (ROOT / "docs" / "method.md").read_text().split("## Options")[1],
        re.MULTILINE,
    )
    assert {option for option, *_ in rows} == {f.name for f in dataclasses.fields(Options)}
    for option, *shown in rows:
        for preset, cell in zip(("practical", "paper"), shown, strict=True):
            if cell != "–":
                value = getattr(PRESETS[preset], option)
                same = float(cell) == value if cell[0].isdigit() else cell.strip("`") == str(value)
                assert same, f"{option} of {preset} is {value!r}, not {cell}"


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_is_documented(verb, capsys):
    page = (ROOT / "docs" / "cli.md").read_text()
    assert f"| `fusevlm {verb}" in page
    assert f"\n## {verb}\n" in page
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    section = page.split(f"\n## {verb}\n")[1].split("\n## ")[0]
    flags = {*re.findall(r"--[a-z-]+", capsys.readouterr().out)} - {"--help"}
    assert flags == {*re.findall(r"--[a-z-]+", section)}


def test_every_key_of_a_config_is_documented():
    page = (ROOT / "docs" / "pipeline.md").read_text()
    named = set(re.findall(r"`(\w+\.\w+)`", page.split("\n## Config\n")[1].split("\n## ")[0]))
    keys = {f"{s}.{f.name}" for s, kind in SECTIONS.items() for f in dataclasses.fields(kind)}
    assert named == keys


def test_the_changelog_knows_the_version():
    assert f"## [{fusevlm.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {fusevlm.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p, "python")], ids=name)
def test_python_blocks_run_in_order(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    library = logging.getLogger("fusevlm")
    before = library.level
    namespace = {"__name__": "__docs__"}
    try:
        for number, body in enumerate(blocks(path, "python"), 1):
            exec(compile(body, f"{name(path)}, block {number}", "exec"), namespace)
        assert len(namespace) > 2, "the blocks defined nothing"
    finally:
        library.setLevel(before)


@pytest.mark.slow
def test_the_method_page_shows_what_the_simulation_prints(tmp_path, capsys):
    page = ROOT / "docs" / "method.md"
    shown = next(b for b in blocks(page, "text") if b.startswith("SIMULATION"))
    assert main(["demo", "--simulation", "--out", str(tmp_path)]) == 0
    number = re.compile(r"\d+\.\d+")
    printed = capsys.readouterr().out.rsplit("results:", 1)[0]
    shown = shown.rsplit("results:", 1)[0]
    assert number.sub("#", shown).split() == number.sub("#", printed).split()
    found, expected = ([float(x) for x in number.findall(text)] for text in (shown, printed))
    assert found == pytest.approx(expected, abs=2e-3)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; warnings are errors."""
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    home = tmp_path_factory.mktemp("site")
    found = subprocess.run(  # without --quiet, which would hide warnings from --strict too
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", home],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return home


@pytest.mark.slow
def test_the_site_builds_without_warnings(site):
    for path in PAGES[1:]:
        assert (site / path.relative_to(ROOT / "docs")).with_suffix(".html").exists()
    assert "It contradicts itself" in (site / "tour.html").read_text()
    home = (site / "index.html").read_text()
    outside = re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?://[^"]+)"', home)
    assert not outside, f"the site loads {outside}"


class Loaded(HTMLParser):
    """What a page loads by itself: scripts, styles, fonts, pictures; not what it links to."""

    def __init__(self):
        super().__init__()
        self.addresses, self.styles, self._style = [], [], False

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self._style = tag == "style"
        self.styles.append(given.get("style") or "")
        if tag == "link" and not {"canonical", "prev", "next"} & {*given.get("rel", "").split()}:
            self.addresses.append(given["href"])
        self.addresses += [given[k] for k in ("src", "poster", "data") if given.get(k)]
        self.addresses += [one.split()[0] for one in (given.get("srcset") or "").split(",") if one]
        if tag in ("image", "use"):
            self.addresses += [v for k, v in attrs if k in ("href", "xlink:href")]

    def handle_data(self, data):
        if self._style:
            self.styles.append(data)


IN_STYLES = re.compile(r"""(?:url\(|@import\s+)\s*["']?\s*([^"')\s;]+)""")
ELSEWHERE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)


def loaded(page):
    """All that an HTML page or a style sheet makes a browser fetch."""
    text = page.read_text()
    if page.suffix == ".css":
        return IN_STYLES.findall(text)
    parser = Loaded()
    parser.feed(text)
    return [*parser.addresses, *IN_STYLES.findall("\n".join(parser.styles))]


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site):
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 40
    found = {page: loaded(page) for page in pages}
    assert sum(map(len, found.values())) > 200
    for page, addresses in found.items():
        for address in addresses:
            assert not ELSEWHERE.match(address), f"{page.relative_to(site)} loads {address}"
            if not address.startswith(("data:", "#")):
                file = (page.parent / address.split("?")[0].split("#")[0]).resolve()
                assert file.exists() or page.name == "404.html", f"{page} lacks {address}"
        # for these the theme's own script would load another from elsewhere
        assert not re.search(r'class="mermaid"|data-md-component="source"', page.read_text())


def test_what_a_page_loads_is_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        '<link rel="stylesheet" href="//a/x.css"><script src="https://b/y.js"></script>'
        '<img srcset="c/1.png 1x, https://d/2.png 2x"><a href="https://fine">words</a>'
        '<style>@import "https://e/z.css"; p {background: url(https://f/i.png)}</style>'
        '<svg><image href="https://g/i.svg"/></svg><p style="background:url(//h/j.png)">'
        '<link rel="canonical" href="https://fine/page">'
    )
    found = [address for address in loaded(page) if ELSEWHERE.match(address)]
    assert {address.split("/")[2] for address in found} == set("abdefgh")


@pytest.mark.slow
def test_the_site_has_every_public_name(site):
    pages = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    for public in fusevlm.__all__:
        assert f'id="fusevlm.{public}"' in pages or public == "__version__"
    assert ":class:" not in pages
    assert "doctest" not in pages
