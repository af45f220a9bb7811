"""What every score takes and gives: a table of queries in, one number per query out.

Axis names: N queries, n samples of one query, d features of a hidden state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.types import Queries, Samples

# what a score may need -> what a run takes to have it
NEEDS: dict[str, str] = {
    "texts": "samples",
    "token_logprobs": "a model that gives log-probabilities",
    "embeddings": "hidden states: a model that gives them, and score.layer among sample.layers",
    "answer": "a model that gives an answer to be judged beside the samples",
    "answer_logprobs": "a model that gives the log-probabilities of the judged answer",
    "answer_state": "hidden states of judged answers: a model that gives them, and no sample.gram",
    "middle": "'middle' among sample.layers",
    "meanings": "semantics.meanings = 'string', 'nli' or 'sentences'",
    "similarity": "semantics.similarity = 'sentences', 'nli' or 'string'",
    "rephrasings": "semantics.rephrase = 'generator', 'prompt' or 'templates'",
    "p_true": "semantics.p_true = true",
    "complement": "semantics.complement = 'templates' or 'model', and yes/no questions",
    "fit": "calibration queries",
    "wrong": "labels: references to the queries, and score.criterion",
    "sample_wrong": "labels of the samples: references to the queries, and score.criterion",
}
OF_FIT = ("fit", "wrong", "sample_wrong")  # needs that are about calibration queries alone
Predict = Callable[[Queries], FloatArray]
_OF_SAMPLES = {field.name for field in fields(Samples)}
# what is known of each sample: nothing where none was drawn
_OF_EACH = ("texts", "token_logprobs", "embeddings", "middle", "meanings", "similarity")


@dataclass(frozen=True)
class Score:
    """One way to score every query; higher is more uncertain.

    needs    words of NEEDS: all that ``compute`` reads
    compute  queries to [N] finite float64 values
    note     what a reader of the table must know, such as an adaptation
    learn    of a score that needs ``fit``: calibration queries to what scores any others, as
             ``compute`` would beside them; so that those others can come some at a time
    """

    name: str
    title: str
    needs: tuple[str, ...]
    compute: Callable[[Queries], FloatArray]
    note: str = ""
    learn: Callable[[Queries], Predict] | None = None

    @property
    def labels(self) -> bool:
        """Whether it learns from the labels of calibration queries."""
        return not {"wrong", "sample_wrong"}.isdisjoint(self.needs)


def missing_reason(queries: Queries, needs: Sequence[str]) -> str:
    """Which of ``needs`` the queries lack, and what brings it; empty when they have them all."""
    return reason_for([lacks(queries, needs)], needs)


@dataclass(frozen=True)
class Lacks:
    """How many of some queries lack a need, and the first of them.

    by_need  {need: (how many, the first's id)}, with (-1, "") where the need is not there at all
    """

    n_queries: int
    sampled: bool  # whether anything was sampled
    by_need: dict[str, tuple[int, str]]


def lacks(queries: Queries, needs: Sequence[str]) -> Lacks:
    """What these queries lack of ``needs``; those that all have are left out."""
    found: dict[str, tuple[int, str]] = {}
    for need in dict.fromkeys(needs):
        values = _find(queries, need)
        without = [i for i, value in enumerate(values) if value is None]
        if len(values) == 0:
            found[need] = (-1, "")
        elif without:
            found[need] = (len(without), queries.ids[without[0]])
    return Lacks(len(queries), any(map(len, queries.samples)), found)


def reason_for(parts: Sequence[Lacks], needs: Sequence[str]) -> str:
    """Why something with these needs is absent, of queries that came in parts; or nothing."""
    total = sum(part.n_queries for part in parts)
    for need in needs:
        without, first = 0, ""
        for part in parts:
            count, name = part.by_need.get(need, (0, ""))
            without += part.n_queries if count < 0 else count
            first = first or name
            if count < 0 and need in OF_FIT:  # those after the calibration were not asked
                without = total
                break
        if without == total:
            none = need in _OF_EACH and not any(part.sampled for part in parts)
            return f"the run has no {need}; it takes {'sample.n above 0' if none else NEEDS[need]}"
        if without:
            return f"{without} of {total} queries have no {need} (first: {first})"
    return ""


def given(queries: Queries, need: str) -> Any:
    """What the queries have of a need, one entry each (``fit``: the rows), or InputError."""
    reason = missing_reason(queries, [need])
    if reason:
        raise InputError(f"{reason}.")
    return _find(queries, need)


def _find(queries: Queries, need: str) -> Any:
    """The entries of a need, None where a query lacks it; empty if no query has it."""
    if need in ("fit", "wrong", "sample_wrong"):
        value = getattr(queries, need)
        return () if value is None else value
    if need == "middle":
        if not any(map(len, queries.samples)):
            return ()
        states = queries.states.get(need)
        return _reduced(queries, need) if states is None else states
    if need == "answer_state":
        return next(iter(queries.answer_states.values()), ())
    if need == "embeddings" and any(said.grams for said in queries.samples):
        return [said.grams or None if said.embeddings is None else said.embeddings
                for said in queries.samples]  # fmt: skip
    rows = queries.samples if need in _OF_SAMPLES else queries.semantics or ()
    found = [getattr(row, need) for row in rows]
    if need not in _OF_EACH:
        return found
    return [
        value if len(said) else None for value, said in zip(found, queries.samples, strict=False)
    ]


def _reduced(queries: Queries, layer: str) -> Any:
    """Gram matrices that were kept instead of a layer's states; empty where no query has any."""
    found = [
        said.grams if any(name.startswith(layer) for name in said.grams) else None
        for said in queries.samples
    ]
    return found if any(own is not None for own in found) else ()


def check(queries: Queries) -> None:
    """InputError unless all that is known of each query fits the number of its samples."""
    for i, samples in enumerate(queries.samples):
        n = len(samples)
        if queries.semantics is not None:
            known = queries.semantics[i]
            _shape(f"meanings[{i}]", known.meanings, (n,))
            # the judged answer is the last row and column
            _shape(f"similarities between[{i}]", known.between, (n + 1, n + 1))
        if queries.sample_wrong is not None:
            _shape(f"sample_wrong[{i}]", queries.sample_wrong[i], (n,))
        for name, states in queries.states.items():
            _shape(f"{name}[{i}]", states[i], (n, *np.shape(states[i])[-1:]))


def _shape(name: str, value: Any, expected: tuple[int, ...]) -> None:
    if value is not None and np.shape(value) != expected:
        raise InputError(f"{name} has shape {np.shape(value)}; expected {expected}.")
