"""The page: hostile text, no outside requests, the numbers of the results; plots that repeat."""

import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from fusevlm.pipeline.report import thumbnail
from fusevlm.render.page import (
    as_json,
    causes_tables,
    files_of,
    headline,
    methods_table,
    render,
    slices_table,
)
from fusevlm.render.plots import DATA, PLOTS, Line, draw_plots, plot_data

HOSTILE = '"></script><script>alert(1)</script><img src=http://evil.example/x>&amp;<!--{{ 7*7 }}'
ROW = {"estimate": 0.5, "low": 0.25, "high": 0.75}
METHOD = {**dict.fromkeys(("auroc", "aurac", "ece", "brier", "certified_0.1"), ROW)}
VOID = ("meta", "img", "link", "input")


class Reader(HTMLParser):
    """Tags, their attributes and the text of a page; complains of tags left open."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.open, self.words = [], [], [], []
        self.scripts = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] in ("script", "style") else self.words).append(
            data
        )


@pytest.fixture(scope="module")
def lines():
    rng = np.random.default_rng(0)
    wrong = rng.random(80) < 0.4
    u = wrong + rng.standard_normal(80)
    return {HOSTILE: Line(u, 1 / (1 + np.exp(-u))), "other": Line(-u, rng.random(80))}, wrong


@pytest.fixture(scope="module")
def plots(lines):
    return {name: drawing.svg() for name, drawing in draw_plots(*lines).items()}


def results(**causes):
    part = {"queries": 80, "wrong": 30, "base_accuracy": ROW, "methods": {"m": METHOD, "o": METHOD}}
    return {
        "settings": {"risk": 0.2, "risks": [0.1], "delta": 0.1, "level": 0.95},
        "slices": [{"slice": "all", **part}, {"slice": HOSTILE, **part}],
        "best_baseline": "o",
        "differences": {"m": {"difference": 0.0625, "low": -0.5, "high": 0.5}},
        "causes": causes,
    }


def page_of(results, data=None, **changes):
    titles = {"m": HOSTILE, "o": "other"}
    shown = {
        "name": HOSTILE,
        "headline": headline(results, "m", HOSTILE, HOSTILE),
        "calibration": 10,
        "sure": "0.9",
        "intervals": HOSTILE,
        "methods": methods_table(results, titles, "m"),
        "slices": slices_table(results, titles),
        "causes": causes_tables(results["causes"], titles),
        "absent": {HOSTILE: HOSTILE},
        "files": files_of(["roc"], {"roc": ["svg", "csv"]}),
        "left_out": {HOSTILE: HOSTILE},
        "gallery_note": HOSTILE,
        "made": {"fusevlm": "1", "facts": {HOSTILE: HOSTILE}, "config": HOSTILE},
    }
    return render("report.html.j2", "report.js", data or {"x": HOSTILE}, {**shown, **changes})


def test_hostile_text_stays_text():
    severities = [{"corruption": HOSTILE, "levels": [0.0], "mean_s": [ROW], "spearman": None}]
    groups = [{"group": HOSTILE, "queries": "all", "n": 3, "n_reference": 9,
               "evidence": ROW, "p_wrong": ROW}]  # fmt: skip
    causes = {"prior_by_severity": severities, "against_in_distribution": groups, "method": HOSTILE}
    reader = Reader(page_of(results(**causes)))
    assert reader.tags.count("script") == 3  # data, libraries, ours
    assert reader.tags.count("img") == 0
    text = "".join(reader.words)
    assert text.count(HOSTILE) >= 14  # whole, as text
    assert "49" not in text  # no template of a template


def test_data_comes_back_as_it_was():
    data = {"a": [HOSTILE, "\u2028\u2029 é 😀", "\ud800", None, 0.25], "b": {"c": True}}
    text = as_json(data)
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        assert sign not in text
    assert json.loads(text) == data
    with pytest.raises(ValueError, match="JSON"):
        as_json([float("nan")])
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>',
                          page_of(results(), data))  # fmt: skip
    assert json.loads(found) == data


def test_nothing_is_requested_from_outside():
    reader = Reader(page_of(results()))
    requested = [
        value
        for name, value in reader.attributes
        if name in ("src", "href", "xlink:href", "srcset", "data", "action")
    ]
    assert requested
    assert all(value.startswith(("#", "data:")) or value == "roc.svg" or value == "roc.csv"
               for value in requested), requested  # fmt: skip
    styles = "".join(reader.scripts)
    assert "@import" not in styles
    assert not re.search(r"(?:src|href)\s*=\s*[\"']https?://", styles)
    assert "sourceMappingURL" not in styles


def test_ids_are_unique_and_labels_resolve():
    reader = Reader(page_of(results()))
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 10
    used = {v[1:] for name, v in reader.attributes if name == "href" and v.startswith("#")}
    used |= {v for name, v in reader.attributes if name in ("aria-labelledby", "for")}
    assert used <= set(ids)


def test_the_numbers_are_on_the_page():
    text = " ".join("".join(Reader(page_of(results())).words).split())
    for shown in ("0.500 0.250…0.750", "80 test queries were asked", "30 answers are wrong",
                  "+0.062 -0.500…+0.500", "AUROC − other", "certified at 0.1", "50.0%",
                  "answered at risk ≤ 0.1", "50 of 80", "roc.svg", "roc.csv"):  # fmt: skip
        assert shown in text, shown
    page = page_of(results())
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_plots_are_svg_and_repeat_byte_for_byte(lines, plots):
    assert set(plots) == set(PLOTS) == set(DATA)
    again = draw_plots(*lines)
    assert {name: drawing.svg() for name, drawing in again.items()} == plots
    for svg in plots.values():
        assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert "dc:date" not in svg
    one, two = (again["roc"].png() for _ in range(2))
    assert one == two
    assert Image.open(io.BytesIO(one)).size == (920, 1040)


def test_the_numbers_of_a_plot_are_its_curves(lines):
    table, wrong = lines
    roc = plot_data("roc", table, wrong)
    assert set(roc["method"]) == {HOSTILE, "other"}
    own = [(f, t) for m, f, t in zip(roc["method"], roc["fpr"], roc["tpr"], strict=True)
           if m == "other"]  # fmt: skip
    area = np.trapezoid([t for _, t in own], [f for f, _ in own])
    u = table["other"].u
    above = np.mean([(a > b) + (a == b) / 2 for a in u[wrong] for b in u[~wrong]])
    assert area == pytest.approx(above)
    assert sum(plot_data("reliability", {"m": table["other"]}, wrong)["count"]) == 80
    assert plot_data("roc", table, np.zeros_like(wrong)) == {}


def test_one_class_only_still_draws(lines):
    table, wrong = lines
    found = draw_plots(table, np.zeros_like(wrong))
    assert "undefined" in found["roc"].svg()
    assert "undefined" not in found["risk-coverage"].svg()


def test_thumbnails_keep_small_pictures_as_they_are(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (12, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    kept = thumbnail(tmp_path / "a.png", "PNG")
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(kept))), pixels)
    Image.new("RGB", (1000, 500)).save(tmp_path / "b.jpg")
    small = Image.open(io.BytesIO(thumbnail(tmp_path / "b.jpg")))
    assert (small.size, small.format) == ((128, 64), "WEBP")
    assert thumbnail(tmp_path / "gone.png") == b""
