"""Baseline scores, by what they need; higher is more uncertain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.scores import (
    agreement,
    clm,
    densities,
    likelihood,
    meanings,
    probes,
    spectral,
    states,
)
from fusevlm.scores.interface import NEEDS, Score, check, missing_reason
from fusevlm.scores.lofreecp import lofreecp
from fusevlm.types import Queries

__all__ = ["NEEDS", "SCORES", "Score", "compute_scores", "label_free", "needs_of"]

_CLM = "adaptation: CLM defines no per-query statistic"
_LOFREE = "adaptation: weights tuned on calibration queries whose judged answer is right"
_UMPIRE = ("embeddings", "token_logprobs", "fit")
_WEIGHED = ("token_logprobs", "meanings")
_LEARNT = ("answer_state", "fit", "wrong")
_FOLDS = "calibration queries out of fold"

SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        Score("umpire", "UMPIRE", _UMPIRE, states.umpire),
        Score(
            "umpire_token", "UMPIRE (token p)", _UMPIRE, states.umpire_token, "p = exp(mean log p)"
        ),
        Score("umpire_2025", "UMPIRE (2025)", _UMPIRE, states.umpire_2025, "sums instead of means"),
        Score("eigenscore", "EigenScore", ("middle",), states.eigenscore),
        Score(
            "eigenscore_code",
            "EigenScore (code)",
            ("middle",),
            states.eigenscore_code,
            "as released: log10, covariance divided by d − 1",
        ),
        Score(
            "eigenscore_last",
            "EigenScore (last)",
            ("embeddings",),
            states.eigenscore_last,
            "last layer, unit length",
        ),
        Score("ln_entropy", "LN-entropy", ("token_logprobs",), likelihood.ln_entropy),
        Score(
            "ln_entropy_umpire",
            "LN-entropy (UMPIRE)",
            ("token_logprobs",),
            likelihood.ln_entropy_umpire,
            "mean of −p ln p over tokens",
        ),
        Score("semantic_entropy_rao", "Semantic entropy", _WEIGHED, meanings.semantic_entropy),
        Score(
            "semantic_entropy_discrete",
            "Semantic entropy (discrete)",
            ("meanings",),
            meanings.semantic_entropy_discrete,
        ),
        Score(
            "semantic_entropy_kuhn",
            "Semantic entropy (Kuhn)",
            _WEIGHED,
            meanings.semantic_entropy_kuhn,
            "likelihoods of the meanings not normalised",
        ),
        Score("g_nll", "G-NLL", ("answer_logprobs",), likelihood.g_nll),
        Score("ntl", "1 − NTL", ("token_logprobs",), likelihood.ntl),
        Score(
            "frequency_answer",
            "1 − frequency of the answer",
            ("answer", "texts"),
            agreement.frequency_answer,
        ),
        Score("frequency_top", "1 − top frequency", ("texts",), agreement.frequency_top),
        Score("distinct", "Distinct answers", ("texts",), agreement.distinct),
        Score("p_true", "1 − P(True)", ("p_true",), likelihood.p_true),
        Score(
            "kernel_language_entropy",
            "Kernel language entropy",
            ("similarity",),
            spectral.kernel_language_entropy,
        ),
        Score("degree_matrix", "DegMat", ("similarity",), spectral.degree_matrix),
        Score("eccentricity", "Eccentricity", ("similarity",), spectral.eccentricity),
        Score("eigv", "EigV", ("similarity",), spectral.eigv),
        Score("neighborhood", "Neighborhood consistency", ("rephrasings",), agreement.neighborhood),
        Score("lofreecp", "LoFreeCP", ("answer", "similarity", "fit", "wrong"), lofreecp, _LOFREE),
        Score("clm_max", "CLM", ("token_logprobs",), clm.clm_max, _CLM),
        Score("clm_sum", "CLM (sum)", ("token_logprobs",), clm.clm_sum, _CLM),
        Score("clm_geo", "CLM (geo)", ("token_logprobs",), clm.clm_geo, _CLM),
        Score(
            "clm_size",
            "CLM (set size)",
            ("token_logprobs", "similarity", "fit", "sample_wrong"),
            clm.clm_size,
            _CLM + "; samples in order of falling quality",
        ),
        Score(
            "festa",
            "FESTA",
            ("rephrasings",),
            agreement.festa,
            "adaptation: shares for the KL divergences, no changed pictures; where a question "
            "cannot be negated, rephrasings alone",
        ),
        Score(
            "mahalanobis",
            "Mahalanobis",
            _LEARNT,
            densities.mahalanobis,
            f"of the answer's state to those of right calibration answers; {_FOLDS}",
        ),
        Score(
            "relative_mahalanobis",
            "Relative Mahalanobis",
            _LEARNT,
            densities.relative_mahalanobis,
            f"adaptation: the background is all calibration answers; {_FOLDS}",
        ),
        Score(
            "huq",
            "HUQ",
            ("answer_logprobs", *_LEARNT),
            densities.huq,
            "adaptation: Mahalanobis and G-NLL, ranked among calibration queries",
        ),
        Score(
            "semantic_entropy_probe",
            "Semantic-entropy probe",
            (*_WEIGHED, "answer_state", "fit"),
            probes.semantic_entropy_probe,
            f"no label of correctness; {_FOLDS}",
        ),
        Score("accuracy_probe", "Accuracy probe", _LEARNT, probes.accuracy_probe, _FOLDS),
    )
}


def compute_scores(
    queries: Queries, names: Sequence[str] | None = None
) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Columns [N] of the named scores (all if None), and why each absent one is absent."""
    wanted = _known(SCORES if names is None else names)
    check(queries)
    columns: dict[str, FloatArray] = {}
    absent: dict[str, str] = {}
    for score in wanted:
        reason = missing_reason(queries, score.needs)
        if reason:
            absent[score.name] = reason
            continue
        try:
            column = score.compute(queries)
            columns[score.name] = checks.vector(column, score.name, length=len(queries))
        except InputError as error:
            absent[score.name] = str(error)
    return columns, absent


def needs_of(names: Iterable[str]) -> set[str]:
    """All that the named scores need, in the words of NEEDS."""
    return {need for score in _known(names) for need in score.needs}


def label_free(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the named scores that read no label of correctness."""
    return tuple(score.name for score in _known(names) if not score.labels)


def _known(names: Iterable[str]) -> list[Score]:
    return [SCORES[checks.known(name, SCORES, "score")] for name in names]
