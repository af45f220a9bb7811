"""The documentation against reality: tree, links, rows, options, verbs, code and build."""

import dataclasses
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fusevlm
from fusevlm.cli import COMMANDS, main
from fusevlm.fuse.presets import Options

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "fusevlm"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
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


def test_the_readme_tree_is_the_tree():
    section = (ROOT / "README.md").read_text().split("\n## The tree\n")[1].split("\n## ")[0]
    entries = re.findall(r"^- `([^`]+)`: (\S.+)$", section, re.MULTILINE)
    listed = [path for path, _ in entries]
    real = {str(p.relative_to(SOURCE)) for p in [*SOURCE.rglob("*.py"), SOURCE / "py.typed"]}
    assert sorted(listed) == sorted(real)
    assert (SOURCE / "py.typed").exists()


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
    assert f"`fusevlm {verb}" in (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "cli.md").read_text()
    assert f"\n## {verb}\n" in page
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    section = page.split(f"\n## {verb}\n")[1].split("\n## ")[0]
    flags = {*re.findall(r"--[a-z]+", capsys.readouterr().out)} - {"--help"}
    assert flags == {*re.findall(r"--[a-z]+", section)}


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
def test_the_readme_shows_what_the_demo_prints(tmp_path, capsys):
    shown = next(b for b in blocks(ROOT / "README.md", "text") if b.startswith("SIMULATION"))
    assert main(["demo", "--simulation", "--out", str(tmp_path)]) == 0
    number = re.compile(r"\d+\.\d+")
    printed = capsys.readouterr().out.rsplit("results:", 1)[0]
    shown = shown.rsplit("results:", 1)[0]
    assert number.sub("#", shown).split() == number.sub("#", printed).split()
    found, expected = ([float(x) for x in number.findall(text)] for text in (shown, printed))
    assert found == pytest.approx(expected, abs=2e-3)


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    found = subprocess.run(  # without --quiet, which would hide warnings from --strict too
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    for path in PAGES[1:]:
        assert (tmp_path / path.relative_to(ROOT / "docs")).with_suffix(".html").exists()
    home = (tmp_path / "index.html").read_text()
    outside = re.findall(r'<(?:script|link)[^>]+(?:src|href)="(https?://[^"]+)"', home)
    assert not outside, f"the site loads {outside}"
