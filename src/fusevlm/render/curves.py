"""Curves of a benchmark as SVG."""

from __future__ import annotations

import io
from typing import Any

from fusevlm import checks
from fusevlm.pipeline.bench_results import Curve

STYLE: Any = {"svg.hashsalt": "fusevlm", "svg.fonttype": "none", "font.size": 9}


def curve_svg(curve: Curve) -> str:
    """AUROC against generations (a number line) or criteria (in order), a line per method."""
    checks.extra("matplotlib", "the benchmark's plots", "report")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.subplots()
        numbers = curve.over == "generations"
        x = [int(p) for p in curve.points] if numbers else list(range(len(curve.points)))
        for name, values in curve.values.items():
            known = [(a, v) for a, v in zip(x, values, strict=True) if v is not None]
            if known:
                axes.plot(*zip(*known, strict=True), marker="o", markersize=3, label=name)
        axes.set_xticks(x, curve.points, rotation=0 if numbers else 20)
        axes.set_xlabel("generations" if numbers else "criterion")
        axes.set_ylabel("AUROC")
        axes.set_title(curve.place)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7, ncols=2)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
