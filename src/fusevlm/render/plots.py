"""Plots as SVG text, the same bytes for the same data (extra ``report``)."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fusevlm import metrics
from fusevlm.checks import BoolArray, FloatArray, extra
from fusevlm.errors import UndefinedMetricError
from fusevlm.render.results import Curve

INK = "#1b1f24"
COLORS = ("#2f6fde", "#d9822b", "#2b9a66", "#9b51c9", "#c8402f", "#6d7680", "#b59000", "#008a9e")
DASHES = ("-", "--", "-.", ":")
STYLE = {
    "svg.hashsalt": "fusevlm",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
N_BINS = 10


@dataclass(frozen=True, eq=False)
class Line:
    """A method's scores and probabilities on the test queries."""

    u: FloatArray
    p_wrong: FloatArray


def draw_plots(lines: Mapping[str, Line], wrong: BoolArray) -> dict[str, str]:
    """Name of each plot: its SVG."""
    return {name: _draw(plot, lines, wrong) for name, plot in PLOTS.items()}


def _draw(plot: Callable[..., None], lines: Mapping[str, Line], wrong: BoolArray) -> str:
    matplotlib, figures = _matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(figsize=(4.6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        try:
            plot(axes, lines, wrong)
            axes.legend(frameon=False, fontsize=8)
        except UndefinedMetricError:
            axes.text(0.5, 0.5, "undefined on these answers", ha="center")
        return _svg(figure)


def _matplotlib() -> tuple[Any, Any]:
    return extra("matplotlib", "plots", "report"), extra("matplotlib.figure", "plots", "report")


def _svg(figure: Any) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return out.getvalue()


def _looks(number: int) -> dict[str, Any]:
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.5,
    }


def _roc(axes: Any, lines: Mapping[str, Line], wrong: BoolArray) -> None:
    for number, (name, line) in enumerate(lines.items()):
        curve = metrics.roc_curve(line.u, wrong)
        axes.plot(curve.fpr, curve.tpr, label=name, **_looks(number))
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.6)
    axes.set(xlabel="right answers flagged", ylabel="wrong answers flagged")


def _reliability(axes: Any, lines: Mapping[str, Line], wrong: BoolArray) -> None:
    for number, (name, line) in enumerate(lines.items()):
        curve = metrics.reliability(line.p_wrong, wrong, n_bins=N_BINS)
        axes.plot(curve.mean_p, curve.error_rate, label=name, marker="o", markersize=3,
                  **_looks(number))  # fmt: skip
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.6)
    axes.set(xlabel="P(wrong)", ylabel="share that was wrong", xlim=(0, 1), ylim=(0, 1))


def _rejection(axes: Any, lines: Mapping[str, Line], wrong: BoolArray) -> None:
    for number, (name, line) in enumerate(lines.items()):
        curve = metrics.rejection_accuracy(line.u, wrong)
        axes.plot(curve.rejection, curve.accuracy, label=name, **_looks(number))
    axes.set(xlabel="share rejected", ylabel="accuracy of the rest")


def _risk(axes: Any, lines: Mapping[str, Line], wrong: BoolArray) -> None:
    for number, (name, line) in enumerate(lines.items()):
        curve = metrics.risk_coverage(line.u, wrong)
        axes.plot(curve.coverage, curve.risk, label=name, **_looks(number))
    axes.set(xlabel="coverage", ylabel="risk of the answered")


PLOTS: dict[str, Callable[..., None]] = {
    "roc": _roc,
    "reliability": _reliability,
    "rejection-accuracy": _rejection,
    "risk-coverage": _risk,
}


def curve_svg(curve: Curve) -> str:
    """AUROC against samples (a number line) or criteria (in order), a line per method."""
    matplotlib, figures = _matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = figures.Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        numbers = curve.over == "samples"
        x = [int(p) for p in curve.points] if numbers else list(range(len(curve.points)))
        for name, values in curve.values.items():
            known = [(a, v) for a, v in zip(x, values, strict=True) if v is not None]
            if known:
                axes.plot(*zip(*known, strict=True), marker="o", markersize=3, label=name)
        axes.set_xticks(x, curve.points, rotation=0 if numbers else 20)
        axes.set_xlabel("samples" if numbers else "criterion")
        axes.set_ylabel("AUROC")
        axes.set_title(curve.place)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, ncols=2)
        return _svg(figure)
