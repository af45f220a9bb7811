"""Scores of the samples' hidden states: the volume they span, and the spread of their spectrum.

Only the n×n Gram matrix of the states is formed, never a d×d one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.fuse.evidence import balance_by_median
from fusevlm.scores.interface import Predict, given
from fusevlm.scores.likelihood import sequences
from fusevlm.scores.spectral import by_size
from fusevlm.types import Queries

JITTER = 1e-8  # UMPIRE's
ALPHA = 1e-3  # EigenScore's


def umpire(queries: Queries) -> FloatArray:
    """UMPIRE (Lau et al.): (1/2n)·logdet(EEᵀ + 1e-8·I) + α·mean(1 − p), p = exp(Σ_t log p_t).

    The volume of the samples, adjusted for the model's incoherence; p includes EOS. E [n, d] has
    unit rows, neither centred nor whitened; α = |median/median| of the two terms on the calibration
    queries, without labels.
    """
    return _adjusted(queries, _incoherence)


def umpire_token(queries: Queries) -> FloatArray:
    """The same with p = exp(mean_t log p_t), which does not fall with the length."""
    return _adjusted(queries, _token_incoherence)


def umpire_2025(queries: Queries) -> FloatArray:
    """logdet(EEᵀ + 1e-8·I) + 2α·Σ(1 − p): 2n times :func:`umpire`.

    The same ranking where all queries have n samples.
    """
    return _twice_n(queries) * umpire(queries)


def learn_umpire(known: Queries) -> Predict:
    """α of the calibration queries, for :func:`umpire` of others."""
    return _learn_adjusted(known, _incoherence)


def learn_umpire_token(known: Queries) -> Predict:
    """α of the calibration queries, for :func:`umpire_token` of others."""
    return _learn_adjusted(known, _token_incoherence)


def learn_umpire_2025(known: Queries) -> Predict:
    """α of the calibration queries, for :func:`umpire_2025` of others."""
    predict = learn_umpire(known)
    return lambda new: _twice_n(new) * predict(new)


def _twice_n(queries: Queries) -> FloatArray:
    return 2.0 * np.array([len(one) for one in queries.samples])


def _incoherence(queries: Queries) -> FloatArray:
    table = sequences(queries)
    return table.per_query(-np.expm1(table.log_likelihood))


def _token_incoherence(queries: Queries) -> FloatArray:
    table = sequences(queries)
    return table.per_query(-np.expm1(table.mean_log_likelihood))


def _log_volume(queries: Queries) -> FloatArray:
    return 0.5 * _spectrum(queries, "embeddings", JITTER, unit=True)


def _adjusted(queries: Queries, incoherence_of: Predict) -> FloatArray:
    incoherence, log_volume = incoherence_of(queries), _log_volume(queries)
    fit = given(queries, "fit")
    return log_volume + balance_by_median(log_volume[fit], incoherence[fit]) * incoherence


def _learn_adjusted(known: Queries, incoherence_of: Predict) -> Predict:
    alpha = balance_by_median(_log_volume(known), incoherence_of(known))
    return lambda new: _log_volume(new) + alpha * incoherence_of(new)


def eigenscore(queries: Queries) -> FloatArray:
    """EigenScore (INSIDE, Chen et al.): (1/n)·logdet(E J Eᵀ + αI), J = I − 11ᵀ/d, α = 1e-3.

    On the middle layer; the covariance runs over features. The mean log eigenvalue, as LM-Polygraph
    computes it too.
    """
    return _spectrum(queries, "middle", ALPHA, centred=True)


def eigenscore_code(queries: Queries) -> FloatArray:
    """Mean log10 eigenvalue of E J Eᵀ/(d − 1) + αI: what INSIDE's released code computes."""
    natural = _spectrum(queries, "middle", ALPHA, centred=True, covariance=True)
    return np.asarray(natural / np.log(10.0))


def eigenscore_last(queries: Queries) -> FloatArray:
    """:func:`eigenscore` of unit-length last-layer states, the form UMPIRE compares with."""
    return _spectrum(queries, "embeddings", ALPHA, unit=True, centred=True)


def _spectrum(
    queries: Queries,
    layer: str,
    added: float,
    *,
    unit: bool = False,
    centred: bool = False,
    covariance: bool = False,
) -> FloatArray:
    """(1/n)·logdet(RRᵀ + added·I) [N], the mean log eigenvalue; below 0 they are rounding.

    R [n, d] are the states, made unit length and centred over features if wanted; as a covariance
    RRᵀ is divided by d − 1.
    """
    grams = []
    for states in given(queries, layer):
        if isinstance(states, Mapping):
            G, d = _kept(states, gram_name(layer, unit, centred))
        else:
            G, d = state_gram(states, layer, unit, centred)
        grams.append(G / max(d - 1, 1) if covariance else G)
    return by_size(
        grams,
        lambda G: np.log(np.maximum(np.linalg.eigvalsh(G), 0.0) + added).mean(axis=-1),
    )


# what scores read of the states of all samples: layer, unit length, centred over features
FORMS = (("embeddings", True, False), ("embeddings", True, True), ("middle", False, True))


def gram_name(layer: str, unit: bool, centred: bool) -> str:
    """What a Gram matrix that is kept instead of the states is called."""
    return f"{layer}{' unit' * unit}{' centred' * centred}"


def state_gram(states: Any, layer: str, unit: bool, centred: bool) -> tuple[FloatArray, int]:
    """RRᵀ [n, n] of the states [n, d], made unit length and centred over features if wanted; d."""
    rows = checks.matrix(states, layer)
    if unit:
        rows = checks.unit_rows(rows, layer)
    if centred:
        rows = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(rows @ rows.T), rows.shape[1]


def _kept(grams: Mapping[str, tuple[FloatArray, int]], name: str) -> tuple[FloatArray, int]:
    if name not in grams:
        raise InputError(
            f"the Gram matrix {name!r} was not kept of some query. Keep all hidden states: "
            f"sample.states = 'full', --redo sample."
        )
    return grams[name]
