"""Scores of how often the samples, or the answers to rephrased questions, say the same.

Further evidence for FUSE as well: columns [N] that are NaN where a query was not asked.

Two texts are the same answer if :func:`~fusevlm.meanings.same_form` says so. Ties are broken by
the alphabet: the order of samples never matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusevlm.checks import FloatArray, IntArray
from fusevlm.errors import InputError
from fusevlm.meanings import same_form
from fusevlm.scores.interface import given
from fusevlm.types import Queries, Samples, Semantics


@dataclass(frozen=True, eq=False)
class Answers:
    """The different answers of one query, in alphabetical order.

    texts  c normal forms
    group  [n] which of them each sample is
    share  [c] share of the samples
    """

    texts: tuple[str, ...]
    group: IntArray
    share: FloatArray

    @property
    def top(self) -> int:
        """Index of the most frequent answer; the first in the alphabet among equals."""
        return int(np.argmax(self.share))

    def find(self, text: str) -> int | None:
        """Index of the answer that is ``text``, or None if it was never sampled."""
        form = same_form(text)
        return self.texts.index(form) if form in self.texts else None


def answers(samples: Samples) -> Answers:
    """The different answers of one query and how often each was sampled."""
    forms = [same_form(text) for text in samples.texts]
    texts = tuple(sorted(set(forms)))
    place = {form: i for i, form in enumerate(texts)}
    group = np.array([place[form] for form in forms], dtype=np.int64)
    return Answers(texts, group, np.bincount(group, minlength=len(texts)) / len(forms))


def distinct(queries: Queries) -> FloatArray:
    """How many different answers were sampled."""
    return np.array([float(len(answers(one).texts)) for one in queries.samples])


def frequency_answer(queries: Queries) -> FloatArray:
    """1 − the share of samples equal to the judged answer."""
    found = []
    for one, judged in zip(queries.samples, given(queries, "answer"), strict=True):
        sampled = answers(one)
        place = sampled.find(judged)
        found.append(1.0 if place is None else 1.0 - sampled.share[place])
    return np.array(found)


def frequency_top(queries: Queries) -> FloatArray:
    """1 − the share of samples equal to the most frequent one; needs texts only."""
    return np.array([1.0 - answers(one).share.max() for one in queries.samples])


def neighborhood(queries: Queries) -> FloatArray:
    """Neighborhood consistency (Khan & Fu): does the answer survive rephrased questions?

    1 − the fraction of rephrasings whose answer agrees with the judged one. A query for which no
    question could be made or answered has nothing that agrees: 1.
    """
    rows = given(queries, "rephrasings")
    return np.array([1.0 - float(np.mean(row)) if np.size(row) else 1.0 for row in rows])


def festa(queries: Queries) -> FloatArray:
    """FESTA (Bhattacharya et al.): is the model consistent, and does it notice a changed question?

    Mean of the share of rephrased questions whose answer disagrees (:func:`neighborhood`) and the
    share of answers to the negated question that fail to flip; the first alone where the question
    cannot be negated.
    """
    unsteady = neighborhood(queries)
    found = [one.complement for one in queries.semantics or ()]
    unmoved = np.array([np.nan if share is None else float(share) for share in found])
    outside = (unmoved < 0.0) | (unmoved > 1.0)
    if outside.any():
        raise InputError(f"complement is {unmoved[outside][0]:g}; expected a share in [0, 1].")
    return np.where(np.isnan(unmoved), unsteady, 0.5 * (unsteady + unmoved))


def rephrasing_column(queries: Queries) -> FloatArray:
    """1 − the share of rephrasings whose answer agrees; NaN where there is none."""
    known = queries.semantics or [Semantics()] * len(queries)
    rows = [one.rephrasings for one in known]
    return np.array([1.0 - float(np.mean(r)) if r is not None and r.size else np.nan for r in rows])


def complement_column(queries: Queries) -> FloatArray:
    """How far the answer to the negated question fails to flip; NaN where it was not asked."""
    known = queries.semantics or [Semantics()] * len(queries)
    return np.array([np.nan if one.complement is None else one.complement for one in known])
