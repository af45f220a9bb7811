"""The paper's figures: FUSE against next-token likelihood, curves, and examples (Figs 1, 3, 4)."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, extra
from fusevlm.errors import UndefinedMetricError
from fusevlm.render.examples import FAILURE, Example, numbers, sections
from fusevlm.render.plots import (
    INK,
    Drawing,
    draw,
    legend,
    looks,
    plain,
    roc_lines,
    split_histogram,
    trimmed,
)
from fusevlm.render.results import Curve

TINTS = {False: "#e5f4ea", True: "#fbe6e3"}  # of a success, of a failure
IN_A_ROW = 3  # examples of a group in the qualitative figure
WIDTH = 44  # letters in a line beside a picture


def scaled(u: FloatArray) -> FloatArray:
    """u from its 1st percentile (0) to its 99th (1): a normalised score, 0 where all are equal.

    The paper shows a normalised score and does not say how; by minimum and maximum one query far
    out would hide the others.
    """
    inside = trimmed(u)
    low, high = float(inside.min()), float(inside.max())
    return np.asarray((inside - low) / (high - low if high > low else 1.0))


def overlooked(u: FloatArray, wrong: BoolArray) -> float:
    """Share of the wrong answers that are no less sure than the median right one."""
    if wrong.all() or not wrong.any():
        raise UndefinedMetricError("this needs both right and wrong answers.")
    return float(np.mean(u[wrong] <= np.median(u[~wrong])))


def draw_against_ntl(name: str, u: FloatArray, ntl: FloatArray, wrong: BoolArray) -> Drawing:
    """Fig. 1: the score and next-token likelihood of right and wrong answers, and both as ROC."""

    def plot(figure: Any) -> None:
        left, middle, right = figure.subplots(1, 3)
        split_histogram(left, scaled(u), wrong)
        split_histogram(middle, ntl, wrong)
        left.set(xlabel="u*, scaled to [0, 1]")
        middle.set(xlabel="next-token likelihood (NTL)")
        left.set_title(f"{name}\n{_passing(overlooked(u, wrong))}")
        middle.set_title(f"NTL\n{_passing(overlooked(-ntl, wrong))}")
        roc_lines(right, {name: u, "1 − NTL": -ntl}, wrong)
        right.legend(frameon=False, fontsize=7, loc="lower right")
        legend(figure, left)

    return draw((9.0, 3.7), plot)


def _passing(share: float) -> str:
    return f"{share:.0%} of the wrong answers are\nas sure as the median right one"


def draw_curves(curves: Sequence[Curve], titles: Mapping[str, str]) -> Drawing:
    """Fig. 3: AUROC over samples and over criteria, a panel each, one legend for all methods."""

    def plot(figure: Any) -> None:
        panels = figure.subplots(1, len(curves), squeeze=False)[0]
        for letter, axes, curve in zip("abcdefgh", panels, curves, strict=False):
            _curve(axes, curve, titles)
            named = f"AUROC over {curve.over}"
            axes.set_title(named if len(curves) == 1 else f"({letter}) {named}")
        figure.suptitle(plain(curves[0].place), fontsize=9)
        legend(figure, panels[0], 2 * len(curves))

    return draw((4.8 * len(curves), 4.4), plot)


def _curve(axes: Any, curve: Curve, titles: Mapping[str, str]) -> None:
    counted = curve.over == "samples"
    x = [int(p) for p in curve.points] if counted else list(range(len(curve.points)))
    for number, (name, values) in enumerate(curve.values.items()):
        known = [(a, v) for a, v in zip(x, values, strict=True) if v is not None]
        label = titles.get(name, name) if known else f"{titles.get(name, name)}: undefined"
        axes.plot(
            [a for a, _ in known], [v for _, v in known], marker="o", markersize=3, label=label,
            **looks(number),
        )  # fmt: skip
    if counted:
        axes.set_xticks(x, curve.points)
        axes.set_xlabel("samples")
    else:
        axes.set_xticks(x, _criteria(curve), rotation=25, ha="right", rotation_mode="anchor")
        axes.set_xlabel("criterion, with the accuracy it gives")
    axes.set_ylabel("AUROC")
    axes.grid(alpha=0.3)


def _criteria(curve: Curve) -> list[str]:
    """Each criterion with the base accuracy under it."""
    if not curve.base_accuracy:
        return list(curve.points)
    both = zip(curve.points, curve.base_accuracy, strict=True)
    return [f"{point}\naccuracy {base:.3f}" for point, base in both]


def draw_examples(groups: Mapping[str, Sequence[Example]], method: str) -> Drawing:
    """Fig. 4: queries in successes (green) and failures (red), a row of at most three per group."""
    Rectangle = extra("matplotlib.patches", "plots", "report").Rectangle
    rows = [
        (group, kind == FAILURE, list(examples)[:IN_A_ROW])
        for kind, found in sections(groups)
        for group, examples in found
    ]

    def plot(figure: Any) -> None:
        parts = np.atleast_1d(figure.subfigures(max(1, len(rows)), 1))[: len(rows)]
        for part, (group, failed, examples) in zip(parts, rows, strict=True):
            word = "failure" if failed else "success"
            ground = Rectangle((0, 0.01), 1, 0.98, color=TINTS[failed], zorder=-1)
            part.add_artist(ground).set_transform(part.transSubfigure)
            title = f"{group} – {word} of {method}"
            part.text(0.5, 0.95, title, fontsize=10, fontweight="bold", ha="center", va="top")
            for number, example in enumerate(examples):
                _card(part, number, example)

    return draw((11.0, max(1.0, 1.9 * len(rows))), plot)


def _card(part: Any, number: int, example: Example) -> None:
    """Picture on the left, words on the right; in fractions of the group's row."""
    left, width = number / IN_A_ROW, 1 / IN_A_ROW
    if example.picture:
        axes = part.add_axes((left + 0.005, 0.05, 0.27 * width, 0.74))
        axes.imshow(_pixels(example.picture), interpolation="none")
        axes.set_axis_off()
        axes.set_anchor("N")
    part.text(
        left + 0.3 * width, 0.79, "\n".join(_words(example)), fontsize=7.5, va="top", ha="left",
        linespacing=1.35, color=INK,
    )  # fmt: skip


def _words(example: Example) -> list[str]:
    verdict = "wrong" if example.wrong else "right"
    said = ", ".join(f"{count} × {text}" for text, count in example.samples)
    u, p, m0, evidence, ntl = numbers(example)
    return [
        *lines_of(example.question, 2),
        *lines_of(f"answer ({verdict}): {example.answer}", 1),
        *lines_of(f"references: {' / '.join(dict.fromkeys(example.references))}", 1),
        *lines_of(f"samples: {said}", 2),
        u,
        f"{p}   {ntl}",
        f"{m0}   {evidence}",
        f"decision: {example.decision or '–'}{f' ({example.reason})' if example.reason else ''}",
    ]


def lines_of(text: str, most: int) -> list[str]:
    """At most so many lines, cut with an ellipsis."""
    return textwrap.wrap(plain(text), WIDTH, max_lines=most, placeholder=" …")


def _pixels(picture: bytes) -> Any:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
