"""``Fuse``: fit on calibration queries, then score, predict P(wrong) and decide."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from fusevlm import store
from fusevlm.checks import FloatArray, IntArray
from fusevlm.displays import Displayed
from fusevlm.errors import ArtefactError, InputError, NotFittedError
from fusevlm.fuse import arguments, competence, kept, novelty, probability, scalar, vector
from fusevlm.fuse.drift import Drift, Reference
from fusevlm.fuse.explain import Explanation, References, explain
from fusevlm.fuse.kept import Kept
from fusevlm.fuse.model import Model, check_model, fit_model, hashes, p_wrong, score_model
from fusevlm.fuse.monitor import Monitor
from fusevlm.fuse.presets import PRESETS, Options, resolve
from fusevlm.fuse.prior import Prior, Statistics
from fusevlm.fuse.recalibration import Recalibration, Tilt, standing, update_map
from fusevlm.fuse.results import Decisions, Scores, decisions
from fusevlm.fuse.thresholds import GroupThresholds, RiskTable, Threshold
from fusevlm.fuse.watch import (
    StreamMonitor,
    batch_drift,
    columns_of,
    reference_of,
    warn_of_drift,
)
from fusevlm.maths import gaussians, whitening
from fusevlm.types import Queries, Samples

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 5
MANIFEST = "fuse.json"
LOOKED_AT = 64  # batches that are remembered, to warn of each once


@dataclass(frozen=True)
class _Saved:
    preset: str
    options: Options
    model: Model
    threshold_data: Kept | None
    reference: Reference | None


CLASSES: dict[str, type] = {  # of a model, as it is stored
    cls.__name__: cls
    for cls in (
        Options,
        Model,
        Kept,
        Prior,
        Statistics,
        scalar.ScalarModel,
        vector.VectorModel,
        probability.MinMax,
        probability.Platt,
        probability.Beta,
        probability.Isotonic,
        competence.Competence,
        competence.Projection,
        novelty.Novelty,
        novelty.Side,
        novelty.Numbers,
        gaussians.Gaussian,
        Reference,
        References,
        Tilt,
        whitening.NoWhitening,
        whitening.ExactWhitening,
        whitening.LowRankWhitening,
        whitening.PcaWhitening,
    )
}


MIGRATIONS: dict[int, store.Migration] = {  # before 4 fits knew no novelty
    4: lambda head: {**head, "schema_version": 5},  # nor what sources add, which stays unknown
}


def divide(units: Sequence[str], share: float, seed: int) -> tuple[IntArray, IntArray]:
    """Rows for tuning, and about a ``share`` of them kept apart; whole units, in a seeded order.

    Nothing is kept apart where fewer than 3 queries would be left to learn from.
    """
    names, owner = np.unique(np.asarray(units), return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    taken = np.cumsum(np.bincount(owner)[order])
    wanted = round(share * len(owner))
    chosen = order[: int(np.argmin(np.abs(taken - wanted))) + 1] if wanted else order[:0]
    apart = np.isin(owner, chosen)
    if np.sum(~apart) < 3:
        apart[:] = False
    return np.flatnonzero(~apart), np.flatnonzero(apart)


def codes(queries: Queries) -> IntArray:
    """The units as numbers."""
    return np.unique(np.asarray(queries.units), return_inverse=True)[1].astype(np.int64)


class Fuse(Displayed):
    """Bayesian fusion of input-level prior statistics and evidence from sampled responses.

    >>> fuse = Fuse("practical").fit(samples, wrong, s=s)        # doctest: +SKIP
    >>> fuse.predict_proba(new_samples, s=new_s)                 # doctest: +SKIP
    >>> fuse.decide(new_samples, s=new_s, risk=0.2).answer       # doctest: +SKIP

    ``preset`` is ``practical`` (default) or ``paper``; any option of
    :class:`fusevlm.fuse.presets.Options` can be set on top of it, such as ``cap=1.0``.

    What is known of the queries, in every method:

    samples  one :class:`Samples` per query; or a whole :class:`Queries`, which brings its own rest
    wrong    [N] 1 where the judged answer was wrong, 0 where it was right; None: no labels
    s        prior statistics: [N], [N, p] or {name: [N]}, each weighed by the labels (``paper``:
             the one named s, or their mean). None: evidence only
    inputs   embeddings of the inputs: [N, D] or {name: [N, D]}, for the competence prior
    views    how the inputs look: {name: [N, D]} or {name: texts}, by which novelty is judged; names
             that begin with image or question say which side. None: the inputs, or else s
    extra    further evidence by name, {name: [N]}, larger = less sure; NaN: not asked of it
    units    names [N]; queries of one unit (questions about one image) are never separated
    groups   names [N], where thresholds are wanted per group
    """

    def __init__(self, preset: str = "practical", **options: Any) -> None:
        self.options = resolve(preset, options)
        self.preset = preset
        self._given = options
        self._model: Model | None = None
        self._threshold_data: Kept | None = None
        self._reference: Reference | None = None  # of drift
        self._looked_at: deque[bytes] = deque(maxlen=LOOKED_AT)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The preset and the options that were set on top of it; for scikit-learn's ``clone``."""
        return {"preset": self.preset, **self._given}

    def set_params(self, **params: Any) -> Fuse:
        """Change the preset or options; what was fitted is forgotten."""
        if params:
            self.__init__(**{**self.get_params(), **params})  # type: ignore[misc]
        return self

    @property
    def model(self) -> Model:
        """The fitted constants; an error before the fit."""
        if self._model is None:
            raise NotFittedError(
                "this Fuse is not fitted yet; call fit(samples, wrong, s=s) first."
            )
        return self._model

    def fit(
        self,
        samples: Sequence[Samples] | Queries,
        wrong: Any = None,
        *,
        s: Any = None,
        inputs: Any = None,
        views: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        groups: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
    ) -> Fuse:
        """Calibrate on queries; ``s=None`` means evidence only, ``wrong=None`` means no labels.

        With labels the ``practical`` preset keeps some of the queries apart for the threshold, so
        that its guarantee holds, and sets P(wrong) by them; the ``paper`` preset uses all queries
        for everything. Queries of one unit stay together.
        """
        queries = arguments.calibration_of(
            samples, wrong=wrong, s=s, inputs=inputs, views=views, extra=extra, units=units
        )
        names = arguments.groups_of(groups, len(queries))
        labelled = queries.wrong is not None
        share = self.options.threshold_share if labelled else 0.0
        tune, apart = divide(queries.units or (), share, self.options.seed)
        blind = self._without_labels(queries, tune) if len(apart) else None
        if blind is not None:
            model, apart = blind, np.arange(len(queries))
        else:
            model = fit_model(queries.take(tune) if len(apart) else queries, self.options)
        data = None
        held = apart if len(apart) else tune
        rest = queries.take(held)
        scores = score_model(model, rest, self.options, warn=False)
        if labelled:
            own = None if names is None else tuple(names[i] for i in held)
            if len(apart) and self.options.probability != "min_max":
                honest = probability.fit_score_map(self.options.probability, scores.u, rest.wrong)
                model = replace(model, score_map=honest)
            p = p_wrong(model, scores)
            separate = len(apart) > 0
            data = Kept(
                scores.u, rest.wrong, p, scores.novelty, separate, own, codes(rest), hashes(rest)
            )
        self._model, self._threshold_data = model, data
        self._reference = reference_of(columns_of(model, rest, scores), rest, scores)
        self._looked_at.clear()
        return self

    def _without_labels(self, queries: Queries, tune: IntArray) -> Model | None:
        """The model that sees no label, where those of the ``tune`` rows are too few for weights.

        All labels are then left for the threshold. None where there are enough, and where novelty
        is judged: its references must be other queries than those of the threshold.
        """
        assert queries.wrong is not None
        wrong = queries.wrong[tune]
        enough = min(int(wrong.sum()), int((~wrong).sum())) >= vector.MIN_PER_CLASS
        if enough or self.options.fusion != "vector":
            return None
        blind = fit_model(replace(queries, wrong=None), replace(self.options, probability="auto"))
        if blind.vector is None or (blind.novelty is not None and blind.novelty.sides):
            return None
        logger.warning(
            "%d right and %d wrong labels are too few to set the weights by half of them (%d of "
            "each are needed there): the label-free ones are used, and all labels for thresholds.",
            int((~queries.wrong).sum()),
            int(queries.wrong.sum()),
            vector.MIN_PER_CLASS,
        )
        rate = vector.level(queries.wrong, None)
        return replace(blind, vector=replace(blind.vector, t=rate))

    def fit_threshold(
        self,
        samples: Sequence[Samples] | Queries,
        wrong: Any = None,
        *,
        s: Any = None,
        inputs: Any = None,
        views: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        groups: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
    ) -> Fuse:
        """Choose thresholds on these labelled queries instead, none of which was in the fit."""
        statistics = self.model.statistics.names
        queries = arguments.calibration_of(
            samples,
            wrong=wrong,
            s=s,
            inputs=inputs,
            views=views,
            extra=extra,
            units=units,
            statistics=statistics,
        )
        if queries.wrong is None:
            raise InputError("fit_threshold needs labels: pass wrong=... (1 where wrong).")
        names = arguments.groups_of(groups, len(queries))
        scores = score_model(self.model, queries, self.options)
        own = hashes(queries)
        again = int(np.isin(own, self.model.seen).sum()) if self.model.labelled else 0
        if again:
            logger.warning(
                "%d of %d queries were in the fit, labels included: thresholds from them have no "
                "guarantee. Use other queries.",
                again,
                len(queries),
            )
        self._threshold_data = Kept(
            scores.u,
            queries.wrong,
            self._p_if_known(scores, tilted=False),
            scores.novelty,
            again == 0,
            None if names is None else tuple(names),
            codes(queries),
            own,
        )
        return self

    def score(
        self,
        samples: Sequence[Samples] | Queries,
        *,
        s: Any = None,
        inputs: Any = None,
        views: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Scores:
        """Prior, evidence, posterior and u* of each query.

        A batch that is unlike the calibration's queries, or was among them, is warned of; once,
        however often it is scored.
        """
        names = self.model.statistics.names
        queries = arguments.queries_of(
            samples, s=s, inputs=inputs, views=views, extra=extra, statistics=names
        )
        scores = score_model(self.model, queries, self.options)
        self._warn_once(queries, scores)
        return scores

    def predict_proba(
        self,
        samples: Sequence[Samples] | Queries | Scores,
        *,
        s: Any = None,
        inputs: Any = None,
        views: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> FloatArray:
        """P(wrong) of each query [N]; also takes what :meth:`score` returned."""
        return p_wrong(
            self.model, self._scored(samples, s=s, inputs=inputs, views=views, extra=extra)
        )

    def decide(
        self,
        samples: Sequence[Samples] | Queries | Scores,
        *,
        risk: float = 0.2,
        delta: float = 0.1,
        rule: str | None = None,
        s: Any = None,
        inputs: Any = None,
        views: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        groups: Sequence[str] | None = None,
    ) -> Decisions:
        """Answer iff u* ≤ θ, P(wrong) is at most the cap and the query is not novel.

        θ is chosen for ``risk`` on the labelled calibration queries, over exactly that rule. Under
        the preset's rule (``practical``: Learn-then-Test) the error rate among answered queries is
        at most ``risk`` with probability 1 − ``delta`` over the calibration set. Also takes what
        :meth:`score` returned.

        risk    wanted error rate among the answered queries
        delta   the chance that it does not hold
        rule    another rule of :mod:`fusevlm.thresholds` than the preset's, by its name
        groups  a threshold for each group, all at once at 1 − delta (:meth:`group_thresholds`)
        """
        wanted: dict[str, Any] = {"risk": risk, "delta": delta, "rule": rule}
        theta = self.threshold(**wanted) if groups is None else self.group_thresholds(**wanted)
        scores = self._scored(samples, s=s, inputs=inputs, views=views, extra=extra)
        limits = theta.limits(arguments.groups_of(groups, len(scores)), len(scores))
        p = self._p_if_known(scores)
        return decisions(scores, p, limits, theta, self.options)

    def explain(
        self,
        samples: Sequence[Samples] | Queries,
        *,
        risk: float = 0.2,
        delta: float = 0.1,
        s: Any = None,
        inputs: Any = None,
        views: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> list[Explanation]:
        """Why each query is unsure: bars on one scale, and the reason in words.

        What each source adds to the posterior mean is ranked among the calibration queries; the
        reason is the first of novelty, input, competence and answers that stands out. ``risk`` and
        ``delta`` are those of the decision.
        """
        given: dict[str, Any] = {"s": s, "inputs": inputs, "views": views, "extra": extra}
        scores = self.score(samples, **given)
        rows = samples.samples if isinstance(samples, Queries) else list(samples)
        return self.explain_scores(scores, rows, self.decide(scores, risk=risk, delta=delta).reason)

    def explain_scores(
        self, scores: Scores, samples: Sequence[Samples], reasons: Sequence[str]
    ) -> list[Explanation]:
        """The same of queries that were scored and decided before, with the decisions' reasons."""
        return explain(self._scored(scores), self.model.references, samples, reasons)

    def threshold(
        self, *, risk: float = 0.2, delta: float = 0.1, rule: str | None = None
    ) -> Threshold:
        """The threshold that :meth:`decide` uses.

        Where weights and threshold saw the same labels (``threshold_share=0``) the true risk
        exceeds the wanted one far more often than ``delta``: ``guaranteed_risk`` is then None.
        """
        given: dict[str, Any] = {"risk": risk, "delta": delta, "rule": rule}
        return kept.threshold(self._labelled(), self.model, self.options, **given)

    def group_thresholds(
        self, *, risk: float = 0.2, delta: float = 0.1, rule: str | None = None
    ) -> GroupThresholds:
        """One threshold for each group that was named to the fit; see :meth:`threshold`."""
        given: dict[str, Any] = {"risk": risk, "delta": delta, "rule": rule}
        return kept.group_thresholds(self._labelled(), self.model, self.options, **given)

    def risk_table(self, *, delta: float = 0.1, n_rows: int = 20) -> RiskTable:
        """Coverage, empirical and guaranteed risk at a few thresholds; see :meth:`threshold`."""
        data = self._labelled()
        return kept.risk_table(data, self.model, self.options, delta=delta, n_rows=n_rows)

    def check_drift(
        self,
        samples: Sequence[Samples] | Queries,
        *,
        level: float = 0.05,
        permutations: int = 999,
        seed: int = 0,
        units: Sequence[str] | None = None,
        **given: Any,
    ) -> Drift:
        """Whether a batch of queries is like those of the calibration, and what moved.

        A permutation test (:func:`fusevlm.fuse.drift.check`) over evidence, prior statistics and
        inputs, given as to :meth:`score`. The level is exact where queries were kept apart, of
        which the first of each unit are compared.
        """
        queries = arguments.queries_of(
            samples, statistics=self.model.statistics.names, units=units, **given
        )
        scores = score_model(self.model, queries, self.options, warn=False)
        assert self._reference is not None
        options: dict[str, Any] = {"level": level, "permutations": permutations, "seed": seed}
        return batch_drift(self._reference, self.model, queries, scores, **options)

    def monitor(self, *, level: float = 0.01, seed: int = 0) -> StreamMonitor:
        """A monitor of a stream of queries, which may be looked at after each of them.

        At most a share ``level`` of all streams without drift ever gives an alarm
        (:class:`fusevlm.fuse.monitor.Monitor`).
        """
        _ = self.model
        assert self._reference is not None

        def columns(samples: Any, **given: Any) -> dict[str, FloatArray]:
            names = self.model.statistics.names
            queries = arguments.queries_of(samples, statistics=names, **given)
            scores = score_model(self.model, queries, self.options, warn=False)
            return columns_of(self.model, queries, scores)

        return StreamMonitor(Monitor(self._reference, level=level, seed=seed), columns)

    def recalibrate(
        self,
        samples: Sequence[Samples] | Queries,
        wrong: Any = None,
        *,
        risk: float = 0.2,
        delta: float = 0.1,
        **given: Any,
    ) -> Recalibration:
        """Bring P(wrong) up to date by a few labels of new queries, and θ where it must be.

        Of the labelled queries, those that the present rule answers tell whether ``risk`` is still
        kept. Where it is refuted, thresholds come from these labels from now on; where it is
        confirmed or open, they stay. P(wrong) is tilted in any case: little by few labels.
        """
        names = self.model.statistics.names
        queries = arguments.calibration_of(
            samples, wrong=wrong, statistics=names, **{"s": None, **given}
        )
        if queries.wrong is None:
            raise InputError("recalibrate needs labels: pass wrong=... (1 where wrong).")
        scores = score_model(self.model, queries, self.options, warn=False)
        before = p_wrong(self.model, scores)
        answered = self.decide(scores, risk=risk, delta=delta).answer
        verdict = standing(queries.wrong[answered], risk, delta)
        tilt = update_map(p_wrong(replace(self.model, tilt=None), scores), queries.wrong)
        self._model = replace(self.model, tilt=tilt)
        if verdict.verdict == "refuted":
            self.fit_threshold(queries)
        after = p_wrong(self.model, scores)
        return Recalibration(verdict, tilt, float(before.mean()), float(after.mean()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to the folder ``path`` (JSON + safetensors)."""
        saved = _Saved(self.preset, self.options, self.model, self._threshold_data, self._reference)
        store.save_object(path, MANIFEST, "fusevlm.Fuse", SCHEMA_VERSION, saved)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Fuse:
        """Read a fit written by :meth:`save`; another schema is migrated or refused."""
        saved: _Saved = store.load_object(
            path,
            MANIFEST,
            "fusevlm.Fuse",
            SCHEMA_VERSION,
            {"_Saved": _Saved, **CLASSES},
            MIGRATIONS,
            of=_Saved,
        )
        if saved.preset not in PRESETS:
            raise ArtefactError(f"{path} is of the preset {saved.preset!r}, which there is not.")
        try:
            check_model(saved.model, saved.options)
        except ArtefactError as error:
            raise ArtefactError(f"{path} is damaged: {error} Save it again.") from error
        usual, now = PRESETS[saved.preset], saved.options
        names = [f.name for f in fields(Options)]
        fuse = cls(
            saved.preset,
            **{k: getattr(now, k) for k in names if getattr(now, k) != getattr(usual, k)},
        )
        fuse._model, fuse._threshold_data = saved.model, saved.threshold_data
        fuse._reference = saved.reference
        return fuse

    def _title(self) -> str:
        return (
            ", ".join([f"Fuse({self.preset!r}", *(f"{k}={v!r}" for k, v in self._given.items())])
            + ")"
        )

    def _facts(self) -> dict[str, str]:
        if self._model is None:
            return {"state": "not fitted"}
        data, source = self._threshold_data, "; no labels for thresholds"
        if data is not None:
            kind = "other" if data.apart else "of the same"
            source = f"; thresholds from {len(data.u)} {kind} ones"
            if not self._model.labelled:  # of the same queries, or of others
                source = f" without labels; thresholds from {len(data.u)} with labels"
        return {
            "state": f"fitted on {self._model.n_calibration} queries{source}",
            "prior": ", ".join(self._model.statistics.names) or "none",
            "evidence": ", ".join(self._model.evidence),
            "rule": self.options.rule,
        }

    def _scored(self, samples: Any, **given: Any) -> Scores:
        if not isinstance(samples, Scores):
            return self.score(samples, **given)
        for name, value in given.items():
            if value is not None:
                raise InputError(f"{name} was given beside Scores, which rest on their own.")
        if samples.fit != self.model.digest(self.options):
            raise InputError(
                "these Scores are another fit's: their u is on another scale. Score the samples "
                "with this Fuse."
            )
        return samples

    def _p_if_known(self, scores: Scores, *, tilted: bool = True) -> FloatArray:
        """P(wrong); NaN where the fit had neither labels nor a base rate."""
        try:
            return p_wrong(self.model if tilted else replace(self.model, tilt=None), scores)
        except NotFittedError:
            return np.full(len(scores), np.nan)

    def _warn_once(self, queries: Queries, scores: Scores) -> None:
        """Warn of a batch that was in the fit or is unlike it, unless it was looked at before."""
        batch = blake2b(scores.u.tobytes(), digest_size=16).digest()
        if not logger.isEnabledFor(logging.WARNING) or batch in self._looked_at:
            return
        self._looked_at.append(batch)
        self._warn_of_seen(queries)
        if self._reference is not None:
            warn_of_drift(self._reference, self.model, queries, scores)

    def _warn_of_seen(self, queries: Queries) -> None:
        data = self._threshold_data
        known = [self.model.seen, *([] if data is None else [data.seen])]
        again = int(np.isin(hashes(queries), np.concatenate(known)).sum())
        if again:
            logger.warning(
                "%d of %d queries were in the fit: figures on them are optimistic. Judge on "
                "queries that were not.",
                again,
                len(queries),
            )

    def _labelled(self) -> Kept:
        if self._threshold_data is None:
            _ = self.model
            raise NotFittedError(
                "a threshold needs labels: fit with wrong=..., or call fit_threshold(samples, "
                "wrong, s=s) with labelled queries."
            )
        return self._threshold_data
