"""A benchmark from its config to its results: stages up to the scores, then all methods."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import __version__, metrics, store
from fusevlm.config import Config
from fusevlm.data.correctness import is_wrong
from fusevlm.errors import ArtefactError, InputError
from fusevlm.logs import library_quiet
from fusevlm.metrics import Difference, Interval
from fusevlm.pipeline import curves
from fusevlm.pipeline.ablations import ABLATIONS, Split
from fusevlm.pipeline.bench_compare import Data, best_baseline, compare, group_of
from fusevlm.pipeline.bench_config import Bench, BenchConfig
from fusevlm.pipeline.bench_results import Cell, Curve, Place, Results, Row, as_tree
from fusevlm.pipeline.run import Progress, run_stages
from fusevlm.pipeline.score import read_inputs
from fusevlm.render import curves as plots
from fusevlm.render import tables
from fusevlm.scores import SCORES, compute_scores
from fusevlm.store.runs import read_manifest, save, save_json

TO_SCORES = ("data", "sample", "embed", "adapter", "semantics", "score")
KIND, FOLDER, FILE, VERSION = "fusevlm.bench", "compare", "compare.json", 1
CLUSTERS = {
    "string": "normalised-string equality",
    "nli": "bidirectional entailment",
    "sentences": "sentence-encoder similarity",
    "none": "none",
}
Say = Callable[[str], None]
Progresses = Callable[[str], Progress]


@dataclass(frozen=True)
class Compared:
    """What was found at one place, and from what: kept, so that a crash costs one place at most."""

    key: str
    place: Place
    cells: dict[str, Cell]
    curves: list[Curve]


_CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (Compared, Place, Cell, Curve, Interval, Difference)
}


def run_bench(
    bench: Bench,
    out: Path,
    *,
    redo: str | None = None,
    say: Say = lambda text: None,
    progress: Progresses = lambda what: lambda done, total: None,
    redo_command: Callable[[str], str] = lambda stage: f"fusevlm bench CONFIG --redo {stage}",
) -> Results:
    """Everything a benchmark asks for; tables, curves and JSON are written to ``out``."""
    found = {}
    for name, config in bench.places.items():
        say(f"== {name}")
        run = out / slug(name)
        for stage in TO_SCORES:
            run_stages(
                run, config, only=stage, redo=redo if redo == stage else None, say=say,
                progress=progress, redo_command=redo_command,
            )  # fmt: skip
        found[name] = _compared(run, name, config, bench.compare, progress)
    results = _results(bench, found)
    write(results, out)
    return results


def slug(name: str) -> str:
    """A folder name."""
    return "".join(c if c.isalnum() or c in "-." else "_" for c in name)


def _compared(
    run: Path, name: str, config: Config, wanted: BenchConfig, progress: Progresses
) -> Compared:
    manifest = read_manifest(run, "score")
    assert manifest is not None
    facts = [__version__, manifest.digest, asdict(wanted), asdict(config.evaluate)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    try:
        kept: Compared = store.load_object(run / FOLDER, FILE, KIND, VERSION, _CLASSES, {})
        if kept.key == key:
            return kept
    except ArtefactError:
        pass  # none yet, or of another version
    made = compare_place(run, name, config, wanted, key, progress)
    store.save_object(run / FOLDER, FILE, KIND, VERSION, made)
    return made


def compare_place(
    run: Path, name: str, config: Config, wanted: BenchConfig, key: str, progress: Progresses
) -> Compared:
    """All rows and curves of one dataset and model."""
    scored = read_inputs(run, config)
    inputs, s = scored.inputs, scored.s
    assert inputs.fit is not None
    assert inputs.wrong is not None
    fit, wrong = inputs.fit, inputs.wrong
    test = np.setdiff1d(np.arange(len(inputs)), fit)
    columns, missing, seconds = timed_scores(inputs, wanted.scores or tuple(SCORES))
    judging = config.evaluate
    splits = [Split([inputs.samples[i] for i in k], s[k], wrong[k]) for k in (fit, test)]
    data = Data(
        splits[0],
        splits[1],
        {name: column[fit] for name, column in columns.items()},
        {name: column[test] for name, column in columns.items()},
        [scored.clusters[i] for i in test],
    )
    cells = compare(data, judging, wanted.rows, progress("compare"))
    for score, own in seconds.items():
        cells[score] = replace(cells[score], seconds=own)
    cells |= {score: Cell(missing=reason) for score, reason in missing.items()}
    with library_quiet():
        base = metrics.bootstrap(
            "base_accuracy", s[test], wrong[test], clusters=data.clusters,
            n_boot=judging.bootstrap, level=judging.level, seed=judging.seed,
        )  # fmt: skip
    place = Place(
        name, len(fit), len(test), scored.n_failed, base,
        best_baseline({n: cells[n] for n in columns}), CLUSTERS[config.semantics.clusters],
    )  # fmt: skip
    found = []
    if wanted.generations:
        found.append(
            curves.over_generations(
                name, inputs, s, wanted.generations, wanted.curves, progress("generations")
            )
        )
    if wanted.criteria:
        labels, left_out = labels_by(scored.references, scored.answers, wanted.criteria)
        found.append(curves.over_criteria(name, inputs, s, labels, wanted.curves, left_out))
    return Compared(key, place, cells, found)


def timed_scores(
    inputs: Any, names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str], dict[str, float]]:
    """Each score by itself with the seconds it took, and why the others are missing."""
    columns: dict[str, Any] = {}
    missing: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for name in names:
        start = time.perf_counter()
        found, reasons = compute_scores(inputs, [name])
        columns |= found
        missing |= reasons
        if name in found:
            seconds[name] = time.perf_counter() - start
    return columns, missing, seconds


def labels_by(
    references: Sequence[Sequence[str]],
    answers: Sequence[str],
    criteria: Sequence[tuple[str, float | None]],
) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """Wrong or not by each criterion that these references allow, and why not by the others."""
    found, left_out = [], {}
    for criterion, level in criteria:
        title = criterion if level is None else f"{criterion} ≥ {level:g}"
        try:
            wrong = [
                is_wrong(answer, right, criterion, level)
                for answer, right in zip(answers, references, strict=True)
            ]
        except InputError as error:  # such as VQA accuracy with one reference
            left_out[title] = str(error)
            continue
        found.append((title, np.array(wrong)))
    return found, left_out


def _results(bench: Bench, found: Mapping[str, Compared]) -> Results:
    first = next(iter(found.values()))
    rows = []
    for name in first.cells:
        cells = {place: compared.cells[name] for place, compared in found.items()}
        if name in SCORES:
            rows.append(Row(name, SCORES[name].title, "Baselines", cells, SCORES[name].note))
            continue
        row = ABLATIONS[name]
        note = f"ranks as {ABLATIONS[row.equals].title}: {row.reason}" if row.equals else ""
        title = row.title if row.name in ("paper", "practical") else f"{row.title} ({row.preset})"
        rows.append(Row(name, title, group_of(row), cells, note))
    return Results(
        bench.name,
        [compared.place for compared in found.values()],
        rows,
        [curve for compared in found.values() for curve in compared.curves],
    )


def write(results: Results, out: Path) -> None:
    """results.json, .md, .csv, .tex and one SVG per curve."""
    save_json(out / "results.json", as_tree(results))
    save(out / "results.md", tables.markdown(results).encode())
    save(out / "results.csv", tables.comma_separated(results).encode())
    save(out / "results.tex", tables.latex(results).encode())
    for curve in results.curves:
        name = f"{slug(curve.place)}-{curve.over}.svg"
        save(out / name, plots.curve_svg(curve).encode())
