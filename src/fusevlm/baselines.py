"""One-liners: ``fusevlm.semantic_entropy(samples)`` and every other baseline by its name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray, IntArray
from fusevlm.errors import InputError
from fusevlm.fuse.arguments import queries_of
from fusevlm.meanings import best_sample, by_string
from fusevlm.scores import SCORES
from fusevlm.scores.interface import check, missing_reason
from fusevlm.settings import SemanticsConfig
from fusevlm.types import Queries, Samples, Semantics

if TYPE_CHECKING:
    from fusevlm.semantics.inference import Judge

STRINGS, SENTENCES = "strings", "sentences"
MADE = {"meanings", "similarity"}  # of the samples, here
PLACES = {  # of what a score may need and is no field of Samples
    "wrong": "Pass wrong=....",
    "middle": "It comes in a table: Queries(..., states={'middle': ...}).",
    "answer_state": "It comes in a table: Queries(..., answer_states={layer: ...}).",
    "sample_wrong": "It comes in a table: Queries(..., sample_wrong=...).",
}


def semantic_entropy(
    samples: Samples | Sequence[Samples] | Queries,
    *,
    meanings: str | Judge = STRINGS,
    questions: Sequence[str] | None = None,
    weighted: bool | None = None,
) -> float | FloatArray:
    """Entropy over the meanings of the samples: a float of one :class:`Samples`, [N] of several.

    meanings   what says the same: "strings" (equal but for case, articles and final marks),
               "sentences" (the encoder of the extra ``sentences``), or an inference model
               (:class:`fusevlm.semantics.inference.NliModel`)
    questions  of the queries, which an inference model reads before the samples
    weighted   whether samples count by their probability (Rao) or one each (discrete); None: by
               their probability where there are ``token_logprobs``
    """
    rows = samples.samples if isinstance(samples, Queries) else samples
    several = [rows] if isinstance(rows, Samples) else list(rows)
    known = all(getattr(one, "token_logprobs", None) is not None for one in several)
    kind = "rao" if (known if weighted is None else weighted) else "discrete"
    name = f"semantic_entropy_{kind}"
    return baseline(name, samples, meanings=meanings, questions=questions)


def baseline(
    name: str,
    samples: Samples | Sequence[Samples] | Queries,
    *,
    meanings: str | Judge = STRINGS,
    questions: Sequence[str] | None = None,
    wrong: Any = None,
    fit: Any = None,
) -> float | FloatArray:
    """One of :data:`fusevlm.scores.SCORES`; higher is less sure.

    A float of one :class:`Samples`, [N] of several or of a table. Meanings and similarities are
    found here (see :func:`semantic_entropy`); hidden states of other layers, rephrasings and
    P(True) come in a table of queries. What is missing is an error that names it.

    wrong  [N] labels, for scores that learn from them
    fit    rows of the queries that scores may learn from; None: all
    """
    score = SCORES[checks.known(name, SCORES, "score")]
    single = isinstance(samples, Samples)
    queries = queries_of([samples] if single else samples, wrong=wrong)
    if fit is not None:
        queries = replace(queries, fit=fit)
    if "fit" in score.needs and queries.fit is None:
        if len(queries) < 2:
            raise InputError(
                f"{name} learns from calibration queries, and there is one query. Pass them in "
                f"one list with it, and their rows as fit=...."
            )
        queries = replace(queries, fit=np.arange(len(queries)))
    queries = _with_answers(queries)
    lacking = {need for need in MADE & {*score.needs} if missing_reason(queries, [need])}
    if lacking:
        queries = _with_semantics(queries, lacking, meanings, questions)
    check(queries)
    for need in score.needs:
        if missing_reason(queries, [need]):
            raise InputError(
                f"{name} needs {need}, which these queries (or some of them) lack. {_place(need)}"
            )
    found = checks.vector(score.compute(queries), name, length=len(queries))
    return float(found[0]) if single else found


def _place(need: str) -> str:
    """Where a caller can put what a score needs."""
    if need in {field.name for field in fields(Samples)}:
        return "Pass it to Samples."
    found = f"It comes in a table: Queries(..., semantics=[Semantics({need}=...), ...])."
    return PLACES.get(need, found)


def _with_answers(queries: Queries) -> Queries:
    """Texts alone have no answer: the most frequent one is judged."""

    def answered(one: Samples) -> Samples:
        if one.answer is not None:
            return one
        return replace(one, answer=one.texts[best_sample(one.texts)], answer_is_sample=True)

    return replace(queries, samples=[answered(one) for one in queries.samples])


def _with_semantics(
    queries: Queries, needed: set[str], how: Any, questions: Sequence[str] | None
) -> Queries:
    """Meanings and similarities of the samples, the ``needed`` of them."""
    asked = [""] * len(queries) if questions is None else list(questions)
    if len(asked) != len(queries):
        raise InputError(f"{len(asked)} questions for {len(queries)} queries; expected one each.")
    if how not in (STRINGS, SENTENCES) and not hasattr(how, "judge"):
        raise InputError(
            f"meanings is {how!r}; expected 'strings', 'sentences', or an inference model: "
            f"fusevlm.semantics.inference.NliModel.load(name)."
        )
    found = list(queries.semantics or [Semantics()] * len(queries))
    if "meanings" in needed:
        texts = [list(one.texts) for one in queries.samples]
        numbers = find_meanings(texts, how, asked)
        found = [replace(one, meanings=own) for one, own in zip(found, numbers, strict=True)]
    if "similarity" in needed:
        texts = [[*one.texts, str(one.answer)] for one in queries.samples]
        matrices = _similarities(texts, how, asked)
        found = [replace(one, between=own) for one, own in zip(found, matrices, strict=True)]
    return replace(queries, semantics=found)


def find_meanings(texts: list[list[str]], how: Any, asked: list[str]) -> Sequence[IntArray]:
    """Which texts of each query say the same; ``how`` as for :func:`semantic_entropy`."""
    if how == STRINGS:
        return [by_string(row) for row in texts]
    if how == SENTENCES:
        from fusevlm.semantics.strings import by_similarity

        limit = SemanticsConfig().threshold
        return [by_similarity(S, limit) for S in _similarities(texts, how, asked)]
    from fusevlm.semantics import inference

    return inference.find_meanings(how, asked, texts).numbers


def _similarities(texts: list[list[str]], how: Any, asked: list[str]) -> Sequence[FloatArray]:
    if how == STRINGS:
        return [np.equal.outer(same, same).astype(np.float64) for same in map(by_string, texts)]
    if how == SENTENCES:
        checks.extra("torch", "a sentence encoder", "sentences")
        checks.extra("transformers", "a sentence encoder", "sentences")
        from fusevlm.models.towers import SentenceEncoder
        from fusevlm.semantics.sentences import sentence_similarity

        return sentence_similarity(SentenceEncoder.load(), texts)
    from fusevlm.semantics.inference import nli_similarity

    return nli_similarity(how, asked, texts).matrices
