"""AUROC over the number of samples and over criteria of correctness."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from fusevlm import metrics
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.data.correctness import is_wrong
from fusevlm.errors import FuseError, InputError, library_quiet
from fusevlm.pipeline.methods import find_method, fit_method, scores_of_methods, stackable
from fusevlm.render.results import Curve
from fusevlm.scores import SCORES, Streamed
from fusevlm.settings import CalibrateConfig
from fusevlm.types import Queries

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
Tests = Callable[[], Iterable[Queries]]  # the test queries, some at a time, as often as one likes


def over_samples(
    place: str,
    queries: Queries,
    counts: Sequence[int],
    methods: Sequence[str],
    config: CalibrateConfig,
    progress: Progress = lambda *_: None,
) -> Curve:
    """:func:`over_samples_of` of queries that are all at hand."""
    return over_samples_of(place, *_split(queries), counts, methods, config, progress)


def over_samples_of(
    place: str,
    known: Queries,
    tests: Tests,
    counts: Sequence[int],
    methods: Sequence[str],
    config: CalibrateConfig,
    progress: Progress = lambda *_: None,
) -> Curve:
    """AUROC of each method on the test queries from their first n samples: nested subsamples."""
    most = min(len(said) for queries in chain([known], tests()) for said in queries.samples)
    used = [n for n in counts if n <= most]
    rows = []
    for done, n in enumerate(used):
        progress(done, len(used))
        cut = partial(Queries.first, n=n)
        rows.append(aurocs_of(cut(known), _changed(tests, cut), methods, config))
    progress(len(used), len(used))
    return Curve(place, "samples", [str(n) for n in used], _by_method(methods, rows))


def over_criteria(
    place: str,
    queries: Queries,
    criteria: Sequence[tuple[str, float | None]],
    methods: Sequence[str],
    config: CalibrateConfig,
) -> Curve:
    """:func:`over_criteria_of` of queries that are all at hand."""
    return over_criteria_of(place, *_split(queries), criteria, methods, config)


def over_criteria_of(
    place: str,
    known: Queries,
    tests: Tests,
    criteria: Sequence[tuple[str, float | None]],
    methods: Sequence[str],
    config: CalibrateConfig,
) -> Curve:
    """AUROC of each method when right and wrong are told by other criteria."""
    left_out: dict[str, str] = {}
    titles, rows, right = [], [], []
    for one in criteria:

        def relabelled(queries: Queries, one: tuple[str, float | None] = one) -> Queries:
            return replace(queries, wrong=_wrong(queries, *one))

        try:
            own = relabelled(known)
            labels = [_wrong(queries, *one) for queries in tests()]
        except InputError as error:  # such as VQA accuracy with one reference
            left_out[_title(*one)] = str(error)
            continue
        rows.append(aurocs_of(own, _changed(tests, relabelled), methods, config))
        titles.append(_title(*one))
        right.append(1.0 - float(np.concatenate(labels).mean()))
    return Curve(place, "criteria", titles, _by_method(methods, rows), right, left_out)


def _split(queries: Queries) -> tuple[Queries, Tests]:
    known, new = queries.split()
    return known, lambda: [new]


def _changed(tests: Tests, change: Callable[[Queries], Queries]) -> Tests:
    return lambda: (change(queries) for queries in tests())


def labels_by(
    queries: Queries, criteria: Sequence[tuple[str, float | None]]
) -> tuple[list[tuple[str, BoolArray]], dict[str, str]]:
    """Wrong or not by each criterion that the references allow, and why not by the others."""
    found, left_out = [], {}
    for one in criteria:
        try:
            found.append((_title(*one), _wrong(queries, *one)))
        except InputError as error:  # such as VQA accuracy with one reference
            left_out[_title(*one)] = str(error)
    return found, left_out


def _title(criterion: str, level: float | None) -> str:
    return criterion if level is None else f"{criterion} ≥ {level:g}"


def _wrong(queries: Queries, criterion: str, level: float | None) -> BoolArray:
    """Wrong or not by a criterion."""
    wrong = [
        is_wrong(said.answer or "", right, criterion, level)
        for said, right in zip(queries.samples, queries.references or (), strict=True)
    ]
    return np.array(wrong, dtype=np.bool_)


def aurocs_of(
    known: Queries, tests: Tests, methods: Sequence[str], config: CalibrateConfig
) -> dict[str, float | None]:
    """AUROC of each method on the test queries, fitted on the others."""
    rows = [find_method(name, config) for name in methods]
    names = scores_of_methods(rows, stackable(known))
    streamed = Streamed(names, replace(known, fit=np.arange(len(known))))
    with library_quiet():
        columns = streamed.of_known().columns
    # no score of more samples, or other labels
    own = replace(known, columns=_kept(known) | columns)
    fits = {}
    for name in methods:
        if name not in SCORES:
            with _told(name, known):
                fits[name] = fit_method(name, own, config)
    u: dict[str, list[FloatArray]] = {name: [] for name in (*columns, *fits)}
    labels = []
    for queries in tests():
        with library_quiet():
            columns = streamed.of(queries).columns
        new = replace(queries, columns=_kept(queries) | columns)
        labels.append(new.wrong)
        for name in list(u):
            with _told(name, new):
                fit = fits.get(name)
                u[name].append(columns[name] if fit is None else fit.apply(new).u)
                continue
            del u[name]
    wrong = np.concatenate(labels)
    return {name: auroc_or_none(np.concatenate(values), wrong) for name, values in u.items()}


@contextmanager
def _told(name: str, queries: Queries) -> Iterator[None]:
    """A method that cannot be had is said, and has no AUROC."""
    try:
        with library_quiet():
            yield
    except (FuseError, KeyError) as error:
        size = len(queries.samples[0])
        logger.warning("%s has no AUROC from %d samples: %s", name, size, error)


def _kept(queries: Queries) -> dict[str, Any]:
    """Columns that are no scores."""
    return {name: values for name, values in queries.columns.items() if name not in SCORES}


def auroc_or_none(u: FloatArray, wrong: BoolArray) -> float | None:
    """AUROC where both classes occur."""
    return float(metrics.auroc(u, wrong)) if wrong.any() and not wrong.all() else None


def _by_method(
    methods: Sequence[str], rows: Sequence[Mapping[str, float | None]]
) -> dict[str, list[float | None]]:
    return {m: [row.get(m) for row in rows] for m in methods}
