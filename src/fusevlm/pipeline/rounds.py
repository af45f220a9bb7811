"""Rounds in a run: fitted with the other methods, replayed on the test queries, and their price.

A run has all samples of its queries, so that every rule can be replayed on them. What is told of a
rule is what it would have generated – answers, and tokens where they are known – and what it would
have answered with its guarantee.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.errors import FuseError, library_quiet
from fusevlm.fuse import thresholds
from fusevlm.fuse.estimator import divide
from fusevlm.fuse.rounds import Rounds, Tier, usual_tiers
from fusevlm.pipeline.methods import GUARANTEED, find_method, fit_method, scores_of_methods
from fusevlm.scores import SCORES, compute_scores
from fusevlm.scores.votes import VOTES, voted
from fusevlm.settings import CalibrateConfig, Config, EvaluateConfig
from fusevlm.types import Queries

logger = logging.getLogger(__name__)

FREE = ("margin",)  # evidence that the judged answer brings
BUDGETS = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0)  # samples on average, of the curve
ADAPTIVE = "adaptive"


def tiers_of(config: Config, n: int) -> tuple[Tier, ...]:
    """The tiers of a config: evidence asked for after the answer alone, then up to n samples.

    Scores among ``calibrate.evidence`` rest on all samples, and belong to the last tier.
    """
    evidence, semantics = config.calibrate.evidence, config.semantics
    prices = {
        "complement": 1.0 + semantics.complement_samples,
        "rephrasing": float(semantics.rephrasings),
    }
    asked = {name: prices[name] for name in evidence if name in prices}
    free = tuple(name for name in evidence if name in FREE)
    late = tuple(name for name in evidence if name not in (*asked, *free))
    found = usual_tiers(n, asked, config.rounds.tiers)
    tiers = [replace(tier, extra=(*free, *tier.extra)) for tier in found]
    return (*tiers[:-1], replace(tiers[-1], extra=(*tiers[-1].extra, *late)))


def fit_rounds(known: Queries, config: Config) -> Rounds:
    """The rule of a run's calibration queries."""
    settings = config.calibrate
    most = min(len(said) for said in known.samples)
    rounds = Rounds(
        tiers_of(config, most), seed=settings.seed, threshold_share=settings.threshold_share
    )
    return rounds.fit(known)


def replayed(rounds: Rounds, queries: Queries, config: Config) -> dict[str, Any]:
    """What the rule would have done to test queries, at each risk and for several budgets."""
    settings = config.evaluate
    names = [tier.name for tier in rounds.fitted.tiers]
    most = rounds.fitted.tiers[-1].answers - 1.0
    wanted = [None, *(b for b in BUDGETS if b < most), most]
    if config.rounds.samples is not None and config.rounds.samples not in wanted:
        wanted.append(config.rounds.samples)
    rows: list[dict[str, Any]] = []
    known = rounds.score(queries)
    for risk in settings.risks:
        for budget in wanted:
            decided = rounds.decide(known, risk=risk, delta=settings.delta, samples=budget)
            spent = float(decided.answers.mean())
            if budget is not None and any(
                row["risk"] == risk and row["answers"] == spent for row in rows
            ):
                continue  # a larger budget that buys nothing more
            used = np.array([tier.samples for tier in rounds.fitted.tiers])[decided.tier]
            shares = [float(np.mean(decided.tier == k)) for k in range(len(names))]
            rows.append(
                {
                    "method": ADAPTIVE, "risk": risk, "budget": budget,
                    "answers": spent,
                    "tokens": tokens(queries, used, decided.answers),
                    **_coverage(decided.answer, queries.wrong), "shares": shares,
                }
            )  # fmt: skip
    return {"tiers": names, "rows": rows}


def curve(
    queries: Queries, counts: Sequence[int], methods: Sequence[str], config: Config
) -> list[dict[str, Any]]:
    """Cost and certified coverage of methods with fixed numbers of samples, and of early votes.

    Fitted on the calibration queries from their first n samples, measured on the others.
    """
    rows: list[dict[str, Any]] = []
    if not counts:
        return rows
    most = min(len(q) for q in queries.samples)
    for n in [n for n in counts if n <= most]:
        cut = queries.first(n)
        columns, absent = _scores(cut, methods, config.calibrate)
        cut = replace(cut, columns={**_others(queries), **columns})
        known, new = cut.split()
        price = {
            "answers": float(n + 1),
            "tokens": tokens(queries.take(queries.test), np.full(len(new), n)),
        }
        for name in methods:
            if name in absent:
                continue
            for risk, answered in _certified(name, known, new, config).items():
                facts = {"method": name, "risk": risk, "samples": n, **price}
                rows.append({**facts, **_coverage(answered, new.wrong)})
    return rows + _votes(queries, config)


def _others(queries: Queries) -> dict[str, Any]:
    return {name: values for name, values in queries.columns.items() if name not in SCORES}


def _scores(
    queries: Queries, methods: Sequence[str], config: CalibrateConfig
) -> tuple[dict[str, FloatArray], Mapping[str, str]]:
    wanted = [name for name in methods if name in SCORES]
    stacked = [name for name in methods if find_method(name, config).readout == "stacked"]
    names = scores_of_methods([find_method(n, config) for n in methods], wanted if stacked else ())
    with library_quiet():
        return compute_scores(queries, names)


def _certified(name: str, known: Queries, new: Queries, config: Config) -> dict[float, BoolArray]:
    """Who is answered with the guarantee, by risk; nothing where the method cannot be had."""
    settings = config.evaluate
    try:
        with library_quiet():
            fitted = fit_method(name, known, config.calibrate)
            applied = fitted.apply(new)
            found = {
                risk: fitted.thresholds(risk, settings.delta).get(GUARANTEED)
                for risk in settings.risks
            }
    except FuseError as error:
        logger.info("%s has no cost: %s", name, error)
        return {}
    return {
        risk: applied.decide(GUARANTEED, theta)[0]
        for risk, theta in found.items()
        if theta is not None
    }


def _votes(queries: Queries, config: Config) -> list[dict[str, Any]]:
    """The early-stopping rules of others, with thresholds as baselines have them."""
    rows: list[dict[str, Any]] = []
    settings = config.evaluate
    if not queries.has("texts"):
        return rows
    for name in VOTES:
        used, u = voted(name, queries)
        known, new = queries.fit, queries.test
        for risk in settings.risks:
            theta = _threshold(u[known], queries.take(known), risk, settings, config.calibrate)
            rows.append(
                {
                    "method": name, "risk": risk, "samples": float(used[new].mean()),
                    "answers": float(used[new].mean() + 1.0),
                    "tokens": tokens(queries.take(new), used[new]),
                    **_coverage(theta.answers(u[new]), queries.wrong[new]),
                }
            )  # fmt: skip
    return rows


def _threshold(
    u: FloatArray, known: Queries, risk: float, settings: EvaluateConfig, config: CalibrateConfig
) -> thresholds.Threshold:
    """As of a baseline: candidates from the tuning queries, the test on those kept apart."""
    tune, held = divide(known.units or (), config.threshold_share, config.seed)
    order = tune[np.argsort(u[tune], kind="stable")]
    grid = thresholds.candidate_grid(
        u[order], len(held), risk, settings.delta, wrong=known.wrong[order]
    )
    return thresholds.learn_then_test(
        u[held], known.wrong[held], risk=risk, delta=settings.delta, grid=grid
    )


def _coverage(answered: BoolArray, wrong: BoolArray) -> dict[str, Any]:
    observed = float(wrong[answered].mean()) if answered.any() else None
    return {"coverage": float(answered.mean()), "observed": observed}


def tokens(queries: Queries, used: IntArray, answers: FloatArray | None = None) -> float | None:
    """Tokens generated for a query on average: its answer, so many samples, and what was asked.

    What was asked otherwise, such as the negated question, counts as long as the judged answer.
    None where a model gives no log-probabilities, by which they are counted.
    """
    if any(q.answer_logprobs is None for q in queries.samples):
        return None
    if any(q.token_logprobs is None and len(q) for q in queries.samples):
        return None
    total = 0.0
    for k, (said, n) in enumerate(zip(queries.samples, used.tolist(), strict=True)):
        asked = 0.0 if answers is None else float(answers[k]) - 1.0 - n
        total += len(said.answer_logprobs) * (1.0 + asked)
        total += sum(len(row) for row in (said.token_logprobs or ())[:n])
    return total / len(queries)
