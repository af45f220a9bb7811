"""The methods compared: FUSE in its forms, and any score column with a calibrated probability."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from fusevlm import checks, store
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.config import CalibrateConfig
from fusevlm.errors import InputError
from fusevlm.fuse import probability, thresholds
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.thresholds import Threshold
from fusevlm.pipeline.score import PRIOR, Scored

GUARANTEED, EMPIRICAL = "learn_then_test", "empirical"
SHOWN = ("m0", "evidence", "m_post", "sigma_post", "prior_weight")


@dataclass(frozen=True, eq=False)
class Judged:
    """What a method says of each query."""

    u: FloatArray
    p_wrong: FloatArray
    u_guaranteed: FloatArray  # what the threshold with the guarantee is compared with
    columns: dict[str, FloatArray]  # more to show, such as m0 and evidence

    def answers(self, theta: Threshold) -> BoolArray:
        """Which queries are answered under a threshold of the same method."""
        return theta.answers(self.u_guaranteed if theta.rule == GUARANTEED else self.u)


class Method(Protocol):
    """A fitted method."""

    def judge(self, queries: Scored) -> Judged: ...

    def threshold(self, rule: str, risk: float, delta: float) -> Threshold: ...

    def save(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class FuseForm:
    """A form of FUSE: its preset, and whether it is given the prior statistic."""

    preset: str
    with_s: bool


FORMS: dict[str, FuseForm] = {
    "practical": FuseForm("practical", with_s=True),
    "paper": FuseForm("paper", with_s=True),
    "evidence-only": FuseForm("practical", with_s=False),
}
ALIASES = {"prior-only": PRIOR}  # method: score column


@dataclass(frozen=True, eq=False)
class FuseMethod:
    """A fitted Fuse, and for the guarantee one that kept its threshold queries apart.

    They are the same object, except for the paper's preset, which reuses all queries for all.
    """

    fuse: Fuse
    apart: Fuse
    with_s: bool

    def judge(self, queries: Scored) -> Judged:
        s = queries.s if self.with_s else None
        scores = self.fuse.score(queries.samples, s)
        shown = {name: getattr(scores, name) for name in SHOWN}
        apart = scores if self.apart is self.fuse else self.apart.score(queries.samples, s)
        return Judged(scores.u, self.fuse.predict_proba(scores), apart.u, shown)

    def threshold(self, rule: str, risk: float, delta: float) -> Threshold:
        fuse = self.apart if rule == GUARANTEED else self.fuse
        theta = fuse.threshold(risk=risk, delta=delta, rule=rule)
        assert isinstance(theta, Threshold)  # there are no groups here
        return theta

    def save(self, folder: Path) -> None:
        self.fuse.save(folder)
        if self.apart is not self.fuse:
            self.apart.save(folder / "apart")


@dataclass(frozen=True, eq=False)
class Column:
    """A score column: P(wrong) from one part of the calibration queries, thresholds from the rest.

    The same discipline as Fuse's: candidates come from the tuning part, so the guarantee holds.
    """

    column: str
    score_map: probability.Platt | probability.Isotonic
    tuning_u: FloatArray
    u: FloatArray
    wrong: BoolArray

    def judge(self, queries: Scored) -> Judged:
        u = queries.columns[self.column]
        return Judged(u, self.score_map(u), u, {})

    def threshold(self, rule: str, risk: float, delta: float) -> Threshold:
        if rule == EMPIRICAL:
            return thresholds.empirical(self.u, self.wrong, risk=risk)
        grid = thresholds.candidate_grid(self.tuning_u, len(self.u), risk, delta)
        return thresholds.learn_then_test(self.u, self.wrong, risk=risk, delta=delta, grid=grid)

    def save(self, folder: Path) -> None:
        store.save_object(folder, COLUMN_FILE, COLUMN_KIND, 1, self)


COLUMN_FILE, COLUMN_KIND = "column.json", "fusevlm.Column"
_CLASSES: dict[str, type] = {
    cls.__name__: cls for cls in (Column, probability.Platt, probability.Isotonic)
}


def fit_method(name: str, queries: Scored, config: CalibrateConfig) -> Method:
    """Fit one method on calibration queries."""
    check_methods([name], queries.columns)
    if name not in FORMS:
        column = ALIASES.get(name, name)
        return fit_column(column, queries.columns[column], queries.wrong, config)
    form = FORMS[name]
    s = queries.s if form.with_s else None
    fuse = Fuse(form.preset, seed=config.seed).fit(queries.samples, s, queries.wrong)
    share = config.threshold_share
    if fuse.options.threshold_share == share:
        return FuseMethod(fuse, fuse, form.with_s)
    apart = Fuse(form.preset, seed=config.seed, threshold_share=share)
    apart.fit(queries.samples, s, queries.wrong)
    keeps_apart = fuse.options.threshold_share > 0
    return FuseMethod(apart if keeps_apart else fuse, apart, form.with_s)


def fit_column(column: str, u: FloatArray, wrong: BoolArray, config: CalibrateConfig) -> Column:
    """Split the calibration queries; map on one part, threshold data from the other."""
    order = np.random.default_rng(config.seed).permutation(len(u))
    n_apart = round(config.threshold_share * len(u))
    apart, tune = np.sort(order[:n_apart]), np.sort(order[n_apart:])
    checks.both_classes(wrong[tune], f"P(wrong) of {column}")
    fit = probability.fit_platt if config.probability == "platt" else probability.fit_isotonic
    return Column(column, fit(u[tune], wrong[tune]), np.sort(u[tune]), u[apart], wrong[apart])


def check_methods(names: Iterable[str], columns: Iterable[str]) -> None:
    """Refuse a method that is neither a form of FUSE nor a score column."""
    known = [*FORMS, *ALIASES, *columns]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"calibrate.methods holds {name!r}, which is neither a form of FUSE nor a score "
                f"column.{hint} Known are: {', '.join(known)}."
            )


def load_method(name: str, folder: Path) -> Method:
    """What :func:`fit_method` made and ``save`` wrote."""
    if name in FORMS:
        fuse = Fuse.load(folder)
        apart = folder / "apart"
        return FuseMethod(fuse, Fuse.load(apart) if apart.is_dir() else fuse, FORMS[name].with_s)
    found: Column = store.load_object(folder, COLUMN_FILE, COLUMN_KIND, 1, _CLASSES, {})
    return found
