"""Stage report: every figure as SVG and PDF, and one page that shows them with example queries."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.config import Config
from fusevlm.data.images import load_image
from fusevlm.errors import InputError
from fusevlm.pipeline.data import TEST, read_asked
from fusevlm.pipeline.evaluate import read_predictions, read_results
from fusevlm.pipeline.figures import save_drawings, titles_of
from fusevlm.pipeline.methods import EMPIRICAL, FUSE, GUARANTEED, group_of
from fusevlm.pipeline.run import Work
from fusevlm.render.examples import Example, choose
from fusevlm.render.figures import draw_against_ntl, draw_examples
from fusevlm.render.page import TITLES, render_page
from fusevlm.render.plots import Drawing, Line, draw_plots
from fusevlm.scores.likelihood import ntl
from fusevlm.store import save
from fusevlm.store.generations import read_generations
from fusevlm.store.runs import require
from fusevlm.types import Queries, Query, Samples

PAGE = "index.html"
SIDE = 160  # pixels of an example's picture
MOST_LINES = 8  # in one plot
USUAL = "g_nll"  # drawn beside the method of choice where it was compared
NO_NTL = "the model gives no log-probabilities"


def make(work: Work) -> dict[str, int]:
    """Draw, and write the page."""
    check_report(work.config)
    results, table = read_results(work.run), read_predictions(work.run)
    settings = work.config.report
    method = of_choice(settings.method, results)
    names, left_out = drawn(method, settings.beside, results)
    titles = titles_of(names)
    wrong = np.array(table["wrong"], dtype=np.bool_)
    lines = {
        titles[name]: Line(np.array(table[f"{name}.u"]), np.array(table[f"{name}.p_wrong"]))
        for name in names
    }
    u = lines[titles[method]].u
    likely, rows = read_ntl(work.run, table["query_id"]), choose(u, wrong, settings.examples)
    groups = _examples(work.run, table, method, rows, likely)
    wanted = settings.figures or tuple(TITLES)
    drawings: dict[str, Drawing] = {}
    if likely is None:
        left_out["fuse-ntl"] = NO_NTL
    elif "fuse-ntl" in wanted:
        drawings["fuse-ntl"] = draw_against_ntl(titles[method], u, likely, wrong)
    drawings |= draw_plots(lines, wrong, wanted)
    if any(groups.values()) and "qualitative" in wanted:
        drawings["qualitative"] = draw_examples(groups, titles[method])
    folder = work.folder("report")
    svgs = save_drawings(folder, drawings, pdf=settings.pdf)
    page = render_page(
        work.config.name, results, svgs, groups, titles[method], left_out, pdf=settings.pdf
    )
    save(folder / PAGE, page.encode())
    return {"figures": len(drawings), "examples": sum(map(len, groups.values()))}


def check_report(config: Config) -> None:
    """Refuse a figure that is not known, and a method to draw that the config does not compare."""
    for name in config.report.figures:
        checks.known(name, TITLES, "report.figures:")
    for key in ("method", "beside"):
        wanted = getattr(config.report, key)
        for name in [wanted] * bool(wanted) if isinstance(wanted, str) else wanted:
            checks.known(name, config.calibrate.names(), f"report.{key}: among the methods,")


def of_choice(wanted: str, results: Mapping[str, Any]) -> str:
    """The method that examples and Fig. 1 are of: the named one, or the first form of FUSE."""
    methods: list[str] = list(results["slices"][0]["methods"])
    if not wanted:
        return next((n for n in methods if group_of(n) == FUSE), methods[0])
    if wanted in results["absent"]:
        raise InputError(
            f"report.method is {wanted!r}, which is absent: {results['absent'][wanted]}. Choose "
            f"another: --set report.method=NAME."
        )
    return checks.known(wanted, methods, "report.method: among the methods,")


def drawn(
    method: str, beside: Sequence[str], results: Mapping[str, Any]
) -> tuple[list[str], dict[str, str]]:
    """The methods in the plots, that of choice first; and why a named one is not there.

    Beside it stand the named ones, or else FUSE, G-NLL and the best of the others by AUROC.
    """
    figures, absent = results["slices"][0]["methods"], results["absent"]
    if beside:
        left_out = {name: absent[name] for name in beside if name in absent}
        there = [n for n in beside if n not in absent]
        for name in there:
            checks.known(name, figures, "report.beside: among the methods,")
        return list(dict.fromkeys([method, *there])), left_out

    def place(name: str) -> tuple[bool, bool, bool, float]:
        auroc = figures[name]["auroc"]
        apart = group_of(name) != FUSE
        return name != method, apart, name != USUAL, -auroc["estimate"] if auroc else 0.0

    return sorted(figures, key=place)[:MOST_LINES], {}


def read_ntl(run: Path, ids: Sequence[str]) -> FloatArray | None:
    """Next-token likelihood of these queries: the mean probability of all sampled tokens."""
    wanted = set(ids)
    found: dict[str, float] = {}
    for generation in read_generations(require(run, "sample")):
        said = generation.samples
        if generation.query_id in wanted and said is not None:
            if said.token_logprobs is None:
                return None
            one = Queries([generation.query_id], [said])
            found[generation.query_id] = 1.0 - float(ntl(one)[0])
    return np.array([found[i] for i in ids])


def _examples(
    run: Path,
    table: Mapping[str, Sequence[Any]],
    method: str,
    groups: Mapping[str, Sequence[int]],
    likely: FloatArray | None,
) -> dict[str, list[Example]]:
    """The chosen rows of each group with all that is shown of them."""
    wanted = {table["query_id"][row] for rows in groups.values() for row in rows}
    queries = {q.id: q for q in read_asked(run, (TEST,)) if q.id in wanted}
    said: dict[str, Samples] = {
        g.query_id: g.samples
        for g in read_generations(require(run, "sample"))
        if g.query_id in wanted and g.samples is not None
    }
    own = {k.removeprefix(f"{method}."): v for k, v in table.items() if k.startswith(f"{method}.")}
    order = np.argsort(np.array(own["u"]), kind="stable")
    ranks = {int(row): rank for rank, row in enumerate(order, 1)}

    def example(row: int) -> Example:
        query_id = table["query_id"][row]
        facts = {name: column[row] for name, column in own.items()}
        return Example(
            **_shown(queries[query_id], said[query_id]),
            wrong=table["wrong"][row],
            u=facts["u"],
            rank=ranks[row],
            of=len(ranks),
            p_wrong=facts["p_wrong"],
            m0=facts.get("m0"),
            evidence=facts.get("evidence"),
            ntl=None if likely is None else float(likely[row]),
            decision=_decision(facts)[0],
            reason=_decision(facts)[1],
        )

    return {group: [example(row) for row in rows] for group, rows in groups.items()}


def _shown(query: Query, samples: Samples) -> dict[str, Any]:
    return {
        "picture": thumbnail(query.images[0]) if query.images else b"",
        "question": query.question,
        "references": query.references,
        "answer": samples.answer or "",
        "samples": Counter(samples.texts).most_common(),
    }


def _decision(facts: Mapping[str, Any]) -> tuple[str, str]:
    """With the guarantee, or by the empirical rule where the method has no guarantee; and why."""
    for rule in (GUARANTEED, EMPIRICAL):
        answered = facts.get(f"answered_{rule}")
        if answered is not None:
            return ("answer" if answered else "abstain"), facts[f"reason_{rule}"]
    return "", ""


def thumbnail(image: Any) -> bytes:
    """A small PNG; empty where the picture is gone."""
    try:
        picture = load_image(image)
    except InputError:
        return b""
    picture.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return buffer.getvalue()
