"""``Fuse``: fit on calibration queries, then score, predict P(wrong) and decide."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusevlm import checks, store
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError, NotFittedError
from fusevlm.fuse import probability, scalar, thresholds, vector
from fusevlm.fuse.model import Batch, Model, fit_model, p_wrong, score_model
from fusevlm.fuse.presets import Options, resolve
from fusevlm.fuse.prior import Prior
from fusevlm.fuse.thresholds import GroupThresholds, RiskTable, Threshold
from fusevlm.maths import whitening
from fusevlm.types import Decisions, Samples, Scores

SCHEMA_VERSION = 1
MIGRATIONS: dict[int, store.Migration] = {}
MANIFEST = "fuse.json"

RULES: dict[str, Callable[..., Threshold]] = {
    "empirical": thresholds.empirical,
    "learn_then_test": thresholds.learn_then_test,
    "clopper_pearson": thresholds.clopper_pearson,
    "paper_bound": thresholds.paper_bound,
}


@dataclass(frozen=True)
class ThresholdData:
    """Labelled scores from which thresholds are chosen, and candidates fixed without them."""

    u: FloatArray
    wrong: BoolArray
    apart: bool  # from the fit's queries; the paper reuses them
    groups: tuple[str, ...] | None


@dataclass(frozen=True)
class _Saved:
    preset: str
    options: Options
    model: Model
    threshold_data: ThresholdData | None


_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        _Saved,
        Options,
        Model,
        ThresholdData,
        Prior,
        scalar.ScalarModel,
        vector.VectorModel,
        probability.MinMax,
        probability.Platt,
        probability.Isotonic,
        whitening.NoWhitening,
        whitening.ExactWhitening,
        whitening.LowRankWhitening,
        whitening.PcaWhitening,
    )
}


class Fuse:
    """Bayesian fusion of an input-level prior statistic s and evidence from sampled responses.

    >>> fuse = Fuse("practical").fit(samples, s, wrong)          # doctest: +SKIP
    >>> fuse.predict_proba(new_samples, new_s)                   # doctest: +SKIP
    >>> fuse.decide(new_samples, new_s, risk=0.2).answer         # doctest: +SKIP

    ``preset`` is ``practical`` (default) or ``paper``; any option of
    :class:`fusevlm.fuse.presets.Options` can be set on top of it.
    """

    def __init__(self, preset: str = "practical", **options: Any) -> None:
        self.preset = preset
        self.options = resolve(preset, options)
        self._model: Model | None = None
        self._threshold_data: ThresholdData | None = None

    def __repr__(self) -> str:
        state = "not fitted" if self._model is None else f"fitted on {self._model.n_calibration}"
        return f"Fuse({self.preset!r}, {state})"

    @property
    def model(self) -> Model:
        """The fitted constants."""
        if self._model is None:
            raise NotFittedError("this Fuse is not fitted yet; call fit(samples, s, wrong) first.")
        return self._model

    def fit(
        self,
        samples: Sequence[Samples],
        s: Any = None,
        wrong: Any = None,
        *,
        extra: Mapping[str, Any] | None = None,
        groups: Sequence[str] | None = None,
    ) -> Fuse:
        """Calibrate on queries; ``s=None`` means evidence only, ``wrong=None`` means no labels.

        ``extra`` is further evidence by name, one value per query, larger = less sure.
        ``groups`` names each query's group where thresholds are wanted per group.
        With labels the ``practical`` preset keeps half of the queries apart for the threshold, so
        that its guarantee holds; the ``paper`` preset uses all queries for everything.
        """
        batch = _batch(samples, s, extra)
        labels = None if wrong is None else checks.labels(wrong, length=len(batch))
        names = _groups(groups, len(batch))
        tune, apart = self._split(len(batch), labelled=labels is not None)
        part = batch if not len(apart) else batch.take(tune)
        self._model = fit_model(part, None if labels is None else labels[tune], self.options)
        self._threshold_data = None
        if labels is not None:
            kept = apart if len(apart) else tune
            scores = score_model(self._model, batch.take(kept), self.options, warn=False)
            self._threshold_data = ThresholdData(
                scores.u,
                labels[kept],
                len(apart) > 0,
                None if names is None else tuple(names[i] for i in kept),
            )
        return self

    def fit_threshold(
        self,
        samples: Sequence[Samples],
        s: Any,
        wrong: Any,
        *,
        extra: Mapping[str, Any] | None = None,
        groups: Sequence[str] | None = None,
    ) -> Fuse:
        """Choose thresholds on these labelled queries instead, none of which was in the fit."""
        scores = self.score(samples, s, extra=extra)
        labels = checks.labels(wrong, length=len(scores))
        names = _groups(groups, len(scores))
        self._threshold_data = ThresholdData(
            scores.u, labels, True, None if names is None else tuple(names)
        )
        return self

    def score(
        self, samples: Sequence[Samples], s: Any = None, *, extra: Mapping[str, Any] | None = None
    ) -> Scores:
        """Prior, evidence, posterior and u* of each query."""
        return score_model(self.model, _batch(samples, s, extra), self.options)

    def predict_proba(
        self,
        samples: Sequence[Samples] | Scores,
        s: Any = None,
        *,
        extra: Mapping[str, Any] | None = None,
    ) -> FloatArray:
        """P(wrong) of each query [N]; also takes what :meth:`score` returned."""
        return p_wrong(self.model, self._scored(samples, s, extra))

    def decide(
        self,
        samples: Sequence[Samples] | Scores,
        s: Any = None,
        *,
        risk: float = 0.2,
        delta: float = 0.1,
        rule: str | None = None,
        extra: Mapping[str, Any] | None = None,
        groups: Sequence[str] | None = None,
    ) -> Decisions:
        """Answer iff u* ≤ θ, θ chosen for ``risk`` on the labelled calibration queries.

        Under the preset's rule (``practical``: Learn-then-Test) the error rate among answered
        queries is at most ``risk`` with probability 1 − ``delta`` over the calibration set.
        """
        threshold = self.threshold(risk=risk, delta=delta, rule=rule, per_group=groups is not None)
        u = self._scored(samples, s, extra).u
        if isinstance(threshold, GroupThresholds):
            assert groups is not None
            return Decisions(threshold.answers(u, [str(g) for g in groups]), u, threshold)
        return Decisions(threshold.answers(u), u, threshold)

    def threshold(
        self,
        *,
        risk: float = 0.2,
        delta: float = 0.1,
        rule: str | None = None,
        per_group: bool = False,
    ) -> Threshold | GroupThresholds:
        """The threshold that :meth:`decide` uses; per group if the groups were given to the fit."""
        data = self._labelled()
        name = checks.choice(rule or self.options.rule, "rule", tuple(RULES))
        options: dict[str, Any] = {"risk": risk}
        if name != "empirical":
            options["delta"] = delta
        gridded = data.apart and name in ("learn_then_test", "clopper_pearson")
        if not per_group:
            if gridded:
                options["grid"] = self._grid(len(data.u), risk, delta)
            return RULES[name](data.u, data.wrong, **options)
        if data.groups is None:
            raise NotFittedError("the fit had no groups; pass groups=... to fit().")
        if gridded:
            options["grid"] = self._grid
        return thresholds.per_group(RULES[name], data.u, data.wrong, data.groups, **options)

    def risk_table(self, *, delta: float = 0.1, n_rows: int = 20) -> RiskTable:
        """Coverage, empirical and guaranteed risk at a few thresholds."""
        data = self._labelled()
        shares = np.arange(1, checks.count(n_rows, "n_rows") + 1) / n_rows
        grid = np.quantile(self.model.u, shares) if data.apart else None
        return thresholds.risk_table(data.u, data.wrong, delta=delta, n_rows=n_rows, grid=grid)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to the folder ``path`` (JSON + safetensors)."""
        saved = _Saved(self.preset, self.options, self.model, self._threshold_data)
        store.save_object(path, MANIFEST, "fusevlm.Fuse", SCHEMA_VERSION, saved)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Fuse:
        """Read a fit written by :meth:`save`; another schema is migrated or refused."""
        saved: _Saved = store.load_object(
            path, MANIFEST, "fusevlm.Fuse", SCHEMA_VERSION, _CLASSES, MIGRATIONS
        )
        fuse = cls(saved.preset)
        fuse.options = saved.options
        fuse._model = saved.model
        fuse._threshold_data = saved.threshold_data
        return fuse

    def _scored(
        self, samples: Sequence[Samples] | Scores, s: Any, extra: Mapping[str, Any] | None
    ) -> Scores:
        return samples if isinstance(samples, Scores) else self.score(samples, s, extra=extra)

    def _labelled(self) -> ThresholdData:
        if self._threshold_data is None:
            _ = self.model
            raise NotFittedError(
                "a threshold needs labels: fit with wrong=..., or call fit_threshold(samples, s, "
                "wrong) with labelled queries."
            )
        return self._threshold_data

    def _split(self, size: int, *, labelled: bool) -> tuple[Any, Any]:
        """Indices for tuning and those kept apart for the threshold."""
        n_apart = round(self.options.threshold_share * size) if labelled else 0
        if size - n_apart < 3:
            n_apart = 0
        order = np.random.default_rng(self.options.seed).permutation(size)
        return np.sort(order[n_apart:]), np.sort(order[:n_apart])

    def _grid(self, size: int, risk: float, delta: float) -> FloatArray:
        """Candidate thresholds from the tuning scores, ignorant of any other query."""
        risk, delta = checks.fraction(risk, "risk"), checks.fraction(delta, "delta")
        return thresholds.candidate_grid(self.model.u, size, risk, delta)


def _batch(samples: Any, s: Any, extra: Mapping[str, Any] | None) -> Batch:
    if isinstance(samples, Samples):
        raise InputError("expected a list of Samples, one per query; got a single one: [samples].")
    queries = list(samples)
    if not queries:
        raise InputError("samples is empty; expected one Samples per query.")
    for index, query in enumerate(queries):
        if not isinstance(query, Samples):
            raise InputError(
                f"samples[{index}] is a {type(query).__name__}; expected fusevlm.Samples."
            )
    size = len(queries)
    return Batch(
        queries,
        None if s is None else checks.vector(s, "s", length=size),
        {
            name: checks.vector(values, f"extra[{name!r}]", length=size)
            for name, values in (extra or {}).items()
        },
    )


def _groups(groups: Sequence[str] | None, size: int) -> list[str] | None:
    if groups is None:
        return None
    if len(groups) != size:
        raise InputError(f"groups has {len(groups)} entries; expected {size}, one per query.")
    return [str(group) for group in groups]
