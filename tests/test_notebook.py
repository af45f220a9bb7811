"""The notebook of the documentation: it runs, it gives what it shows, and it shows nothing else."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.notebook import NOTEBOOK

ROOT = Path(__file__).resolve().parents[1]
STORED = json.loads(NOTEBOOK.read_text())
NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")
MACHINE = re.compile(r"/(?:home|root|tmp|usr|work|opt|Users)/|site-packages|0x[0-9a-f]{6}")


@pytest.fixture(scope="module")
def pages():
    """The hook that makes pages of notebooks."""
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    sys.path.insert(0, str(ROOT / "docs" / "_tools"))
    yield import_module("notebooks")
    sys.path.pop(0)


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text_of(output):
    """What an output says in plain text."""
    found = output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
    return found if isinstance(found, str) else "".join(found)


def test_it_is_small_and_says_nothing_of_the_machine_it_was_made_on():
    text = NOTEBOOK.read_text()
    assert len(text) < 1_000_000
    assert not MACHINE.search(text)
    assert set(STORED["metadata"]) == {"kernelspec", "language_info"}


def test_every_cell_was_run_and_none_failed():
    cells = code(STORED)
    assert len(cells) > 20
    silent = [cell for cell in cells if not cell["outputs"]]
    assert not silent
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds == {"execute_result", "stream"}


def test_results_are_shown_as_html():
    shown = [output["data"] for cell in code(STORED) for output in cell["outputs"]
             if output["output_type"] == "execute_result"]  # fmt: skip
    pictures = [data for data in shown if "image/png" in data]
    tables = [data for data in shown if "text/html" in data]
    assert len(pictures) == 1
    assert len(pictures) + len(tables) == len(shown)
    html = "".join("".join(data["text/html"]) for data in tables)
    for word in ("aleatoric", "guaranteed risk", "<svg", "generated answers", "How many labels?"):
        assert word in html
    assert "<script" not in html


def test_its_links_lead_somewhere():
    told = "".join("".join(c["source"]) for c in STORED["cells"] if c["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)#]+)\)", told)
    assert len(links) > 5
    assert all((ROOT / "docs" / link).exists() for link in links)


@pytest.mark.slow
def test_it_gives_what_it_shows(tmp_path):
    pytest.importorskip("nbclient", reason="the extra docs is not installed")
    pytest.importorskip("ipykernel", reason="the extra docs is not installed")
    made = tmp_path / "made.ipynb"
    done = subprocess.run(
        [sys.executable, "-m", "tests.notebook", made], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    again = json.loads(made.read_text())
    for number, (was, now) in enumerate(zip(code(STORED), code(again), strict=True)):
        told = [[text_of(output) for output in cell["outputs"]] for cell in (was, now)]
        shown, given = ("\n".join(texts) for texts in told)
        assert NUMBER.sub("#", shown) == NUMBER.sub("#", given), f"cell {number}"
        before, after = ([float(x.replace(",", "")) for x in NUMBER.findall(text)]
                         for text in (shown, given))  # fmt: skip
        assert after == pytest.approx(before, rel=0.02, abs=0.02), f"cell {number}"


# --- as a page ------------------------------------------------------------------------------------


def cell(*outputs, source="1 + 1"):
    return {"cell_type": "code", "source": [source], "outputs": list(outputs)}


def test_cells_become_code_and_prose(pages):
    told = {"cell_type": "markdown", "source": ["# Title\n", "words"]}
    assert pages.markdown({"cells": [told, cell()]}) == ("# Title\nwords\n\n```python\n1 + 1\n```")


def test_the_richest_form_of_an_output_is_shown(pages):
    both = {"text/html": ["<b>2</b>\n", "\n<i>x</i>"], "text/plain": ["2"]}
    given = {"output_type": "execute_result", "data": both}
    assert pages.blocks(cell(given))[1] == '<div class="output"><b>2</b>  <i>x</i></div>'
    picture = {"image/png": "QUJD\n", "text/plain": "<a picture>"}
    given = {"output_type": "execute_result", "data": picture}
    assert pages.output(given) == ('<img alt="&lt;a picture&gt;" src="data:image/png;base64,QUJD">')
    plain = {"output_type": "execute_result", "data": {"text/plain": "a < b"}}
    assert pages.output(plain) == "<pre>a &lt; b</pre>"


def test_printed_lines_stay_lines_and_nothing_is_no_output(pages):
    printed = {"output_type": "stream", "name": "stdout", "text": ["a\n", "\n", "<b>\n"]}
    assert pages.output(printed) == "<pre>a&#10;&#10;&lt;b&gt;</pre>"
    silent = {"output_type": "stream", "name": "stdout", "text": "\n"}
    assert pages.blocks(cell(silent)) == ["```python\n1 + 1\n```"]


def test_markdown_leaves_the_html_of_outputs_alone(pages):
    markdown = pytest.importorskip("markdown")
    both = {"text/html": "<table><tr><td>a*b*c\n\n_d_</td></tr></table>", "text/plain": ""}
    given = {"output_type": "execute_result", "data": both}
    page = markdown.markdown(pages.markdown({"cells": [cell(given)]}), extensions=["extra"])
    assert "<td>a*b*c  _d_</td>" in page
