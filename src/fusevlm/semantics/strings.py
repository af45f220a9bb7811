"""Which samples say the same: meanings from entailment or similarity.

Each function returns meanings [n]: samples with the same number say the same. Those from strings
alone are :func:`fusevlm.meanings.by_string`. Greedy grouping depends on the order in which it meets
the samples, so they are put into one order first: the most frequent text first, ties by the text
itself. Shuffled samples then give shuffled numbers, no more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import IntArray
from fusevlm.errors import InputError
from fusevlm.meanings import canonical
from fusevlm.store.cache import Pair

CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)  # the relations, and the order of their probabilities

_ASYMMETRY = 1e-6


def by_entailment(
    texts: Sequence[str], relation: Callable[[str, str], int], *, strict: bool = True
) -> IntArray:
    """Greedy meanings by entailment, as in semantic entropy (Kuhn et al. 2023).

    A text joins the first meaning whose head says the same: each entails the other (``strict``),
    or neither contradicts the other. ``relation(premise, hypothesis)`` is CONTRADICTION, NEUTRAL or
    ENTAILMENT. Equal texts share a meaning and are never asked about.
    """
    steps = greedy(texts, strict=strict)
    try:
        pair = next(steps)
        while True:
            pair = steps.send(relation(*pair))
    except StopIteration as end:
        meanings: IntArray = end.value
        return meanings


def greedy(texts: Sequence[str], *, strict: bool = True) -> Generator[Pair, int, IntArray]:
    """The algorithm of ``by_entailment``: yields a pair, is sent its relation, returns meanings.

    It asks for the second direction only where the first leaves the question open, so many queries
    can take their steps together, each asking for no more than it needs.
    """
    heads: list[str] = []
    number: dict[str, int] = {}
    for text in canonical(texts):
        for k, head in enumerate(heads):
            for pair in ((head, text), (text, head)):
                found = yield pair
                if found != ENTAILMENT if strict else found == CONTRADICTION:
                    break
            else:
                number[text] = k
                break
        else:
            number[text] = len(heads)
            heads.append(text)
    return np.array([number[text] for text in texts], dtype=np.int64)


def by_similarity(similarity: Any, threshold: float) -> IntArray:
    """Meanings: samples linked by a chain of similarities [n, n] of at least ``threshold``.

    Single linkage: the meanings do not depend on the order of the samples, and are numbered as they
    first appear.
    """
    known = checks.matrix(similarity, "similarity")
    n = len(known)
    if known.shape != (n, n) or float(np.abs(known - known.T).max()) > _ASYMMETRY:
        raise InputError(
            f"similarity has shape {known.shape} and must be a symmetric square matrix, one row "
            f"per sample. Average both directions first: (S + S.T) / 2."
        )
    linked = known >= checks.scalar(threshold, "threshold")
    meanings = np.full(n, -1, dtype=np.int64)
    for seed in range(n):
        if meanings[seed] >= 0:
            continue
        number = meanings.max() + 1
        edge = np.arange(n) == seed
        while edge.any():
            meanings[edge] = number
            edge = linked[edge].any(axis=0) & (meanings < 0)
    return meanings
