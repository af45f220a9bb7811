"""Stage report: plots as SVG files and one page that shows them with example queries."""

from __future__ import annotations

import base64
import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.data.images import load_image
from fusevlm.errors import InputError
from fusevlm.pipeline.data import TEST, read_asked
from fusevlm.pipeline.evaluate import read_predictions, read_results
from fusevlm.pipeline.methods import FUSE, GUARANTEED, group_of
from fusevlm.pipeline.run import Work
from fusevlm.render.page import Example, render_page
from fusevlm.render.plots import Line, draw_plots
from fusevlm.store import save
from fusevlm.store.generations import read_generations
from fusevlm.store.runs import require
from fusevlm.types import Samples

PAGE = "index.html"
SIDE = 160  # pixels of an example's picture
MOST_LINES = 8  # in one plot


def make(work: Work) -> dict[str, int]:
    """Draw, and write the page."""
    results, table = read_results(work.run), read_predictions(work.run)
    methods = list(results["slices"][0]["methods"])
    wrong = np.array(table["wrong"], dtype=np.bool_)
    lines = {
        name: Line(np.array(table[f"{name}.u"]), np.array(table[f"{name}.p_wrong"]))
        for name in methods
    }
    plots = draw_plots({name: lines[name] for name in drawn(results)}, wrong)
    folder = work.folder("report")
    for name, svg in plots.items():
        save(folder / f"{name}.svg", svg.encode())
    shown = next((n for n in methods if group_of(n) == FUSE), methods[0])
    rows = spread(lines[shown].u, work.config.report.examples)
    examples = _examples(work.run, table, shown, rows)
    page = render_page(work.config.name, results, plots, examples, shown)
    save(folder / PAGE, page.encode())
    return {"plots": len(plots), "examples": len(examples)}


def drawn(results: dict[str, Any]) -> list[str]:
    """The methods that plots show: all, or where they are many FUSE and the best of the others."""
    figures = results["slices"][0]["methods"]
    if len(figures) <= MOST_LINES:
        return list(figures)

    def place(name: str) -> tuple[bool, float]:
        auroc = figures[name]["auroc"]
        return group_of(name) != FUSE, -auroc["estimate"] if auroc else 0.0

    return sorted(figures, key=place)[:MOST_LINES]


def spread(u: Any, count: int) -> list[int]:
    """Rows at evenly spaced ranks of ``u``, from sure to unsure."""
    order = np.argsort(u, kind="stable")
    ranks = np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))
    return [int(order[rank]) for rank in ranks]


def ntl(samples: Samples) -> float | None:
    """Next-token likelihood: the mean probability of the tokens of all sampled answers."""
    if samples.token_logprobs is None:
        return None
    return float(np.mean(np.exp(np.concatenate(samples.token_logprobs))))


def _examples(
    run: Path, table: dict[str, list[Any]], method: str, rows: list[int]
) -> list[Example]:
    wanted = {table["query_id"][row] for row in rows}
    queries = {q.id: q for q in read_asked(run, (TEST,)) if q.id in wanted}
    said = {
        g.query_id: g.samples
        for g in read_generations(require(run, "sample"))
        if g.query_id in wanted and g.samples is not None
    }
    found = []
    for row in rows:
        query_id = table["query_id"][row]
        query, samples = queries[query_id], said[query_id]
        answered = table[f"{method}.answered_{GUARANTEED}"][row]
        found.append(
            Example(
                image=thumbnail(query.images[0]) if query.images else "",
                question=query.question,
                references=query.references,
                answer=samples.answer or "",
                wrong=table["wrong"][row],
                samples=Counter(samples.texts).most_common(),
                u=table[f"{method}.u"][row],
                ntl=ntl(samples),
                p_wrong=table[f"{method}.p_wrong"][row],
                decision="answer" if answered else "abstain",
            )
        )
    return found


def thumbnail(image: Any) -> str:
    """A small PNG as a data URI; empty where the picture is gone."""
    try:
        picture = load_image(image)
    except InputError:
        return ""
    picture.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
