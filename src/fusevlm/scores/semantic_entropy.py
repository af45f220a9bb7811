"""Semantic entropy: the entropy over clusters of answers that mean the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusevlm.checks import FloatArray, IntArray
from fusevlm.scores._sequences import sequences, starts
from fusevlm.scores.interface import Inputs, given

_SHIFT = 5.0  # Kuhn's constant


def semantic_entropy(inputs: Inputs) -> FloatArray:
    """−Σ_c p(c) ln p(c), p(c) = Σ_{i∈c} exp(ll_i) / Σ_i exp(ll_i) (Rao).

    ll_i is the mean token log-probability of sample i.
    """
    clusters = _clusters(inputs)
    return clusters.entropy(clusters.log_sums(sequences(inputs).mean_log_likelihood))


def semantic_entropy_discrete(inputs: Inputs) -> FloatArray:
    """−Σ_c (n_c/n) ln(n_c/n); needs no log-probabilities."""
    clusters = _clusters(inputs)
    return clusters.entropy(clusters.log_sums(np.zeros(len(clusters.cluster))))


def semantic_entropy_kuhn(inputs: Inputs) -> FloatArray:
    """−(1/|C|) Σ_c (ln Σ_{i∈c} exp(ll_i) − 5): the 2023 estimator, its p(c) not normalised."""
    clusters = _clusters(inputs)
    mass = clusters.log_sums(sequences(inputs).mean_log_likelihood)
    total = np.bincount(clusters.query, weights=mass - _SHIFT)
    return -total / np.bincount(clusters.query)


@dataclass(frozen=True, eq=False)
class _Clusters:
    """K clusters of M samples, numbered through all queries.

    cluster  [M] cluster of each sample; ``query`` [K] is the query of each cluster
    """

    cluster: IntArray
    query: IntArray

    def log_sums(self, logs: FloatArray) -> FloatArray:
        """ln Σ_{i∈c} exp(logs_i) [K], each cluster shifted by its largest entry."""
        return _log_sums(logs, self.cluster, len(self.query))

    def entropy(self, log_mass: FloatArray) -> FloatArray:
        """Entropy [N] of each query's clusters with these unnormalised log masses [K]."""
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


def _clusters(inputs: Inputs) -> _Clusters:
    found = [
        np.unique(np.asarray(labels), return_inverse=True)
        for labels in given(inputs.clusters, "clusters")
    ]
    counts = np.array([len(names) for names, _ in found], dtype=np.int64)
    offsets = starts(counts)
    cluster = np.concatenate(
        [index + offset for (_, index), offset in zip(found, offsets, strict=True)]
    )
    return _Clusters(cluster, np.repeat(np.arange(len(counts)), counts))
