"""What results show of themselves: every one does, escaped, legible on light and dark ground."""

import dataclasses
import inspect
import re
import sys
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest

import fusevlm
from fusevlm import Fuse, Query, Rounds, Sampled, Samples, Scorer, metrics, simulate, usual_tiers
from fusevlm.assistant import Assistant
from fusevlm.displays import BAD, CURVE, GOOD, MOST_ROWS, Displayed, Rows, Table, html_curve
from fusevlm.errors import InputError, library_quiet
from fusevlm.fuse.explain import Explanation
from fusevlm.types import Generation

HOSTILE = "<script>alert(1)</script>"
GROUNDS = {"page": "#ffffff", "Jupyter's dark": "#111111", "an editor's dark": "#1f1f1f"}


# --- every result has one -------------------------------------------------------------------------


def public(owner):
    """Functions, methods and properties that users call, of a module or a class."""
    for name, found in vars(owner).items():
        if isinstance(found, property):
            yield found.fget
        elif isinstance(found, staticmethod | classmethod):
            yield found.__func__
        elif inspect.isfunction(found) and not name.startswith("_"):
            yield found


def offered():
    """All that `fusevlm.__all__` offers to call."""
    for name in fusevlm.__all__:
        found = getattr(fusevlm, name)
        if isinstance(found, ModuleType):
            own = [getattr(found, n) for n in getattr(found, "__all__", vars(found))]
            mine = [f for f in own if getattr(f, "__module__", "").startswith(found.__name__)]
            yield from (f for f in mine if inspect.isfunction(f) and f.__name__[0] != "_")
        elif inspect.isclass(found):
            yield from public(found)
        elif callable(found):
            yield found
    yield from public(Assistant)


def returned(function):
    """The classes of fusevlm that a function's annotation says it returns."""
    words = re.findall(r"\w+", str(function.__annotations__.get("return", "")))
    known = vars(sys.modules[function.__module__])
    for word in words:
        found = known.get(word)
        if inspect.isclass(found) and found.__module__.startswith("fusevlm"):
            yield found


INSIDE = {"Model", "Options", "_Saved"}  # constants of a fit, which are not shown


def test_every_result_has_a_display():
    found = {cls for function in offered() for cls in returned(function)}
    assert len(found) > 25
    assert {"Scores", "Threshold", "Interval", "Answer", "Drift", "RoundDecisions"} <= {
        cls.__name__ for cls in found
    }
    without = {
        cls.__name__
        for cls in found
        if not hasattr(cls, "_repr_html_") and not issubclass(cls, Exception)
    }
    assert without <= INSIDE | {"Tier", "Semantics"}, "plain records, which say all in one line"


# --- what they show -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown():
    """One of every kind, with hostile names wherever a user's words can go."""
    with library_quiet():
        return one_of_every_kind()


def one_of_every_kind():
    known = simulate.queries(300, n_samples=4, d=8, seed=1)
    new = simulate.queries(60, n_samples=4, d=8, seed=2)
    fuse = Fuse().fit(
        known.samples, known.wrong, s={HOSTILE: known.s}, groups=[HOSTILE, "other"] * 150
    )
    rounds = Rounds(usual_tiers(4), normalize="none").fit(known)
    scores = fuse.score(new.samples, s={HOSTILE: new.s})
    decided = fuse.decide(scores, risk=0.3)
    rows = [
        Sampled(Query(f"{HOSTILE}{k}", HOSTILE), Samples([HOSTILE] * (9 - k % 7) + ["b"] * (k % 7)),
                wrong=k % 7 > 3)
        for k in range(120)
    ]  # fmt: skip
    scorer = Scorer.fit(rows, towers="none")
    judged = scorer.judge([*rows[:3], Sampled(Query("bad", "q"), error=HOSTILE)], risk=0.3)
    p = fuse.predict_proba(scores)
    return {
        "fuse": fuse, "scores": scores, "decisions": decided,
        "threshold": fuse.threshold(risk=0.3), "groups": fuse.group_thresholds(risk=0.3),
        "risk table": fuse.risk_table(n_rows=5), "explained": fuse.explain(new.samples[:3],
        s={HOSTILE: new.s[:3]}), "drift": fuse.check_drift(new.samples, s={HOSTILE: new.s}),
        "monitor": fuse.monitor(), "rounds": rounds, "plan": rounds.plan(0.3),
        "round scores": rounds.score(new), "round decisions": rounds.decide(new, risk=0.3),
        "samples": rows[0].samples, "query": rows[0].query, "sampled": rows[0], "rows": Rows(rows),
        "generation": Generation(HOSTILE, rows[0].samples), "queries": known, "scorer": scorer,
        "judged": judged[0], "judgements": judged, "answer": judged[0].answer,
        "failed": Generation("q", error=HOSTILE),
        "interval": metrics.bootstrap("auroc", scores.u, new.wrong, n_boot=50),
        "difference": metrics.paired_bootstrap("auroc", scores.u, new.s, new.wrong, n_boot=50),
        "summary": metrics.summary(scores.u, new.wrong, p, n_boot=50),
        "roc": metrics.roc_curve(scores.u, new.wrong),
        "reliability": metrics.reliability(p, new.wrong),
        "risk coverage": metrics.risk_coverage(scores.u, new.wrong),
        "rejection": metrics.rejection_accuracy(scores.u, new.wrong),
        "labels": fusevlm.labels_needed(risk=0.2, error_rate=0.2, repetitions=100),
        "evidence": fusevlm.semantic_evidence(np.eye(3)),
    }  # fmt: skip


def test_displays_are_escaped_and_whole(shown):
    for name, thing in shown.items():
        page = thing._repr_html_()
        assert "<script" not in page, name
        root = ElementTree.fromstring(f"<div>{page.replace('<br>', '<br/>')}</div>")
        assert len("".join(root.itertext()).strip()) > 10, name
    for name in ("fuse", "groups", "samples", "query", "sampled", "rows", "judgements", "failed"):
        assert "&lt;script&gt;" in shown[name]._repr_html_(), name


def test_displays_load_nothing(shown):
    for name, thing in shown.items():
        page = thing._repr_html_()
        assert not re.search(r"<(?:script|link|img|style)|url\(|https?:", page), name


def luminance(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    """WCAG 2.2: from 1 to 21."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


def test_colours_can_be_told_from_light_and_dark_ground(shown):
    colours = {c for thing in shown.values() for c in re.findall(r"#\w{6}", thing._repr_html_())}
    assert colours <= {GOOD, BAD, CURVE}
    for colour in (GOOD, BAD, CURVE):
        for ground in GROUNDS.values():
            assert contrast(colour, ground) >= 3  # of marks and lines; words have the page's colour


def test_words_have_the_colour_of_the_page(shown):
    coloured = re.findall(r"[;\"]color:#\w{6}\">([^<]*)", shown["answer"]._repr_html_())
    assert {text.strip() for text in coloured} <= {"✓", "✗"}


def test_a_threshold_prints_in_a_few_lines(shown):
    theta = shown["threshold"]
    text = repr(theta)
    assert f"answers {theta.coverage:.1%} of the calibration queries" in text
    assert f"u ≤ {theta.threshold:.4g}" in text
    assert f"wrong among them  {theta.empirical_risk:.3g}" in text
    nothing = dataclasses.replace(theta, threshold=-np.inf, coverage=0.0, empirical_risk=None)
    assert "always abstain" in repr(nothing)
    table = shown["risk table"]
    assert len(repr(table).splitlines()) == 1 + len(table.rows())
    assert f"{table.coverage[0]:.0%} answered, {table.empirical_risk[0]:.3f} of them" in repr(table)


def test_an_answer_shows_its_bars(shown):
    answer = shown["answer"]
    page = answer._repr_html_()
    widths = [int(w) for w in re.findall(r"width:(\d+)%;height:100%", page)]
    wanted = [answer.bars[name] for name in ("aleatoric", "epistemic", "competence", "novelty")
              if name in answer.bars]  # fmt: skip
    assert widths == pytest.approx([100 * w for w in wanted], abs=0.51)
    edge = GOOD if answer.decision == "answer" else BAD
    assert f"4px solid {edge}" in page


# --- lists, dicts and curves ----------------------------------------------------------------------


def test_a_list_is_a_list_and_shows_the_first(shown):
    rows = shown["rows"]
    assert rows == list(rows)
    assert rows[2:5] == list(rows)[2:5]
    assert len(repr(rows).splitlines()) == MOST_ROWS + 2
    assert repr(Rows([InputError("too few")])) == "a list of 1\n  too few"
    page = rows._repr_html_()
    assert page.count("<tr>") == MOST_ROWS + 1
    assert "and 100 more" in page
    errors = Rows([InputError("too few"), Explanation({"novelty": 0.25}, {}, "", "", "Fine.")])
    page = errors._repr_html_()
    assert "<th>error</th>" in page
    assert "too few" in page
    assert "25%" in page
    assert Rows()._repr_html_().count("<tr>") == 1


def test_a_summary_is_a_dict_and_a_table(shown):
    found = shown["summary"]
    assert isinstance(found, Table)
    assert isinstance(found, dict)
    assert f"<td>auroc</td><td>{found['auroc'].estimate:.3f}</td>" in found._repr_html_()


def test_a_curve_is_drawn_where_it_is():
    x, y = [0.0, 0.25, 1.0], [0.0, 0.5, 1.0]
    svg = ElementTree.fromstring(
        html_curve(zip(x, y, strict=True), across="<x>", up="y", dots=True)
    )
    points = [tuple(map(float, one.split(","))) for one in
              svg.find("polyline").get("points").split()]  # fmt: skip
    drawn = np.array(points)
    scale = drawn[2] - drawn[0]
    np.testing.assert_allclose((drawn - drawn[0]) / scale, np.column_stack([x, y]), atol=1e-3)
    assert scale[0] > 0 > scale[1]  # to the right, and up
    assert len(svg.findall(".//circle")) == 3
    assert svg.get("aria-label") == "y against <x>"


def test_a_long_curve_is_thinned_and_keeps_its_ends():
    steps = np.linspace(0, 1, 5001)
    svg = ElementTree.fromstring(html_curve(zip(steps, steps**2, strict=True), across="x", up="y"))
    points = svg.find("polyline").get("points").split()
    assert len(points) == 200
    assert float(points[-1].split(",")[0]) - float(points[0].split(",")[0]) == 150


def test_the_area_beside_a_roc_curve_is_its_auroc(shown):
    curve = shown["roc"]
    assert shown["summary"]["auroc"].estimate == pytest.approx(
        float(re.search(r"area +([\d.]+)", repr(curve))[1]), abs=5e-4
    )


def test_a_display_says_what_it_must():
    class Bare(Displayed):
        pass

    with pytest.raises(NotImplementedError):
        repr(Bare())
