"""AUROC over the number of samples and over criteria of correctness."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fusevlm import metrics
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.data.correctness import is_wrong
from fusevlm.errors import FuseError, InputError, library_quiet
from fusevlm.pipeline.methods import find_method, fit_method, scores_of_methods, stackable
from fusevlm.render.results import Curve
from fusevlm.scores import SCORES, compute_scores
from fusevlm.settings import CalibrateConfig
from fusevlm.types import Queries

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def over_samples(
    place: str,
    queries: Queries,
    counts: Sequence[int],
    methods: Sequence[str],
    config: CalibrateConfig,
    progress: Progress = lambda *_: None,
) -> Curve:
    """AUROC of each method on the test queries from their first n samples: nested subsamples."""
    most = min(len(q) for q in queries.samples)
    used = [n for n in counts if n <= most]
    rows = []
    for done, n in enumerate(used):
        progress(done, len(used))
        rows.append(aurocs(queries.first(n), methods, config))
    progress(len(used), len(used))
    return Curve(place, "samples", [str(n) for n in used], _by_method(methods, rows))


def over_criteria(
    place: str,
    queries: Queries,
    criteria: Sequence[tuple[str, float | None]],
    methods: Sequence[str],
    config: CalibrateConfig,
) -> Curve:
    """AUROC of each method when right and wrong are told by other criteria."""
    labels, left_out = labels_by(queries, criteria)
    rows = [aurocs(replace(queries, wrong=wrong), methods, config) for _, wrong in labels]
    return Curve(
        place,
        "criteria",
        [name for name, _ in labels],
        _by_method(methods, rows),
        [1.0 - float(wrong[queries.test].mean()) for _, wrong in labels],
        left_out,
    )


def labels_by(
    queries: Queries, criteria: Sequence[tuple[str, float | None]]
) -> tuple[list[tuple[str, BoolArray]], dict[str, str]]:
    """Wrong or not by each criterion that the references allow, and why not by the others."""
    found, left_out = [], {}
    for criterion, level in criteria:
        title = criterion if level is None else f"{criterion} ≥ {level:g}"
        try:
            wrong = [
                is_wrong(said.answer or "", right, criterion, level)
                for said, right in zip(queries.samples, queries.references or (), strict=True)
            ]
        except InputError as error:  # such as VQA accuracy with one reference
            left_out[title] = str(error)
            continue
        found.append((title, np.array(wrong, dtype=np.bool_)))
    return found, left_out


def aurocs(
    queries: Queries, methods: Sequence[str], config: CalibrateConfig
) -> dict[str, float | None]:
    """AUROC of each method on the test queries, fitted on the others."""
    rows = [find_method(name, config) for name in methods]
    with library_quiet():
        columns, _ = compute_scores(queries, scores_of_methods(rows, stackable(queries)))
    kept = {name: values for name, values in queries.columns.items() if name not in SCORES}
    queries = replace(queries, columns=kept | columns)  # no score of more samples, or other labels
    known, new = queries.split()
    found = {n: auroc_or_none(c[queries.test], new.wrong) for n, c in columns.items()}
    for name in methods:
        if name not in SCORES:
            try:
                with library_quiet():
                    u = fit_method(name, known, config).apply(new).u
            except FuseError as error:
                size = len(queries.samples[0])
                logger.warning("%s has no AUROC from %d samples: %s", name, size, error)
                continue
            found[name] = auroc_or_none(u, new.wrong)
    return found


def auroc_or_none(u: FloatArray, wrong: BoolArray) -> float | None:
    """AUROC where both classes occur."""
    return float(metrics.auroc(u, wrong)) if wrong.any() and not wrong.all() else None


def _by_method(
    methods: Sequence[str], rows: Sequence[Mapping[str, float | None]]
) -> dict[str, list[float | None]]:
    return {m: [row.get(m) for row in rows] for m in methods}
