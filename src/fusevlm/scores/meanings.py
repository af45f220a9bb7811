"""Semantic entropy: the entropy over meanings, groups of samples that say the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusevlm.checks import FloatArray, IntArray
from fusevlm.scores.interface import given
from fusevlm.scores.likelihood import sequences, starts
from fusevlm.types import Queries

_SHIFT = 5.0  # Kuhn's constant


def semantic_entropy(queries: Queries) -> FloatArray:
    """−Σ_c p(c) ln p(c), p(c) = Σ_{i∈c} exp(ll_i) / Σ_i exp(ll_i) (Rao).

    ll_i is the mean token log-probability of sample i.
    """
    meanings = _meanings(queries)
    return meanings.entropy(meanings.log_sums(sequences(queries).mean_log_likelihood))


def semantic_entropy_discrete(queries: Queries) -> FloatArray:
    """−Σ_c (n_c/n) ln(n_c/n); needs no log-probabilities."""
    meanings = _meanings(queries)
    return meanings.entropy(meanings.log_sums(np.zeros(len(meanings.meaning))))


def semantic_entropy_kuhn(queries: Queries) -> FloatArray:
    """−(1/|C|) Σ_c (ln Σ_{i∈c} exp(ll_i) − 5): the 2023 estimator, its p(c) not normalised."""
    meanings = _meanings(queries)
    mass = meanings.log_sums(sequences(queries).mean_log_likelihood)
    total = np.bincount(meanings.query, weights=mass - _SHIFT)
    return -total / np.bincount(meanings.query)


@dataclass(frozen=True, eq=False)
class _Meanings:
    """K meanings of M samples, numbered through all queries.

    meaning  [M] meaning of each sample; ``query`` [K] is the query of each meaning
    """

    meaning: IntArray
    query: IntArray

    def log_sums(self, logs: FloatArray) -> FloatArray:
        """ln Σ_{i∈c} exp(logs_i) [K], each meaning shifted by its largest entry."""
        return _log_sums(logs, self.meaning, len(self.query))

    def entropy(self, log_mass: FloatArray) -> FloatArray:
        """Entropy [N] of each query's meanings with these unnormalised log masses [K]."""
        total = _log_sums(log_mass, self.query, int(self.query[-1]) + 1)
        log_p = log_mass - total[self.query]
        entropy = -np.bincount(self.query, weights=np.exp(log_p) * log_p)
        return np.asarray(np.maximum(entropy, 0.0))


def _log_sums(logs: FloatArray, group: IntArray, n_groups: int) -> FloatArray:
    largest = np.full(n_groups, -np.inf)
    np.maximum.at(largest, group, logs)
    return np.asarray(
        largest + np.log(np.bincount(group, np.exp(logs - largest[group]), minlength=n_groups))
    )


def _meanings(queries: Queries) -> _Meanings:
    found = [np.unique(labels, return_inverse=True) for labels in given(queries, "meanings")]
    counts = np.array([len(names) for names, _ in found], dtype=np.int64)
    offsets = starts(counts)
    meaning = np.concatenate(
        [index + offset for (_, index), offset in zip(found, offsets, strict=True)]
    )
    return _Meanings(meaning, np.repeat(np.arange(len(counts)), counts))
