"""AUROC over the number of generations and over criteria of correctness."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import FuseError
from fusevlm.logs import library_quiet
from fusevlm.pipeline.ablations import ABLATIONS, Split, first_samples, run_ablation
from fusevlm.pipeline.bench_compare import auroc_or_none
from fusevlm.pipeline.bench_results import Curve
from fusevlm.scores import compute_scores
from fusevlm.scores.interface import Inputs

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]


def over_generations(
    place: str,
    inputs: Inputs,
    s: FloatArray,
    counts: Sequence[int],
    methods: Sequence[str],
    progress: Progress = lambda done, total: None,
) -> Curve:
    """AUROC of each method on the test queries from their first n samples: nested subsamples."""
    most = min(len(q) for q in inputs.samples)
    used = [n for n in counts if n <= most]
    rows = []
    for done, n in enumerate(used):
        progress(done, len(used))
        rows.append(_aurocs(first_inputs(inputs, n), s, methods))
    progress(len(used), len(used))
    return Curve(place, "generations", [str(n) for n in used], _by_method(methods, rows))


def over_criteria(
    place: str,
    inputs: Inputs,
    s: FloatArray,
    labels: Sequence[tuple[str, BoolArray]],
    methods: Sequence[str],
    left_out: Mapping[str, str],
) -> Curve:
    """AUROC of each method when right and wrong are told by other criteria (name, labels [N])."""
    rows = [_aurocs(replace(inputs, wrong=wrong), s, methods) for _, wrong in labels]
    test = _test(inputs)
    return Curve(
        place,
        "criteria",
        [name for name, _ in labels],
        _by_method(methods, rows),
        [1.0 - float(wrong[test].mean()) for _, wrong in labels],
        left_out,
    )


def first_inputs(inputs: Inputs, n: int) -> Inputs:
    """The same queries with their first n samples, in everything that has an entry per sample."""

    def cut(rows: Sequence[FloatArray] | None) -> list[FloatArray] | None:
        return None if rows is None else [row[:n] for row in rows]

    square = inputs.similarity
    return replace(
        inputs,
        samples=[first_samples(q, n) for q in inputs.samples],
        middle=cut(inputs.middle),
        clusters=cut(inputs.clusters),  # type: ignore[arg-type]
        similarity=None if square is None else [W[:n, :n] for W in square],
        answer_similarity=cut(inputs.answer_similarity),
        sample_wrong=cut(inputs.sample_wrong),  # type: ignore[arg-type]
    )


def _aurocs(inputs: Inputs, s: FloatArray, methods: Sequence[str]) -> dict[str, float | None]:
    assert inputs.fit is not None
    assert inputs.wrong is not None
    test = _test(inputs)
    names = [m for m in methods if m not in ABLATIONS]
    with library_quiet():
        columns, _ = compute_scores(inputs, names)
    found = {
        name: auroc_or_none(column[test], inputs.wrong[test]) for name, column in columns.items()
    }
    for name in methods:
        if name in ABLATIONS:
            found[name] = _fused(name, inputs, s, test)
    return found


def _fused(name: str, inputs: Inputs, s: FloatArray, test: IntArray) -> float | None:
    assert inputs.fit is not None
    assert inputs.wrong is not None
    wrong = inputs.wrong
    splits = [Split([inputs.samples[i] for i in k], s[k], wrong[k]) for k in (inputs.fit, test)]
    try:
        with library_quiet():
            outcome = run_ablation(ABLATIONS[name], *splits)
    except FuseError as error:
        logger.warning("%s has no AUROC from %d samples: %s", name, len(inputs.samples[0]), error)
        return None
    return auroc_or_none(outcome.u, wrong[test])


def _test(inputs: Inputs) -> IntArray:
    return np.setdiff1d(np.arange(len(inputs)), np.asarray(inputs.fit))


def _by_method(
    methods: Sequence[str], rows: Sequence[dict[str, float | None]]
) -> dict[str, list[float | None]]:
    return {m: [row.get(m) for row in rows] for m in methods}
