"""Plots as SVG and PDF, the same bytes for the same data (extra ``report``)."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fusevlm import metrics
from fusevlm.checks import BoolArray, FloatArray, extra
from fusevlm.errors import UndefinedMetricError

INK = "#1b1f24"
COLORS = ("#2f6fde", "#d9822b", "#2b9a66", "#9b51c9", "#c8402f", "#6d7680", "#b59000", "#008a9e")
RIGHT, WRONG = COLORS[0], COLORS[1]
DASHES = ("-", "--", "-.", ":")
STYLE = {
    "svg.hashsalt": "fusevlm",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # letters stay letters
    "text.parse_math": False,  # names and questions may hold a $
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
UNDATED = {"Creator": None, "Producer": None, "CreationDate": None}  # of a PDF
N_BINS = 10
N_BARS = 20  # of a histogram
FEW = 4  # methods in a plot that more would make unreadable
MOST_POINTS = 4096  # of a line, and rows of its numbers: of more, so many evenly spaced ones


@dataclass(frozen=True, eq=False)
class Line:
    """A method's scores and probabilities on the test queries."""

    u: FloatArray
    p_wrong: FloatArray


@dataclass(frozen=True, eq=False)
class Drawing:
    """One finished figure; the same bytes each time it is asked for."""

    figure: Any

    def svg(self) -> str:
        """As text that a page can hold."""
        return self._saved("svg", {"Date": None}).decode()

    def pdf(self) -> bytes:
        """With its letters embedded, for LaTeX."""
        return self._saved("pdf", UNDATED)

    def png(self) -> bytes:
        """For slides and chats, at 200 points an inch on white."""
        return self._saved("png", {"Software": None}, transparent=False, dpi=200)

    def _saved(self, kind: str, metadata: Mapping[str, None], **options: Any) -> bytes:
        out = io.BytesIO()
        with _styled(), warnings.catch_warnings():
            # a script that the font lacks: readable in the SVG, boxes in the PDF
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            chosen = {"transparent": True, **options}
            self.figure.savefig(out, format=kind, metadata=metadata, **chosen)
        return out.getvalue()


def _styled() -> Any:
    return extra("matplotlib", "plots", "report").rc_context(STYLE)


def draw_plots(
    lines: Mapping[str, Line], wrong: BoolArray, names: Collection[str] | None = None
) -> dict[str, Drawing]:
    """The named plots of PLOTS, or all; ``lines`` by their titles, the method of choice first."""
    return {
        name: draw(size, partial(plot, lines=lines, wrong=wrong))
        for name, (plot, size) in PLOTS.items()
        if names is None or name in names
    }


def plot_data(name: str, lines: Mapping[str, Line], wrong: BoolArray) -> dict[str, list[Any]]:
    """The numbers of a plot as columns, a row per point; nothing where it is undefined."""
    found: dict[str, list[Any]] = {}
    try:
        for title, line in lines.items():
            points = thinned(DATA[name](line, wrong))
            size = len(next(iter(points.values())))
            for key, values in {"method": [title] * size, **points}.items():
                found.setdefault(key, []).extend(np.asarray(values).tolist())
    except UndefinedMetricError:
        return {}
    return found


def thinned(points: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of equal length with at most :data:`MOST_POINTS` rows, the first and last among them.

    A curve along shares moves by less than 1/4096 between two of them.
    """
    found = {key: np.asarray(values) for key, values in points.items()}
    size = len(next(iter(found.values())))
    if size <= MOST_POINTS:
        return found
    places = np.round(np.linspace(0, size - 1, MOST_POINTS)).astype(np.int64)
    return {key: values[places] for key, values in found.items()}


def _plot(axes: Any, x: FloatArray, y: FloatArray, **look: Any) -> None:
    """A line."""
    axes.plot(*thinned({"x": x, "y": y}).values(), **look)


def draw(size: tuple[float, float], plot: Callable[[Any], None]) -> Drawing:
    """A figure of ``size`` inches that ``plot`` fills; what is undefined says so."""
    figures = extra("matplotlib.figure", "plots", "report")
    with _styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = figures.Figure(figsize=size, layout="constrained")
        try:
            plot(figure)
        except UndefinedMetricError as error:
            figure.clear()
            axes = figure.add_subplot(frameon=False, xticks=(), yticks=())
            axes.text(0.5, 0.5, f"undefined on these answers:\n{error}", ha="center", wrap=True)
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")  # laid out once for both formats
        return Drawing(figure)


def plain(text: str) -> str:
    """``text`` in one line, only what can be printed: anything else breaks an SVG."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def legend(figure: Any, axes: Any, columns: int = 2) -> None:
    """One legend under the whole figure, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8
    )


def looks(number: int) -> dict[str, Any]:
    """Colour and dashes of the method in this place; the method of choice is drawn thicker."""
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.5 if number else 2.2,
    }


def trimmed(values: FloatArray) -> FloatArray:
    """Values outside the 1st and 99th percentile at these, so that a few do not hide the rest."""
    return np.asarray(np.clip(values, *np.percentile(values, (1, 99))))


def split_histogram(axes: Any, values: FloatArray, wrong: BoolArray) -> None:
    """Densities of ``values`` for right and for wrong answers over the same bars."""
    low, high = float(values.min()), float(values.max())
    edges = np.linspace(low, high if high > low else low + 1.0, N_BARS + 1)
    for chosen, color, label in ((~wrong, RIGHT, "right"), (wrong, WRONG, "wrong")):
        axes.hist(
            values[chosen], edges, density=bool(chosen.any()), histtype="stepfilled", alpha=0.5,
            color=color, edgecolor=color, label=f"{label} answers ({int(chosen.sum())})",
        )  # fmt: skip
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def roc_lines(axes: Any, scores: Mapping[str, FloatArray], wrong: BoolArray) -> None:
    """A ROC curve per score, with its area in the legend."""
    for number, (name, u) in enumerate(scores.items()):
        curve = metrics.roc_curve(u, wrong)
        label = f"{name}: AUROC {metrics.auroc(u, wrong):.3f}"
        _plot(axes, curve.fpr, curve.tpr, label=label, **looks(number))
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.6)
    axes.set(xlabel="right answers flagged", ylabel="wrong answers flagged")


def _roc(figure: Any, lines: Mapping[str, Line], wrong: BoolArray) -> None:
    axes = figure.add_subplot()
    roc_lines(axes, {name: line.u for name, line in lines.items()}, wrong)
    legend(figure, axes, 1)


def _reliability(figure: Any, lines: Mapping[str, Line], wrong: BoolArray) -> None:
    """P(wrong) against the share that was wrong, of the first few methods; dots grow with their
    queries, and below is how often the first method says so.
    """
    axes, strip = figure.subplots(2, height_ratios=(5, 1), sharex=True)
    for number, (name, line) in enumerate(list(lines.items())[:FEW]):
        curve = metrics.reliability(line.p_wrong, wrong, n_bins=N_BINS)
        axes.plot(curve.mean_p, curve.error_rate, label=name, **looks(number))
        size = 4 + 60 * curve.count / len(wrong)
        axes.scatter(curve.mean_p, curve.error_rate, size, COLORS[number])
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.6)
    axes.set(ylabel="share that was wrong", xlim=(0, 1), ylim=(0, 1))
    first = next(iter(lines.values()))
    strip.hist(first.p_wrong, np.linspace(0, 1, 2 * N_BINS + 1), color=COLORS[0], alpha=0.5)
    strip.set(xlabel="P(wrong)", ylabel="queries")
    legend(figure, axes)


def _rejection(figure: Any, lines: Mapping[str, Line], wrong: BoolArray) -> None:
    axes = figure.add_subplot()
    for number, (name, line) in enumerate(lines.items()):
        curve = metrics.rejection_accuracy(line.u, wrong)
        label = f"{name}: AURAC {metrics.aurac(line.u, wrong):.3f}"
        _plot(axes, curve.rejection, curve.accuracy, label=label, **looks(number))
    axes.axhline(1.0 - float(wrong.mean()), color=INK, linewidth=0.6)
    axes.set(xlabel="share rejected", ylabel="accuracy of the rest")
    legend(figure, axes, 1)


def _risk(figure: Any, lines: Mapping[str, Line], wrong: BoolArray) -> None:
    axes = figure.add_subplot()
    for number, (name, line) in enumerate(lines.items()):
        curve = metrics.risk_coverage(line.u, wrong)
        label = f"{name}: AURC {metrics.aurc(line.u, wrong):.3f}"
        _plot(axes, curve.coverage, curve.risk, label=label, **looks(number))
    axes.axhline(float(wrong.mean()), color=INK, linewidth=0.6)
    axes.set(xlabel="coverage", ylabel="risk of the answered")
    legend(figure, axes, 1)


def _densities(figure: Any, lines: Mapping[str, Line], wrong: BoolArray) -> None:
    """u of right and wrong answers, a panel per method."""
    rows = -(-len(lines) // 2)
    panels = figure.subplots(rows, 2, squeeze=False).ravel()
    for axes, (name, line) in zip(panels, lines.items(), strict=False):
        split_histogram(axes, trimmed(line.u), wrong)
        axes.set_title(name)
    for axes in panels[len(lines) :]:
        axes.set_visible(False)
    legend(figure, figure.axes[0])


# name: its numbers, of one method
DATA: dict[str, Callable[[Line, BoolArray], Mapping[str, Any]]] = {
    "roc": lambda line, wrong: _fields(metrics.roc_curve(line.u, wrong), "fpr", "tpr"),
    "reliability": lambda line, wrong: _fields(
        metrics.reliability(line.p_wrong, wrong, n_bins=N_BINS), "mean_p", "error_rate", "count"
    ),
    "rejection-accuracy": lambda line, wrong: _fields(
        metrics.rejection_accuracy(line.u, wrong), "rejection", "accuracy"
    ),
    "risk-coverage": lambda line, wrong: _fields(
        metrics.risk_coverage(line.u, wrong), "coverage", "risk"
    ),
    "densities": lambda line, wrong: {"u": line.u, "wrong": wrong.astype(int)},
}


def _fields(curve: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(curve, name) for name in names}


# name: how it is drawn, and its size in inches
PLOTS: dict[str, tuple[Callable[..., None], tuple[float, float]]] = {
    "roc": (_roc, (4.6, 5.2)),
    "reliability": (_reliability, (4.6, 5.2)),
    "rejection-accuracy": (_rejection, (4.6, 5.2)),
    "risk-coverage": (_risk, (4.6, 5.2)),
    "densities": (_densities, (4.6, 5.2)),
}
