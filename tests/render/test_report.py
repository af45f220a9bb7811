"""The page: hostile text, no outside requests, the numbers of the results; plots that repeat."""

import base64
import io
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from fusevlm.pipeline.report import thumbnail
from fusevlm.render.examples import Example
from fusevlm.render.page import render_page
from fusevlm.render.plots import COLORS, INK, PLOTS, Line, draw_plots

HOSTILE = '"><script>alert(1)</script><img src=http://evil.example/x>&amp;'
ROW = {"estimate": 0.5, "low": 0.25, "high": 0.75}
SHOWN = ("auroc", "aurac", "ece", "coverage_guaranteed", "coverage_empirical", "risk_empirical")
METHOD = {**dict.fromkeys(SHOWN, ROW), "risk_guaranteed": None}


class Reader(HTMLParser):
    """Tags, their attributes and the text of a page; complains of tags left open."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.open, self.words = [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


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
    part = {"queries": 80, "wrong": 30, "base_accuracy": ROW, "methods": {HOSTILE: METHOD}}
    return {
        "settings": {"risk": 0.2, "delta": 0.1, "level": 0.95},
        "slices": [{"slice": "all", **part}, {"slice": HOSTILE, **part}],
        "causes": causes,
    }


def example(**changes):
    facts = {
        "picture": b"", "question": HOSTILE, "references": [HOSTILE], "answer": HOSTILE,
        "wrong": True, "samples": [(HOSTILE, 3), ("red", 1)], "u": 1.25, "rank": 9, "of": 80,
        "ntl": 0.875, "p_wrong": 0.625, "m0": 0.375, "evidence": None, "decision": "abstain",
    }  # fmt: skip
    return Example(**{**facts, **changes})


def in_group(*examples):
    return {"unsure and wrong": examples}


def test_hostile_text_stays_text(plots):
    severities = [{"corruption": HOSTILE, "levels": [0.0], "mean_s": [ROW], "spearman": None}]
    groups = [{"group": HOSTILE, "queries": "all", "n": 3, "n_reference": 9,
               "evidence": ROW, "p_wrong": ROW}]  # fmt: skip
    causes = {"prior_by_severity": severities, "against_in_distribution": groups}
    tree = results(**causes, method=HOSTILE)
    left_out = {"p_true": HOSTILE}
    page = render_page(HOSTILE, tree, plots, in_group(example()), HOSTILE, left_out)
    reader = Reader(page)
    assert "script" not in reader.tags
    assert reader.tags.count("img") == 0
    text = "".join(reader.words)
    assert text.count(HOSTILE) >= 10  # whole, as text


def test_nothing_is_requested_from_outside(plots):
    reader = Reader(render_page("run", results(), plots, in_group(example()), "practical"))
    requested = [
        value
        for name, value in reader.attributes
        if name in ("src", "href", "xlink:href", "srcset", "data", "action")
    ]
    assert all(value.startswith(("#", "data:")) for value in requested), requested
    assert "@import" not in "".join(reader.words)
    assert "link" not in reader.tags


def test_ids_are_unique_and_references_resolve(plots):
    reader = Reader(render_page("run", results(), plots, {}, "practical"))
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 0
    used = {v[1:] for name, v in reader.attributes if name == "xlink:href"}
    used |= set(re.findall(r"url\(#([^)]+)\)", str(reader.attributes)))
    assert used
    assert used <= set(ids)


def test_inlined_plots_keep_their_colours_and_follow_the_pages_ink(plots):
    page = render_page("run", results(), plots, {}, "practical")
    for color in COLORS[:2]:
        assert page.count(color) == sum(svg.count(color) for svg in plots.values()) > 0
    assert INK not in page.split("<body>")[1]
    assert page.count("currentColor") == sum(svg.count(INK) for svg in plots.values())


def test_the_numbers_are_on_the_page(plots):
    page = render_page("run", results(), plots, in_group(example()), "practical")
    text = "".join(Reader(page).words)
    for shown in ("0.500 0.250…0.750", "80 test queries, 30", "u* 1.250 (rank 9 of 80)",
                  "NTL 0.875", "P(wrong) 0.625", "m0 0.375", "evidence –", "abstain", "3 × ",
                  "roc.svg", "each as .pdf too"):  # fmt: skip
        assert shown in text, shown
    assert "prefers-color-scheme:dark" in page


def test_plots_are_svg_and_repeat_byte_for_byte(lines, plots):
    assert set(plots) == set(PLOTS)
    assert {name: drawing.svg() for name, drawing in draw_plots(*lines).items()} == plots
    for svg in plots.values():
        assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert "dc:date" not in svg


def test_one_class_only_still_draws(lines):
    table, wrong = lines
    found = draw_plots(table, np.zeros_like(wrong))
    assert "undefined" in found["roc"].svg()
    assert "undefined" not in found["risk-coverage"].svg()


def test_thumbnails_keep_small_pictures_as_they_are(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (12, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    kept = thumbnail(tmp_path / "a.png")
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(kept))), pixels)
    Image.new("RGB", (1000, 500)).save(tmp_path / "b.jpg")
    assert Image.open(io.BytesIO(thumbnail(tmp_path / "b.jpg"))).size == (160, 80)
    assert thumbnail(tmp_path / "gone.png") == b""
    page = render_page("run", results(), {}, in_group(example(picture=kept)), "practical")
    (source,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(source) == kept


def test_successes_come_before_failures_and_empty_groups_are_not_named(plots):
    two = {
        "unsure and right": [example(question="query two", wrong=False, decision="")],
        "confident and right": [example(question="query one", wrong=False, decision="answer")],
        "confident and wrong": [],
    }
    page = render_page("run", results(), plots, two, "practical", pdf=False)
    text = "".join(Reader(page).words)
    places = [
        text.index(word)
        for word in ("Examples: successes", "query one", "Examples: failures", "query two")
    ]
    assert places == sorted(places)
    assert "confident and wrong" not in text
    assert "each as .pdf too" not in text
    assert page.count('<div class="card successes">') == 1
    assert page.count('<div class="card failures">') == 1
