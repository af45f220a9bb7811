"""The complement of a yes/no question: a model that knows gives its negation the other answer.

Derivation in docs/method.md: question and negation together cancel a model's leaning to yes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.models.protocol import Model
from fusevlm.semantics.negate import NO, YES, flips, says_yes
from fusevlm.types import Query

logger = logging.getLogger(__name__)

LEAST = 0.5  # of the first token's probability on yes and no, for it to be the answer


def failures_to_flip(
    backend: Model,
    queries: Sequence[Query],
    answers: Sequence[str],
    negated: Sequence[str | None],
    *,
    samples: int = 0,
    seed: int = 0,
) -> list[float | None]:
    """How far the model fails to give each negated question the other answer, in [0, 1].

    Where its logits can be read and its first token is yes or no: the probability of the judged
    answer, among the two (one forward pass). Otherwise the share among the greedy answer and
    ``samples`` sampled ones (temperature 1) that repeat the judged answer; those that say neither
    do not count. None where there is no negation, or no answer is yes or no.
    """
    if not len(queries) == len(answers) == len(negated):
        raise InputError(
            f"{len(answers)} answers and {len(negated)} negations for {len(queries)} queries; "
            f"expected one each."
        )
    samples = checks.count(samples, "complement_samples", least=0)
    asked = {
        k: replace(query, id=f"{query.id}, negated", question=text)
        for k, (query, text) in enumerate(zip(queries, negated, strict=True))
        if text is not None and says_yes(answers[k]) is not None
    }
    found: list[float | None] = [None] * len(queries)
    p_yes = _first_token(backend, list(asked.values()))
    for (k, query), p in zip(asked.items(), p_yes, strict=True):
        if np.isnan(p):
            found[k] = _share(backend, query, answers[k], samples, seed)
        else:
            found[k] = float(p if says_yes(answers[k]) else 1.0 - p)
    return found


def _first_token(backend: Model, queries: Sequence[Query]) -> FloatArray:
    """P(yes) among yes and no by the first token; NaN where that cannot be read."""
    unknown = np.full(len(queries), np.nan)
    try:
        from fusevlm.models.huggingface import HuggingFace
    except ImportError:  # without PyTorch the model is of another kind
        return unknown
    if not queries or not isinstance(backend, HuggingFace):
        return unknown
    from fusevlm.semantics.selfcheck import verdicts

    try:
        verdict = verdicts(
            backend, queries, yes=sorted(YES, reverse=True), no=sorted(NO, reverse=True)
        )
    except InputError:  # its tokenizer spells yes or no in pieces
        return unknown
    return np.where(verdict.yes + verdict.no >= LEAST, verdict.share, np.nan)


def _share(backend: Model, query: Query, answer: str, samples: int, seed: int) -> float | None:
    """The share of the answers that repeat the judged one, among those that say yes or no."""
    (made,) = backend.sample([query], samples, np.full(samples, 1.0), seed)
    if made.samples is None or made.samples.answer is None:
        logger.warning("no answer to query %s: %s", query.id, made.error)
        return None
    given = [made.samples.answer, *made.samples.texts]
    turned = [flip for flip in (flips(answer, text) for text in given) if flip is not None]
    return 1.0 - float(np.mean(turned)) if turned else None
