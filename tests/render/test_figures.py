"""The figures: what is drawn is what was measured, nothing is cut off, the bytes repeat."""

import hashlib
import io
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text
from PIL import Image

from fusevlm.errors import UndefinedMetricError
from fusevlm.pipeline.figures import draw_bench, titles_of
from fusevlm.render.examples import GROUPS, Example, choose
from fusevlm.render.figures import (
    TINTS,
    draw_against_ntl,
    draw_curves,
    draw_examples,
    lines_of,
    overlooked,
    scaled,
)
from fusevlm.render.plots import FEW, Line, draw_plots, plain
from fusevlm.render.results import Curve

NASTY = "costs $5 or $6_x^\\frac? \x00\x1b<b>&\ud800 日本"


def example(**changes):
    facts = {
        "picture": b"", "question": "<b>?", "references": ["<i>"], "answer": "<u>", "wrong": True,
        "samples": [("<s>", 3), ("red", 1)], "u": 1.25, "rank": 9, "of": 80, "ntl": 0.875,
        "p_wrong": 0.625, "m0": 0.375, "evidence": None, "decision": "abstain",
    }  # fmt: skip
    return Example(**{**facts, **changes})


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(3)
    wrong = rng.random(60) < 0.35
    u = np.round(wrong + rng.standard_normal(60), 1)  # with ties
    return u, np.clip(0.9 - 0.2 * wrong - 0.1 * rng.random(60), 0, 1), wrong


@pytest.fixture(scope="module")
def plots(world):
    u, ntl, wrong = world
    p = 1 / (1 + np.exp(-u))
    lines = {"FUSE (practical)": Line(u, p), "G-NLL $x$": Line(-ntl, 1 - ntl)}
    lines |= {f"method {k} with a long title": Line(u + k * ntl, p) for k in range(6)}
    return lines, draw_plots(lines, wrong)


def curves():
    points = ["exact_match", "vqa_accuracy", "rouge_l ≥ 0.3", "rouge_l ≥ 0.5", "rouge_l ≥ 0.7"]
    names = ["practical", "paper", "umpire", "semantic_entropy_rao", "eigenscore", "g_nll"]
    rng = np.random.default_rng(0)
    by_count = {n: [float(v) for v in rng.random(4)] for n in names}
    by_count["eigenscore"] = [None, 0.5, None, 0.6]
    by_criterion = {n: [float(v) for v in rng.random(5)] for n in names}
    by_criterion["g_nll"] = [None] * 5
    return [
        Curve("OK-VQA, LLaVA", "samples", ["2", "10", "30", "50"], by_count),
        Curve("OK-VQA, LLaVA", "criteria", points, by_criterion, [0.5, 0.6, 0.7, 0.8, 0.9]),
    ]


def picture():
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 30, 30)).save(buffer, format="PNG")
    return buffer.getvalue()


def examples():
    facts = {"question": f"{NASTY} {'what is this ' * 20}", "picture": picture(), "evidence": -3.0}
    return {
        group: [example(**facts, wrong=group.endswith("wrong"), references=[NASTY] * 10)] * 4
        for group in GROUPS
    }


def words_of(drawing):
    return " ".join(ET.fromstring(drawing.svg()).itertext())


@pytest.fixture(scope="module")
def drawings(world, plots):
    u, ntl, wrong = world
    return {
        **plots[1],
        "fuse-ntl": draw_against_ntl("FUSE (practical)", u, ntl, wrong),
        "curves": draw_curves(curves(), titles_of(curves()[0].values)),
        "criteria": draw_curves(curves()[1:], titles_of(curves()[0].values)),
        "qualitative": draw_examples(examples(), "FUSE (practical)"),
    }


def shown_texts(figure):
    """(text, box) of all that is drawn; ticks outside the axes' limits are not."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    hidden = set()
    for axes in figure.findobj(Axes):
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            gone = not (axes.get_visible() and axes.axison)
            for tick in axis.get_major_ticks():
                if gone or not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                    hidden |= {id(tick.label1), id(tick.label2)}
    found = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    return [(t, t.get_window_extent(renderer)) for t in found if id(t) not in hidden]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_nothing_is_cut_off_and_no_two_texts_overlap(drawings):
    """Every text lies inside its figure; upright ones stand clear of each other."""
    for name, drawing in drawings.items():
        texts = shown_texts(drawing.figure)
        assert len(texts) > 4
        whole = drawing.figure.bbox
        for text, box in texts:
            inside = whole.x0 - 1 <= box.x0 and box.x1 <= whole.x1 + 1
            inside &= whole.y0 - 1 <= box.y0 and box.y1 <= whole.y1 + 1
            assert inside, f"{name}: {text.get_text()!r} is cut off"
        upright = [(t, b) for t, b in texts if t.get_rotation() in (0, 90)]
        for k, (one, a) in enumerate(upright):
            for other, b in upright[k + 1 :]:
                clear = a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
                assert clear, f"{name}: {one.get_text()!r} over {other.get_text()!r}"


def test_roc_lines_have_the_area_of_the_ranks(world, plots):
    """Trapezoids under the drawn line = share of (wrong, right) pairs in order, ties half."""
    _, _, wrong = world
    lines, drawn = plots
    axes = drawn["roc"].figure.axes[0]
    for line, (name, own) in zip(axes.lines, lines.items(), strict=False):
        pairs = own.u[wrong][:, None] - own.u[~wrong][None, :]
        area = float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))
        x, y = line.get_data()
        assert np.trapezoid(y, x) == pytest.approx(area)
        assert line.get_label() == f"{name}: AUROC {area:.3f}"


def test_reliability_dots_are_the_bins(world, plots):
    _, _, wrong = world
    lines, drawn = plots
    axes, strip = drawn["reliability"].figure.axes
    assert len(axes.collections) == FEW
    for dots, own in zip(axes.collections, lines.values(), strict=False):
        index = np.minimum((own.p_wrong * 10).astype(int), 9)
        bins = sorted(set(index))
        expected = [(own.p_wrong[index == b].mean(), wrong[index == b].mean()) for b in bins]
        np.testing.assert_allclose(dots.get_offsets(), expected)
    first = next(iter(lines.values()))
    assert sum(bar.get_height() for bar in strip.patches) == len(first.p_wrong)


def test_rejection_and_risk_start_where_everything_is_answered(world, plots):
    u, _, wrong = world
    _, drawn = plots
    x, y = drawn["rejection-accuracy"].figure.axes[0].lines[0].get_data()
    assert (min(x), y[np.argmin(x)]) == (0.0, pytest.approx(1 - wrong.mean()))
    kept = u <= np.sort(u)[29]
    at = np.argmin(np.abs(np.asarray(x) - (1 - kept.mean())))
    assert y[at] == pytest.approx(1 - wrong[kept].mean())
    x, y = drawn["risk-coverage"].figure.axes[0].lines[0].get_data()
    assert (max(x), y[np.argmax(x)]) == (1.0, pytest.approx(wrong.mean()))


def test_densities_have_a_panel_per_method_and_integrate_to_one(plots):
    lines, drawn = plots
    axes = [a for a in drawn["densities"].figure.axes if a.get_visible()]
    assert [a.get_title() for a in axes] == list(lines)
    odd = draw_plots(dict(list(lines.items())[:3]), np.arange(60) % 2 == 0)["densities"]
    assert [a.get_visible() for a in odd.figure.axes] == [True, True, True, False]


def test_overlooked_by_counting(world):
    u, ntl, wrong = world
    middle = np.median([value for value, bad in zip(u, wrong, strict=True) if not bad])
    count = sum(1 for value, bad in zip(u, wrong, strict=True) if bad and value <= middle)
    assert overlooked(u, wrong) == pytest.approx(count / wrong.sum())
    # by next-token likelihood, sure means large
    middle = np.median(ntl[~wrong])
    assert overlooked(-ntl, wrong) == pytest.approx((ntl[wrong] >= middle).mean())
    with pytest.raises(UndefinedMetricError):
        overlooked(u, np.zeros(60, dtype=bool))


def test_fig_1_says_both_shares_and_both_areas(world, drawings):
    u, ntl, wrong = world
    text = words_of(drawings["fuse-ntl"])
    for score in (u, -ntl):
        assert f"{overlooked(score, wrong):.0%} of the wrong answers are" in text
        pairs = score[wrong][:, None] - score[~wrong][None, :]
        assert f"AUROC {np.mean((pairs > 0) + 0.5 * (pairs == 0)):.3f}" in text
    assert f"wrong answers ({wrong.sum()})" in text
    one_class = draw_against_ntl("FUSE", u, ntl, np.ones(60, dtype=bool))
    assert "undefined on these answers" in words_of(one_class)


def test_a_scaled_score_keeps_its_order_and_a_far_query_hides_none():
    u = np.append(np.linspace(0, 1, 200), -1e9)
    found = scaled(u)
    assert (found.min(), found.max()) == (0.0, 1.0)
    assert np.all(np.diff(found[:200]) >= 0)
    assert found[100] == pytest.approx(0.5, abs=0.01)
    assert not scaled(np.full(5, 3.0)).any()


def test_fig_3_shows_all_points_methods_and_accuracies(drawings):
    drawing = drawings["curves"]
    left, right = drawing.figure.axes
    for axes, curve in zip((left, right), curves(), strict=True):
        for line, values in zip(axes.lines, curve.values.values(), strict=True):
            assert list(line.get_ydata()) == [v for v in values if v is not None]
    assert list(left.lines[4].get_xdata()) == [10, 50]  # EigenScore has no others
    assert [t.get_text() for t in left.get_xticklabels()] == ["2", "10", "30", "50"]
    text = words_of(drawing)
    for shown in ("(a) AUROC over samples", "(b) AUROC over criteria", "FUSE (practical)",
                  "Semantic entropy", "G-NLL", "accuracy 0.500", "OK-VQA, LLaVA"):  # fmt: skip
        assert shown in text, shown
    assert "G-NLL: undefined" in words_of(drawings["criteria"])


def test_a_bench_draws_each_curve_and_all_of_a_place_together():
    found = draw_bench(curves())
    place = "OK-VQA__LLaVA"
    assert list(found) == [f"{place}-samples", f"{place}-criteria", f"{place}-samples-criteria"]
    assert list(draw_bench(curves()[:1])) == [f"{place}-samples"]


def test_titles_that_two_methods_share_give_way_to_names(monkeypatch):
    from fusevlm.pipeline import figures, methods

    find = methods.title_of
    monkeypatch.setattr(figures, "title_of", lambda n: "G-NLL" if n == "twin" else find(n))
    assert titles_of(["g_nll", "twin", "ntl"]) == {
        "g_nll": "g_nll", "twin": "twin", "ntl": "1 − NTL",
    }  # fmt: skip


def test_groups_by_the_definition():
    """Right or wrong × surer or less sure half; each query once; the most extreme first."""
    rng = np.random.default_rng(1)
    u, wrong = np.round(rng.standard_normal(31), 1), rng.random(31) < 0.4
    found = choose(u, wrong, 1000)
    assert sorted(row for rows in found.values() for row in rows) == list(range(31))
    order = sorted(range(31), key=lambda i: (u[i], i))
    for group, rows in found.items():
        sure = group.startswith("confident")
        half = set(order[:15] if sure else order[15:])
        bad = group.endswith("wrong")
        assert set(rows) == {i for i in half if wrong[i] == bad}
        assert [order.index(i) for i in rows] == sorted(map(order.index, rows), reverse=not sure)


def test_groups_take_turns():
    u = np.arange(8.0)
    wrong = np.array([0, 0, 0, 1, 0, 1, 1, 1], dtype=bool)
    found = choose(u, wrong, 5)
    assert found == {
        "confident and right": [0, 1], "unsure and wrong": [7], "confident and wrong": [3],
        "unsure and right": [4],
    }  # fmt: skip
    assert not any(choose(u, wrong, 0).values())
    # a group that has no more leaves its turn to the others
    assert sum(map(len, choose(u, np.zeros(8, dtype=bool), 7).values())) == 7


def test_examples_are_tinted_by_success_and_hold_any_text(drawings):
    drawing = drawings["qualitative"]
    parts = drawing.figure.subfigs
    assert [p.texts[0].get_text().split(" – ")[0] for p in parts] == list(GROUPS)
    for part, kind in zip(parts, GROUPS.values(), strict=True):
        grounds = [to_hex(a.get_facecolor()) for a in part.artists]
        assert grounds == [TINTS[kind == "failures"]]
        assert len(part.axes) == 3  # pictures
    text = words_of(drawing)
    assert "costs $5 or $6_x^\\frac?" in text
    for shown in ("P(wrong) 0.625", "m0 0.375", "evidence -3.000", "decision: abstain", "日本"):
        assert shown in text
    alone = draw_examples({"unsure and wrong": [example(decision="", samples=[])]}, "x")
    assert "decision: –" in words_of(alone)


def test_long_text_is_cut_and_odd_letters_dropped():
    assert plain("a\x00b\n c\ud800") == "a b c"
    assert lines_of("a\x00b\n c", 1) == ["a b c"]
    assert lines_of("word " * 40, 2)[-1].endswith(" …")
    assert lines_of("", 2) == []


DRAW = """
import hashlib, numpy as np
from tests.render.test_figures import examples
from fusevlm.render.figures import draw_examples
one = draw_examples(examples(), "FUSE $x$")
print(hashlib.sha256(one.svg().encode()).hexdigest(), hashlib.sha256(one.pdf()).hexdigest())
"""


def test_bytes_repeat(drawings):
    again = draw_examples(examples(), "FUSE (practical)")
    svg, pdf = again.svg(), again.pdf()
    assert (svg, pdf) == (drawings["qualitative"].svg(), drawings["qualitative"].pdf())
    assert pdf.startswith(b"%PDF")
    assert b"CreationDate" not in pdf
    assert "dc:date" not in svg


@pytest.mark.slow
def test_bytes_repeat_in_another_process():
    """Another seed of Python's hashes, another time: the same SVG and PDF."""
    one = draw_examples(examples(), "FUSE $x$")
    svg, pdf = one.svg(), one.pdf()
    here = [hashlib.sha256(x).hexdigest() for x in (svg.encode(), pdf)]
    env = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", DRAW], env=env, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == here
