"""Baseline scores, one file per method; higher is more uncertain."""

from __future__ import annotations

from collections.abc import Sequence

from fusevlm.checks import FloatArray
from fusevlm.scores.clm import clm_geo, clm_max, clm_size, clm_sum
from fusevlm.scores.degree_matrix import degree_matrix
from fusevlm.scores.distinct import distinct
from fusevlm.scores.eccentricity import eccentricity
from fusevlm.scores.eigenscore import eigenscore, eigenscore_code, eigenscore_last
from fusevlm.scores.eigv import eigv
from fusevlm.scores.g_nll import g_nll
from fusevlm.scores.interface import Inputs, Score, compute_columns
from fusevlm.scores.kernel_language_entropy import kernel_language_entropy
from fusevlm.scores.ln_entropy import ln_entropy, ln_entropy_umpire
from fusevlm.scores.lofreecp import lofreecp
from fusevlm.scores.neighborhood import neighborhood
from fusevlm.scores.ntl import ntl
from fusevlm.scores.p_true import p_true
from fusevlm.scores.predictive_frequency import frequency_answer, frequency_top
from fusevlm.scores.semantic_entropy import (
    semantic_entropy,
    semantic_entropy_discrete,
    semantic_entropy_kuhn,
)
from fusevlm.scores.umpire import umpire, umpire_2025, umpire_token

__all__ = ["SCORES", "Inputs", "Score", "compute_scores"]

_CLM = "adaptation: CLM defines no per-query statistic"
_LOFREE = "adaptation: weights tuned on calibration queries whose judged answer is right"
_UMPIRE = ("embeddings", "token_logprobs", "fit")
_CLUSTERED = ("token_logprobs", "clusters")

SCORES: dict[str, Score] = {
    score.name: score
    for score in (
        Score("umpire", "UMPIRE", _UMPIRE, umpire),
        Score("umpire_token", "UMPIRE (token p)", _UMPIRE, umpire_token, "p = exp(mean log p)"),
        Score("umpire_2025", "UMPIRE (2025)", _UMPIRE, umpire_2025, "sums instead of means"),
        Score("eigenscore", "EigenScore", ("middle",), eigenscore),
        Score(
            "eigenscore_code",
            "EigenScore (code)",
            ("middle",),
            eigenscore_code,
            "as released: log10, covariance divided by d − 1",
        ),
        Score(
            "eigenscore_last",
            "EigenScore (last)",
            ("embeddings",),
            eigenscore_last,
            "last layer, unit length",
        ),
        Score("ln_entropy", "LN-entropy", ("token_logprobs",), ln_entropy),
        Score(
            "ln_entropy_umpire",
            "LN-entropy (UMPIRE)",
            ("token_logprobs",),
            ln_entropy_umpire,
            "mean of −p ln p over tokens",
        ),
        Score("semantic_entropy_rao", "Semantic entropy", _CLUSTERED, semantic_entropy),
        Score(
            "semantic_entropy_discrete",
            "Semantic entropy (discrete)",
            ("clusters",),
            semantic_entropy_discrete,
        ),
        Score(
            "semantic_entropy_kuhn",
            "Semantic entropy (Kuhn)",
            _CLUSTERED,
            semantic_entropy_kuhn,
            "cluster likelihoods not normalised",
        ),
        Score("g_nll", "G-NLL", ("answer_logprobs",), g_nll),
        Score("ntl", "1 − NTL", ("token_logprobs",), ntl),
        Score("frequency_answer", "1 − frequency of the answer", ("answer",), frequency_answer),
        Score("frequency_top", "1 − top frequency", ("texts",), frequency_top),
        Score("distinct", "Distinct answers", ("texts",), distinct),
        Score("p_true", "1 − P(True)", ("p_true",), p_true),
        Score(
            "kernel_language_entropy",
            "Kernel language entropy",
            ("similarity",),
            kernel_language_entropy,
        ),
        Score("degree_matrix", "DegMat", ("similarity",), degree_matrix),
        Score("eccentricity", "Eccentricity", ("similarity",), eccentricity),
        Score("eigv", "EigV", ("similarity",), eigv),
        Score("neighborhood", "Neighborhood consistency", ("agreement",), neighborhood),
        Score("lofreecp", "LoFreeCP", ("answer", "similarity", "fit", "wrong"), lofreecp, _LOFREE),
        Score("clm_max", "CLM", ("token_logprobs",), clm_max, _CLM),
        Score("clm_sum", "CLM (sum)", ("token_logprobs",), clm_sum, _CLM),
        Score("clm_geo", "CLM (geo)", ("token_logprobs",), clm_geo, _CLM),
        Score(
            "clm_size",
            "CLM (set size)",
            ("token_logprobs", "similarity", "fit", "sample_wrong"),
            clm_size,
            _CLM + "; samples in order of falling quality",
        ),
    )
}


def compute_scores(
    inputs: Inputs, names: Sequence[str] | None = None
) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Columns [N] of the named scores (all if None), and why each missing one is missing."""
    return compute_columns(inputs, SCORES, names)
