"""The token log-probabilities of all samples of all queries as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusevlm.checks import FloatArray, IntArray
from fusevlm.scores.interface import Inputs, given


@dataclass(frozen=True, eq=False)
class Sequences:
    """M samples of N queries, one query after another.

    logprobs  [T] all tokens; ``first`` [M] is where each sample starts
    length    [M] tokens of each sample
    sizes     [N] samples of each query
    """

    logprobs: FloatArray
    first: IntArray
    length: IntArray
    sizes: IntArray

    def per_sample(self, tokens: FloatArray) -> FloatArray:
        """Sum [M] of a per-token quantity over each sample."""
        return np.asarray(np.add.reduceat(tokens, self.first))

    def per_query(self, samples: FloatArray) -> FloatArray:
        """Mean [N] of a per-sample quantity over each query."""
        return np.asarray(np.add.reduceat(samples, starts(self.sizes)) / self.sizes)

    @property
    def log_likelihood(self) -> FloatArray:
        """[M] sum of the token log-probabilities."""
        return self.per_sample(self.logprobs)

    @property
    def mean_log_likelihood(self) -> FloatArray:
        """[M] mean of the token log-probabilities."""
        return self.log_likelihood / self.length


def sequences(inputs: Inputs) -> Sequences:
    """All token log-probabilities of the run, flat."""
    rows = [row for one in inputs.samples for row in given(one.token_logprobs, "token_logprobs")]
    length = np.array([row.size for row in rows], dtype=np.int64)
    sizes = np.array([len(one) for one in inputs.samples], dtype=np.int64)
    return Sequences(np.concatenate(rows), starts(length), length, sizes)


def starts(sizes: IntArray) -> IntArray:
    """Where each of consecutive blocks of these sizes begins."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
