"""Which responses say the same: cluster numbers from strings, entailment or similarity.

Each function returns labels [n]: responses with the same number form one cluster. Greedy clustering
depends on the order in which it meets the responses, so they are put into one order first: the most
frequent text first, ties by the text itself. Shuffled responses then give shuffled labels, no more.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import IntArray
from fusevlm.errors import InputError

Pair = tuple[str, str]  # premise, hypothesis
CONTRADICTION, NEUTRAL, ENTAILMENT = range(3)  # the relations, and the order of their probabilities

_MARKS = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_ASYMMETRY = 1e-6


def normalise(text: str) -> str:
    """Lower case, without punctuation and articles, words one space apart."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_MARKS)).split())


def by_string(texts: Sequence[str]) -> IntArray:
    """Texts that are equal once normalised are one cluster."""
    plain = [normalise(text) for text in _strings(texts)]
    number = {text: i for i, text in enumerate(canonical(plain))}
    return np.array([number[text] for text in plain], dtype=np.int64)


def by_entailment(
    texts: Sequence[str], relation: Callable[[str, str], int], *, strict: bool = True
) -> IntArray:
    """Greedy clusters by entailment, as in semantic entropy (Kuhn et al. 2023).

    A text joins the first cluster whose head means the same: each entails the other (``strict``),
    or neither contradicts the other. ``relation(premise, hypothesis)`` is CONTRADICTION, NEUTRAL or
    ENTAILMENT. Equal texts share a cluster and are never asked about.
    """
    steps = greedy(texts, strict=strict)
    try:
        pair = next(steps)
        while True:
            pair = steps.send(relation(*pair))
    except StopIteration as end:
        labels: IntArray = end.value
        return labels


def greedy(texts: Sequence[str], *, strict: bool = True) -> Generator[Pair, int, IntArray]:
    """The algorithm of ``by_entailment``: yields a pair, is sent its relation, returns labels.

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
    """Clusters of responses linked by a chain of similarities [n, n] of at least ``threshold``.

    Single linkage: the clusters do not depend on the order of the responses, and are numbered as
    they first appear.
    """
    known = checks.matrix(similarity, "similarity")
    n = len(known)
    if known.shape != (n, n) or float(np.abs(known - known.T).max()) > _ASYMMETRY:
        raise InputError(
            f"similarity has shape {known.shape} and must be a symmetric square matrix, one row "
            f"per response. Average both directions first: (S + S.T) / 2."
        )
    linked = known >= checks.scalar(threshold, "threshold")
    labels = np.full(n, -1, dtype=np.int64)
    for seed in range(n):
        if labels[seed] >= 0:
            continue
        cluster = labels.max() + 1
        edge = np.arange(n) == seed
        while edge.any():
            labels[edge] = cluster
            edge = linked[edge].any(axis=0) & (labels < 0)
    return labels


def canonical(texts: Sequence[str]) -> list[str]:
    """The distinct texts, most frequent first, ties in the order of the texts themselves."""
    counts = Counter(_strings(texts))
    return sorted(counts, key=lambda text: (-counts[text], text))


def _strings(texts: Sequence[str]) -> Sequence[str]:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InputError("texts must be a list of strings, one per response.")
    return texts
