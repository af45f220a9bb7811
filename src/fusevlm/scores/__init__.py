"""Baseline scores, by what they need; higher is more uncertain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

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
from fusevlm.scores.interface import (
    NEEDS,
    OF_FIT,
    Lacks,
    Predict,
    Score,
    check,
    lacks,
    missing_reason,
    reason_for,
)
from fusevlm.scores.lofreecp import learn_lofreecp, lofreecp
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
        Score("umpire", "UMPIRE", _UMPIRE, states.umpire, learn=states.learn_umpire),
        Score(
            "umpire_token",
            "UMPIRE (token p)",
            _UMPIRE,
            states.umpire_token,
            "p = exp(mean log p)",
            states.learn_umpire_token,
        ),
        Score(
            "umpire_2025",
            "UMPIRE (2025)",
            _UMPIRE,
            states.umpire_2025,
            "sums instead of means",
            states.learn_umpire_2025,
        ),
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
        Score(
            "lofreecp",
            "LoFreeCP",
            ("answer", "similarity", "fit", "wrong"),
            lofreecp,
            _LOFREE,
            learn_lofreecp,
        ),
        Score("clm_max", "CLM", ("token_logprobs",), clm.clm_max, _CLM),
        Score("clm_sum", "CLM (sum)", ("token_logprobs",), clm.clm_sum, _CLM),
        Score("clm_geo", "CLM (geo)", ("token_logprobs",), clm.clm_geo, _CLM),
        Score(
            "clm_size",
            "CLM (set size)",
            ("token_logprobs", "similarity", "fit", "sample_wrong"),
            clm.clm_size,
            _CLM + "; samples in order of falling quality",
            clm.learn_clm_size,
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
            densities.learn_mahalanobis,
        ),
        Score(
            "relative_mahalanobis",
            "Relative Mahalanobis",
            _LEARNT,
            densities.relative_mahalanobis,
            f"adaptation: the background is all calibration answers; {_FOLDS}",
            densities.learn_relative_mahalanobis,
        ),
        Score(
            "huq",
            "HUQ",
            ("answer_logprobs", *_LEARNT),
            densities.huq,
            "adaptation: Mahalanobis and G-NLL, ranked among calibration queries",
            densities.learn_huq,
        ),
        Score(
            "semantic_entropy_probe",
            "Semantic-entropy probe",
            (*_WEIGHED, "answer_state", "fit"),
            probes.semantic_entropy_probe,
            f"no label of correctness; {_FOLDS}",
            probes.learn_semantic_entropy_probe,
        ),
        Score(
            "accuracy_probe",
            "Accuracy probe",
            _LEARNT,
            probes.accuracy_probe,
            _FOLDS,
            probes.learn_accuracy_probe,
        ),
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


@dataclass(frozen=True)
class Columns:
    """Scores of some queries: columns [N] by name, what the others lack, and what went wrong."""

    columns: dict[str, FloatArray]
    lacks: Lacks
    errors: dict[str, str]
    seconds: dict[str, float]


class Streamed:
    """The named scores of queries that come some at a time, the calibration queries before all.

    Together they are what :func:`compute_scores` gives of all queries at once.
    """

    def __init__(self, names: Sequence[str], known: Queries | None) -> None:
        self.scores = _known(names)
        self.known = known
        self._learnt: dict[str, Predict] = {}

    def of_known(self) -> Columns:
        """Of the calibration queries themselves."""
        assert self.known is not None
        return self._columns(self.known, lambda score: score.needs, lambda score: score.compute)

    def of(self, queries: Queries) -> Columns:
        """Of others."""

        def needs(score: Score) -> tuple[str, ...]:
            if self.known is None:
                return score.needs
            return tuple(need for need in score.needs if need not in OF_FIT)

        return self._columns(queries, needs, self._predict)

    def _predict(self, score: Score) -> Predict:
        if score.learn is None:
            return score.compute
        if score.name not in self._learnt:
            assert self.known is not None
            self._learnt[score.name] = score.learn(self.known)
        return self._learnt[score.name]

    def _columns(
        self,
        queries: Queries,
        needs: Callable[[Score], tuple[str, ...]],
        predict: Callable[[Score], Predict],
    ) -> Columns:
        check(queries)
        wanted = [need for score in self.scores for need in needs(score)]
        found = Columns({}, lacks(queries, wanted), {}, {})
        for score in self.scores:
            if reason_for([found.lacks], needs(score)):
                continue
            start = time.perf_counter()
            try:
                column = predict(score)(queries)
                found.columns[score.name] = checks.vector(column, score.name, length=len(queries))
            except InputError as error:
                found.errors[score.name] = str(error)
            else:
                found.seconds[score.name] = time.perf_counter() - start
        return found


def absent_scores(
    names: Sequence[str], parts: Sequence[Lacks], errors: Mapping[str, str]
) -> dict[str, str]:
    """Which scores are absent of queries that came in parts, and why."""
    found = {}
    for score in _known(names):
        reason = reason_for(parts, score.needs) or errors.get(score.name, "")
        if reason:
            found[score.name] = reason
    return found


def needs_of(names: Iterable[str]) -> set[str]:
    """All that the named scores need, in the words of NEEDS."""
    return {need for score in _known(names) for need in score.needs}


def label_free(names: Iterable[str]) -> tuple[str, ...]:
    """Those of the named scores that read no label of correctness."""
    return tuple(score.name for score in _known(names) if not score.labels)


def _known(names: Iterable[str]) -> list[Score]:
    return [SCORES[checks.known(name, SCORES, "score")] for name in names]
