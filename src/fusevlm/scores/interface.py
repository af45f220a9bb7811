"""What every score takes and gives.

Axis names: N queries, n samples of one query, d features of a hidden state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import InputError
from fusevlm.types import Samples

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Inputs:
    """All N queries of a run; None marks what the run does not have.

    samples            texts, log-probabilities, last-layer states and judged answer per query
    middle             [n, d] middle-layer states per query
    clusters           [n] semantic cluster of each sample, per query
    similarity         [n, n] in [0, 1] between samples, per query (encoder cosine or entailment)
    answer_similarity  [n] in [0, 1], of each sample to the judged answer, per query
    agreement          per query: did the answer to each rephrasing agree with the judged answer
    p_true             [N] the model's own P(True)
    fit                indices of the calibration queries
    wrong              [N] was the judged answer wrong; read only at ``fit``
    sample_wrong       [n] was each sample wrong, per query; read only at ``fit``
    """

    samples: Sequence[Samples]
    middle: Sequence[FloatArray] | None = None
    clusters: Sequence[IntArray] | None = None
    similarity: Sequence[FloatArray] | None = None
    answer_similarity: Sequence[FloatArray] | None = None
    agreement: Sequence[BoolArray] | None = None
    p_true: FloatArray | None = None
    fit: IntArray | None = None
    wrong: BoolArray | None = None
    sample_wrong: Sequence[BoolArray] | None = None

    def __post_init__(self) -> None:
        _check(self)

    def __len__(self) -> int:
        return len(self.samples)


@dataclass(frozen=True)
class Score:
    """One way to score every query; higher is more uncertain.

    needs    the fields of Inputs, or of its Samples, that ``compute`` reads
    compute  Inputs to [N] finite float64 values
    note     what a reader of the table must know, such as an adaptation
    """

    name: str
    title: str
    needs: tuple[str, ...]
    compute: Callable[[Inputs], FloatArray]
    note: str = ""


def compute_columns(
    inputs: Inputs, scores: Mapping[str, Score], names: Sequence[str] | None = None
) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """The columns of ``names`` (all of ``scores`` if None) and why the missing ones are missing."""
    columns: dict[str, FloatArray] = {}
    missing: dict[str, str] = {}
    for name in scores if names is None else names:
        if name not in scores:
            raise InputError(f"no score is called {name!r}; expected one of {', '.join(scores)}.")
        reason = missing_reason(inputs, scores[name].needs)
        if reason:
            missing[name] = reason
            continue
        try:
            columns[name] = checks.vector(scores[name].compute(inputs), name, length=len(inputs))
        except InputError as error:
            missing[name] = str(error)
    return columns, missing


def missing_reason(inputs: Inputs, needs: Sequence[str]) -> str:
    """Which of ``needs`` the run lacks, in words; empty when it has them all."""
    own = {f.name for f in fields(Inputs)}
    for need in needs:
        if need in own:
            if getattr(inputs, need) is None:
                return f"the run has no {need}"
            continue
        without = [i for i, one in enumerate(inputs.samples) if getattr(one, need) is None]
        if len(without) == len(inputs):
            return f"the samples have no {need}"
        if without:
            return f"{len(without)} of {len(inputs)} queries have no {need} (first: {without[0]})"
    return ""


def given(value: T | None, name: str) -> T:
    """``value``, or InputError when the run does not have it."""
    if value is None:
        raise InputError(f"the run has no {name}; pass it, or leave this score out.")
    return value


_PER_SAMPLE = ("clusters", "answer_similarity", "sample_wrong")
_PER_QUERY = ("samples", "middle", "similarity", "agreement", *_PER_SAMPLE)


def _check(inputs: Inputs) -> None:
    N = len(inputs)
    if N == 0:
        raise InputError("samples is empty; expected at least one query.")
    for name in _PER_QUERY:
        value = getattr(inputs, name)
        if value is not None:
            if len(value) != N:
                raise InputError(
                    f"{name} has {len(value)} entries for {N} queries; expected one each."
                )
            object.__setattr__(inputs, name, tuple(value))
    sizes = [len(one) for one in inputs.samples]
    for name in _PER_SAMPLE:
        for i, row in enumerate(getattr(inputs, name) or ()):
            _shape(f"{name}[{i}]", row, (sizes[i],))
    for i, W in enumerate(inputs.similarity or ()):
        _shape(f"similarity[{i}]", W, (sizes[i], sizes[i]))
    for i, E in enumerate(inputs.middle or ()):
        _shape(f"middle[{i}]", E, (sizes[i], np.shape(E)[-1] if np.ndim(E) else 0))
    for name in ("p_true", "wrong"):
        value = getattr(inputs, name)
        if value is not None:
            _shape(name, value, (N,))
    if inputs.fit is not None:
        fit = np.asarray(inputs.fit)
        if fit.ndim != 1 or fit.size == 0 or not np.issubdtype(fit.dtype, np.integer):
            raise InputError("fit must be a non-empty list of query indices.")
        if fit.min() < 0 or fit.max() >= N:
            raise InputError(f"fit holds {fit.min()}…{fit.max()}; expected indices in 0…{N - 1}.")
        if len(np.unique(fit)) < len(fit):
            raise InputError("fit names a query twice; expected each calibration query once.")
        object.__setattr__(inputs, "fit", fit.astype(np.int64))


def _shape(name: str, value: Any, expected: tuple[int, ...]) -> None:
    if np.shape(value) != expected:
        raise InputError(f"{name} has shape {np.shape(value)}; expected {expected}.")
