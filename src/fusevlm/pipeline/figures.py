"""Figures of runs and benches: what they are called, where they are written, and their index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusevlm import store
from fusevlm.pipeline.methods import title_of
from fusevlm.render.figures import draw_curves
from fusevlm.render.plots import Drawing, plain
from fusevlm.render.results import Curve, Results
from fusevlm.store.files import slug
from fusevlm.store.tables import csv_bytes

KINDS = ("svg", "png", "pdf", "csv")


def titles_of(names: Iterable[str]) -> dict[str, str]:
    """What a legend calls each method; where two titles are one, their names."""
    names = list(names)
    titles = {name: plain(title_of(name)) for name in names}
    shared = list(titles.values())
    return {n: title if shared.count(title) == 1 else n for n, title in titles.items()}


def save_drawings(
    folder: Path,
    drawings: Mapping[str, Drawing],
    *,
    pdf: bool = True,
    data: Mapping[str, Mapping[str, Sequence[Any]]] | None = None,
) -> dict[str, list[str]]:
    """Each figure as NAME.svg, .png and, if wanted, .pdf, its numbers as .csv; the endings."""
    found: dict[str, list[str]] = {}
    for name, drawing in drawings.items():
        made = {"svg": drawing.svg().encode(), "png": drawing.png()}
        made |= {"pdf": drawing.pdf()} if pdf else {}
        columns = (data or {}).get(name)
        if columns:
            rows = list(zip(*columns.values(), strict=True))
            made["csv"] = csv_bytes(list(columns), rows)
        for kind, payload in made.items():
            store.save(folder / f"{name}.{kind}", payload)
        found[name] = list(made)
    return found


def draw_bench(curves: Sequence[Curve]) -> dict[str, Drawing]:
    """The curves of every place: each alone, and where there are several all in one (Fig. 3)."""
    found: dict[str, Drawing] = {}
    for place in dict.fromkeys(curve.place for curve in curves):
        own = [curve for curve in curves if curve.place == place]
        titles = titles_of(name for name in own[0].values)
        parts = [[curve] for curve in own] + ([own] if len(own) > 1 else [])
        for part in parts:
            name = "-".join([slug(place), *(curve.over for curve in part)])
            found[name] = draw_curves(part, titles)
    return found


def write_bench(results: Results, out: Path) -> str:
    """Write the curves; the index of all figures, those of the places' reports too, in Markdown."""
    drawings = draw_bench(results.curves)
    found = [
        f"{name}.{kind}" for name, kinds in save_drawings(out, drawings).items() for kind in kinds
    ]
    for place in results.places:
        report = Path(slug(place.name)) / "report"
        files = sorted(path for kind in KINDS for path in (out / report).glob(f"*.{kind}"))
        found += [str(report / path.name) for path in files]
    lines = [f"- [{name}]({name})" for name in found]
    return "\n".join(["## Figures\n", *lines, ""]) if lines else ""
