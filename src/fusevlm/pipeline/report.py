"""Stage report: every figure as a file, and one page to explore the run with."""

from __future__ import annotations

import base64
import io
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import __version__, checks
from fusevlm.checks import FloatArray
from fusevlm.config import as_toml
from fusevlm.data.images import load_image
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline.data import TEST, read_asked
from fusevlm.pipeline.evaluate import need_methods, open_predictions, read_results
from fusevlm.pipeline.figures import save_drawings, titles_of
from fusevlm.pipeline.methods import EMPIRICAL, FUSE, GUARANTEED, group_of
from fusevlm.pipeline.run import Work
from fusevlm.render import costs
from fusevlm.render.examples import Example, choose
from fusevlm.render.figures import draw_against_ntl, draw_examples
from fusevlm.render.page import (
    TITLES,
    causes_tables,
    costs_tables,
    files_of,
    headline,
    methods_table,
    render,
    slices_table,
)
from fusevlm.render.plots import PLOTS, Drawing, Line, draw_plots, plot_data
from fusevlm.scores.likelihood import ntl
from fusevlm.settings import Config
from fusevlm.store import runs, save
from fusevlm.store.generations import read_generations
from fusevlm.store.runs import commit, require
from fusevlm.store.tables import GROUP, StoredTable
from fusevlm.types import Queries, Query, Samples

PAGE = "index.html"
SIDE = 128  # pixels of a picture
MOST_PICTURES = 5_000_000  # bytes of all of them
MOST_LINES = 8  # in one plot
USUAL = "g_nll"  # drawn beside the method of choice where it was compared
MOST_ON_PAGE = 10_000  # test queries whose numbers the page holds
NO_NTL = "the model gives no log-probabilities"


def make(work: Work) -> dict[str, int]:
    """Draw, and write the page."""
    check_report(work.config)
    results, table = read_results(work.run), open_predictions(work.run)
    need_methods(table.names, results["slices"][0]["methods"], work.run)
    settings = work.config.report
    method = of_choice(settings.method, results)
    names, left_out = drawn(method, settings.beside, results)
    titles = titles_of(names)
    wrong = table.column("wrong").astype(np.bool_)
    lines, u = Lines(table, titles), table.column(f"{method}.u")
    likely, rows = likely_of(work.run, table), choose(u, wrong, settings.examples)
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
    data = {name: plot_data(name, lines, wrong) for name in drawings if name in PLOTS}
    prices = costs.points(results["rounds"], titles_of(names))
    if prices and "cost-coverage" in wanted:
        drawings["cost-coverage"] = costs.draw_costs(prices)
        data["cost-coverage"] = costs.columns(prices)
    folder = work.folder("report")
    kinds = save_drawings(folder, drawings, pdf=settings.pdf, data=data)
    page = run_page(work, results, table, method, kinds, left_out)
    save(folder / PAGE, page.encode())
    return {"figures": len(drawings), "examples": sum(map(len, groups.values()))}


class Lines(Mapping[str, Line]):
    """What methods said of the test queries, by their titles; read when it is looked at."""

    def __init__(self, table: StoredTable, titles: Mapping[str, str]) -> None:
        self.table, self.names = table, {title: name for name, title in titles.items()}

    def __getitem__(self, title: str) -> Line:
        name = self.names[title]
        return Line(self.table.column(f"{name}.u"), self.table.column(f"{name}.p_wrong"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


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


@dataclass(frozen=True, eq=False)
class Shown:
    """A test query with what was said to it."""

    query: Query
    samples: Samples


def read_shown(run: Path, ids: Sequence[str]) -> list[Shown]:
    """These test queries in order; of all others nothing is kept in memory."""
    wanted = set(ids)
    queries = {q.id: q for q in read_asked(run, (TEST,)) if q.id in wanted}
    said = {
        g.query_id: g.samples
        for g in read_generations(require(run, "sample"))
        if g.query_id in wanted and g.samples is not None
    }
    gone = [i for i in ids if i not in queries or i not in said]
    if gone:
        raise ArtefactError(f"{run} has no answered test query {gone[0]!r}. --redo evaluate.")
    return [Shown(queries[i], said[i]) for i in ids]


def _likely(asked: Sequence[Shown]) -> FloatArray | None:
    """Next-token likelihood of each query: the mean probability of all sampled tokens."""
    return _likelihood([one.query.id for one in asked], [one.samples for one in asked])


def _likelihood(ids: Sequence[str], samples: Sequence[Samples]) -> FloatArray | None:
    if any(said.token_logprobs is None for said in samples):
        return None
    return 1.0 - ntl(Queries(ids, samples))


def likely_of(run: Path, table: StoredTable) -> FloatArray | None:
    """Next-token likelihood of all test queries, some of them in memory at a time."""
    stored, found = read_generations(require(run, "sample")), []
    for block in table.blocks(GROUP, ["query_id"]):
        samples = []
        for query_id in block["query_id"]:
            own = next(g for g in stored if g.query_id == query_id)  # both are in one order
            assert own.samples is not None  # it did not fail
            samples.append(own.samples)
        likely = _likelihood(block["query_id"], samples)
        if likely is None:
            return None
        found.append(likely)
    return np.concatenate(found)


def _examples(
    run: Path,
    table: StoredTable,
    method: str,
    groups: Mapping[str, Sequence[int]],
    likely: FloatArray | None,
) -> dict[str, list[Example]]:
    """The chosen rows of each group with all that is shown of them."""
    chosen = sorted(row for rows in groups.values() for row in rows)
    if not chosen:
        return {group: [] for group in groups}
    own = [name for name in table.names if name.startswith(f"{method}.")]
    some = table.take(chosen, ["query_id", "wrong", *own])
    asked = read_shown(run, some["query_id"])
    order = np.argsort(table.column(f"{method}.u"), kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)

    def example(row: int) -> Example:
        at = chosen.index(row)
        query, samples = asked[at].query, asked[at].samples
        facts = {name.removeprefix(f"{method}."): some[name][at] for name in own}
        decision, reason = _decision(facts)
        return Example(
            picture=thumbnail(query.images[0], "PNG") if query.images else b"",
            question=query.question,
            references=query.references,
            answer=samples.answer or "",
            samples=Counter(samples.texts).most_common(),
            wrong=some["wrong"][at],
            u=facts["u"],
            rank=int(ranks[row]),
            of=len(ranks),
            p_wrong=facts["p_wrong"],
            m0=facts.get("m0"),
            evidence=facts.get("evidence"),
            ntl=None if likely is None else float(likely[row]),
            decision=decision,
            reason=reason,
        )

    return {group: [example(row) for row in rows] for group, rows in groups.items()}


def _decision(facts: Mapping[str, Any]) -> tuple[str, str]:
    """With the guarantee, or by the empirical rule where the method has no guarantee; and why."""
    for rule in (GUARANTEED, EMPIRICAL):
        answered = facts.get(f"answered_{rule}")
        if answered is not None:
            return ("answer" if answered else "abstain"), facts[f"reason_{rule}"]
    return "", ""


def thumbnail(image: Any, kind: str = "WEBP", side: int = SIDE) -> bytes:
    """A small picture; empty where it is gone."""
    try:
        picture = load_image(image)
    except InputError:
        return b""
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, format=kind, **({"quality": 60} if kind == "WEBP" else {}))
    return buffer.getvalue()


def on_page(size: int) -> list[int]:
    """Rows of the test queries whose numbers the page holds: all, or some drawn at random."""
    if size <= MOST_ON_PAGE:
        return list(range(size))
    drawn = np.random.default_rng(0).choice(size, MOST_ON_PAGE, replace=False)
    return [int(row) for row in np.sort(drawn)]


def run_page(
    work: Work,
    results: Mapping[str, Any],
    table: StoredTable,
    method: str,
    kinds: Mapping[str, Sequence[str]],
    left_out: Mapping[str, str],
) -> str:
    """The page of a run."""
    names = list(results["slices"][0]["methods"])
    titles = titles_of(names)
    settings = results["settings"]
    some = table.take(on_page(len(table)))
    asked = read_shown(work.run, some["query_id"])
    data = page_data(results, some, method, titles, asked, work.config)
    shown = {
        "name": work.config.name,
        "headline": headline(results, method, titles[method], work.config.sample.model),
        "calibration": results["calibration"],
        "sure": f"{1 - settings['delta']:g}",
        "intervals": (
            f"{settings['level']:.0%} bootstrap intervals over units (queries of one image). "
            f"Certified: the share of test queries answered with a risk that is promised. "
            f"Differences are paired."
        ),
        "methods": methods_table(results, titles, method),
        "slices": slices_table(results, titles),
        "causes": causes_tables(results.get("causes", {}), titles),
        "costs": costs_tables(results["rounds"]),
        "absent": results["absent"],
        "files": files_of(list(kinds), kinds),
        "left_out": {TITLES.get(key, key): why for key, why in left_out.items()},
        "gallery_note": _gallery_note(len(data["gallery"]), len(asked), titles[method])
        + _page_note(len(asked), len(table)),
        "made": made_by(work),
    }
    return render("report.html.j2", "report.js", data, shown)


def _gallery_note(shown: int, there: int, title: str) -> str:
    some = "" if shown == there else f" The {shown} most telling of {there} are kept here."
    return (
        f"What was asked, what was said, and why it is unsure, by {title}; bars are the share of "
        f"calibration queries with less of it.{some}"
    )


def _page_note(shown: int, there: int) -> str:
    if shown == there:
        return ""
    error = 1.96 * 0.5 / shown**0.5
    return (
        f" The charts, the slider and this gallery are of {shown} of the {there} test queries, "
        f"drawn at random (shares are right to ±{error:.3f}); the tables are of all."
    )


def page_data(
    results: Mapping[str, Any],
    table: Mapping[str, Sequence[Any]],
    method: str,
    titles: Mapping[str, str],
    asked: Sequence[Shown],
    config: Config,
) -> dict[str, Any]:
    """All numbers that the page's script works with, a list per column."""
    names = list(titles)
    rows = _telling(table, method, config.report.gallery)
    pictures = _pictures(asked, rows)

    def column(name: str) -> list[Any] | None:
        return _short(table[name]) if name in table else None

    return {
        "method": method,
        "methods": [{"name": name, "title": titles[name]} for name in names],
        "risk": results["settings"]["risk"],
        "risks": results["risks"],
        "rules": results["rules"],
        "auroc": {
            name: None if row["auroc"] is None else row["auroc"]["estimate"]
            for name, row in results["slices"][0]["methods"].items()
        },
        "id": list(table["query_id"]),
        "wrong": [int(one) for one in table["wrong"]],
        "question": [one.query.question for one in asked],
        "answer": [one.samples.answer or "" for one in asked],
        "references": [list(dict.fromkeys(one.query.references)) for one in asked],
        "samples": [Counter(one.samples.texts).most_common() for one in asked],
        "picture": pictures,
        "gallery": rows,
        "columns": {name: _names(asked, name) for name in config.evaluate.slices},
        "u": {name: column(f"{name}.u") for name in names},
        "p": {name: column(f"{name}.p_wrong") for name in names},
        "compared": {
            name: {
                # exact: it is compared with a threshold
                "u": _exact(table.get(f"{name}.u_guaranteed", table[f"{name}.u"])),
                "p": _exact(table.get(f"{name}.p_guaranteed", table[f"{name}.p_wrong"])),
            }
            for name in names
        },
        "novelty": {name: _exact(table.get(f"{name}.novelty")) for name in names},
        "own": _own(table, method),
        "costs": costs.points(results["rounds"], titles),
    }


def _exact(values: Any) -> list[float | None] | None:
    """As they are; None where there is no number."""
    if values is None:
        return None
    return [float(v) if v is not None and np.isfinite(v) else None for v in values]


def _short(values: Any) -> list[float | None]:
    """Five significant digits, for charts; None where there is no number."""
    return [None if v is None else float(f"{v:.5g}") for v in _exact(values) or []]


def _names(asked: Sequence[Shown], column: str) -> list[str]:
    return [str(one.query.metadata.get(column, "")) for one in asked]


def _own(table: Mapping[str, Sequence[Any]], method: str) -> dict[str, Any] | None:
    """Prior, likelihood and posterior of each query, and why it is unsure; None of a score."""
    if f"{method}.m0" not in table:
        return None
    m0, sigma0, evidence, intercept, slope, tau2, m_post, sigma_post = (
        np.array(table[f"{method}.{name}"], dtype=np.float64)
        for name in (
            "m0", "sigma0", "evidence", "intercept", "slope", "tau2", "m_post", "sigma_post",
        )
    )  # fmt: skip
    bars = [name for name in table if name.startswith(f"{method}.bar_")]
    size = len(m0)
    return {
        "m0": _short(m0),
        "sigma0": _short(sigma0),
        "u_hat": _short((evidence - intercept) / slope),
        "tau": _short(np.sqrt(tau2) / np.abs(slope)),
        "m_post": _short(m_post),
        "sigma_post": _short(sigma_post),
        "bars": {name.partition(".bar_")[2]: _short(table[name]) for name in bars},
        "cause": list(table.get(f"{method}.cause", [""] * size)),
        "why": list(table.get(f"{method}.why", [""] * size)),
    }


def _telling(table: Mapping[str, Sequence[Any]], method: str, most: int) -> list[int]:
    """Rows of the gallery in order; of too many those whose label surprises most."""
    wrong = np.array(table["wrong"], dtype=np.float64)
    surprise = np.abs(wrong - np.array(table[f"{method}.p_wrong"], dtype=np.float64))
    chosen = np.argsort(-surprise, kind="stable")[:most]
    return [int(row) for row in np.sort(chosen)]


def _pictures(asked: Sequence[Shown], rows: Sequence[int]) -> list[str]:
    """Data URLs of the gallery's pictures, smaller ones where all would be too much."""
    shown = [row for row in rows if asked[row].query.images]
    side, found = SIDE, {}
    for _ in range(4):
        found = {row: thumbnail(asked[row].query.images[0], side=side) for row in shown}
        total = sum(map(len, found.values()))
        if total <= MOST_PICTURES:
            break
        side = max(24, int(side * min(0.8, (MOST_PICTURES / total) ** 0.5)))
    urls = [""] * len(asked)
    for row, data in found.items():
        if data:
            urls[row] = f"data:image/webp;base64,{base64.b64encode(data).decode()}"
    return urls


def made_by(work: Work) -> dict[str, Any]:
    """Config, versions, seeds, date: how the numbers came about."""
    sampled, measured = (runs.read_manifest(work.run, stage) for stage in ("sample", "evaluate"))
    config = work.config
    facts = {
        "model": config.sample.model,
        "samples": f"{config.sample.n} a query, temperature {config.sample.temperature}",
        "seeds": f"sampling {config.sample.seed}, calibration {config.calibrate.seed}, "
        f"intervals {config.evaluate.seed}",
        "sampled on": "" if sampled is None else sampled.date,
        "measured with": "" if measured is None else f"fusevlm {measured.fusevlm}{commit()}",
        "Python": platform.python_version(),
        **{name: _version(name) for name in ("numpy", "scipy", "torch", "transformers")},
    }
    return {
        "fusevlm": __version__,
        "facts": {name: value for name, value in facts.items() if value},
        "config": as_toml(config),
    }


def _version(package: str) -> str:
    """Of an installed package, which is not imported for that."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
