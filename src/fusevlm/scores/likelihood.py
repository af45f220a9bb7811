"""Scores of token log-probabilities, and the model's own P(True)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray, IntArray
from fusevlm.errors import InputError
from fusevlm.scores.interface import given
from fusevlm.types import Queries


@dataclass(frozen=True, eq=False)
class Sequences:
    """M samples of N queries, one query after another, their log-probabilities flat.

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


def sequences(queries: Queries) -> Sequences:
    """All token log-probabilities of the queries, flat."""
    rows = [row for one in given(queries, "token_logprobs") for row in one]
    length = np.array([row.size for row in rows], dtype=np.int64)
    sizes = np.array([len(one) for one in queries.samples], dtype=np.int64)
    return Sequences(np.concatenate(rows), starts(length), length, sizes)


def starts(sizes: IntArray) -> IntArray:
    """Where each of consecutive blocks of these sizes begins."""
    return np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)


def g_nll(queries: Queries) -> FloatArray:
    """−Σ_t ln p(ŷ_t) of the judged (greedy) answer at temperature 1, EOS included."""
    return np.array([-float(np.sum(row)) for row in given(queries, "answer_logprobs")])


def margin_column(queries: Queries) -> FloatArray:
    """−min_t [ln p(best) − ln p(second best)] of the judged answer: evidence for FUSE.

    How near another answer came at its weakest token. Where the model has only two answers it says
    the same as the surprisal; with many, a likely answer can still have one strong rival.
    """
    rows = [one.answer_margins for one in queries.samples]
    if any(row is None for row in rows):
        raise InputError("the samples have no answer_margins: a model with logits gives them.")
    return -np.array([float(np.min(row)) for row in rows])


def ln_entropy(queries: Queries) -> FloatArray:
    """−(1/n) Σ_i (1/L_i) Σ_t ln p_it: length-normalised entropy (Malinin & Gales)."""
    table = sequences(queries)
    return -table.per_query(table.mean_log_likelihood)


def ln_entropy_umpire(queries: Queries) -> FloatArray:
    """(1/n) Σ_i (1/L_i) Σ_t −p_it·ln p_it: the reading in UMPIRE's comparison."""
    table = sequences(queries)
    surprise = -np.exp(table.logprobs) * table.logprobs
    return table.per_query(table.per_sample(surprise) / table.length)


def ntl(queries: Queries) -> FloatArray:
    """1 − NTL, next-token likelihood: the mean of p_t over all tokens of all samples."""
    table = sequences(queries)
    first = starts(table.sizes)
    total = np.add.reduceat(table.per_sample(np.exp(table.logprobs)), first)
    return np.asarray(1.0 - total / np.add.reduceat(table.length, first))


def p_true(queries: Queries) -> FloatArray:
    """1 − P(True) (Kadavath et al.): the model's own probability that its answer is right."""
    p = checks.vector(given(queries, "p_true"), "p_true")
    if float(p.min()) < 0.0 or float(p.max()) > 1.0:
        raise InputError(f"p_true ranges over [{p.min():g}, {p.max():g}]; expected probabilities.")
    return np.asarray(1.0 - p)
