"""Rounds in a run: fitted with the other methods, replayed on the test queries, and their price.

A run has all samples of its queries, so that every rule can be replayed on them. What is told of a
rule is what it would have generated – answers, and tokens where they are known – and what it would
have answered with its guarantee.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from fusevlm.checks import FloatArray, IntArray
from fusevlm.errors import FuseError, library_quiet
from fusevlm.fuse import thresholds
from fusevlm.fuse.estimator import divide
from fusevlm.fuse.rounds import RoundDecisions, Rounds, Tier, usual_tiers
from fusevlm.pipeline.methods import (
    GUARANTEED,
    Fitted,
    find_method,
    fit_method,
    scores_of_methods,
)
from fusevlm.scores import SCORES, Streamed
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


class _Sum:
    """A sum that is unknown once any of its terms is."""

    def __init__(self) -> None:
        self.value: float | None = 0.0

    def add(self, more: float | None) -> None:
        self.value = None if more is None or self.value is None else self.value + more

    def over(self, size: int) -> float | None:
        """The mean over so many."""
        return None if self.value is None else self.value / size


class Replay:
    """What a rule did to test queries at one risk and budget; they come some at a time."""

    def __init__(self, size: int) -> None:
        self.n = self.answered = self.wrong = 0
        self.spent, self.tokens = 0.0, _Sum()
        self.tiers = np.zeros(size, dtype=np.int64)

    def add(self, decided: RoundDecisions, queries: Queries, samples: IntArray) -> None:
        """Count some of them; ``samples`` are those of each tier."""
        self.n += len(queries)
        self.spent += float(decided.answers.sum())
        self.tokens.add(total_tokens(queries, samples[decided.tier], decided.answers))
        self.answered += int(decided.answer.sum())
        self.wrong += int(queries.wrong[decided.answer].sum())
        self.tiers += np.bincount(decided.tier, minlength=len(self.tiers))

    def row(self, risk: float, budget: float | None) -> dict[str, Any]:
        """As plain data."""
        return {
            "method": ADAPTIVE, "risk": risk, "budget": budget,
            "answers": self.spent / self.n,
            "tokens": self.tokens.over(self.n),
            **_covered(self.answered, self.wrong, self.n),
            "shares": [float(count / self.n) for count in self.tiers],
        }  # fmt: skip


def replayed(rounds: Rounds, tests: Queries | Iterable[Queries], config: Config) -> dict[str, Any]:
    """What the rule would have done to test queries, at each risk and for several budgets."""
    settings = config.evaluate
    tiers = rounds.fitted.tiers
    most = tiers[-1].answers - 1.0
    wanted = [None, *(b for b in BUDGETS if b < most), most]
    if config.rounds.samples is not None and config.rounds.samples not in wanted:
        wanted.append(config.rounds.samples)
    found = {(risk, budget): Replay(len(tiers)) for risk in settings.risks for budget in wanted}
    samples = np.array([tier.samples for tier in tiers])
    for queries in [tests] if isinstance(tests, Queries) else tests:
        known = rounds.score(queries)
        for (risk, budget), replay in found.items():
            decided = rounds.decide(known, risk=risk, delta=settings.delta, samples=budget)
            replay.add(decided, queries, samples)
    rows: list[dict[str, Any]] = []
    for (risk, budget), replay in found.items():
        row = replay.row(risk, budget)
        if budget is not None and any(
            other["risk"] == risk and other["answers"] == row["answers"] for other in rows
        ):
            continue  # a larger budget that buys nothing more
        rows.append(row)
    return {"tiers": [tier.name for tier in tiers], "rows": rows}


class Priced:
    """A method with a fixed number of samples at each risk; test queries come some at a time."""

    def __init__(self, fitted: Fitted, config: EvaluateConfig) -> None:
        self.fitted = fitted
        found = {risk: fitted.thresholds(risk, config.delta) for risk in config.risks}
        self.thetas = {risk: own[GUARANTEED] for risk, own in found.items() if GUARANTEED in own}
        self.answered = dict.fromkeys(self.thetas, 0)
        self.wrong = dict.fromkeys(self.thetas, 0)

    def add(self, queries: Queries) -> None:
        applied = self.fitted.apply(queries)
        for risk, theta in self.thetas.items():
            answer = applied.decide(GUARANTEED, theta)[0]
            self.answered[risk] += int(answer.sum())
            self.wrong[risk] += int(queries.wrong[answer].sum())


def curve(
    queries: Queries, counts: Sequence[int], methods: Sequence[str], config: Config
) -> list[dict[str, Any]]:
    """:func:`curve_of` of queries that are all at hand."""
    known, new = queries.split()
    return curve_of(known, lambda: [new], counts, methods, config)


def curve_of(
    known: Queries,
    tests: Callable[[], Iterable[Queries]],
    counts: Sequence[int],
    methods: Sequence[str],
    config: Config,
) -> list[dict[str, Any]]:
    """Cost and certified coverage of methods with fixed numbers of samples, and of early votes.

    Fitted on the calibration queries from their first n samples, measured on the others.
    """
    rows: list[dict[str, Any]] = []
    most = min(len(said) for queries in chain([known], tests()) for said in queries.samples)
    for n in [n for n in counts if n <= most]:
        rows += _at(n, known, tests, methods, config)
    return rows + _votes(known, tests, config)


def _at(
    n: int,
    known: Queries,
    tests: Callable[[], Iterable[Queries]],
    methods: Sequence[str],
    config: Config,
) -> list[dict[str, Any]]:
    """The rows of n samples."""
    own = replace(known.first(n), fit=np.arange(len(known)))
    streamed = Streamed(_scores(methods, config.calibrate), own)
    with library_quiet():
        columns = streamed.of_known().columns
    own = replace(own, fit=None, columns={**_others(own), **columns})
    priced: dict[str, Priced] = {}
    for name in methods:
        if name in SCORES and name not in columns:
            continue
        try:
            with library_quiet():
                fitted = fit_method(name, own, config.calibrate)
                priced[name] = Priced(fitted, config.evaluate)
        except FuseError as error:
            logger.info("%s has no cost: %s", name, error)
    size, spent = 0, _Sum()
    for queries in tests():
        cut = queries.first(n)
        with library_quiet():
            found = streamed.of(cut).columns
        cut = replace(cut, columns={**_others(cut), **found})
        spent.add(total_tokens(queries, np.full(len(cut), n)))
        size += len(cut)
        for name in list(priced):
            try:
                with library_quiet():
                    priced[name].add(cut)
            except (FuseError, KeyError) as error:
                logger.info("%s has no cost: %s", name, error)
                del priced[name]
    price = {"answers": float(n + 1), "tokens": spent.over(size)}
    return [
        {
            "method": name, "risk": risk, "samples": n, **price,
            **_covered(one.answered[risk], one.wrong[risk], size),
        }
        for name, one in priced.items()
        for risk in one.thetas
    ]  # fmt: skip


def _others(queries: Queries) -> dict[str, Any]:
    return {name: values for name, values in queries.columns.items() if name not in SCORES}


def _scores(methods: Sequence[str], config: CalibrateConfig) -> tuple[str, ...]:
    """The scores that the methods read."""
    wanted = [name for name in methods if name in SCORES]
    stacked = [name for name in methods if find_method(name, config).readout == "stacked"]
    return scores_of_methods([find_method(n, config) for n in methods], wanted if stacked else ())


def _votes(
    known: Queries, tests: Callable[[], Iterable[Queries]], config: Config
) -> list[dict[str, Any]]:
    """The early-stopping rules of others, with thresholds as baselines have them."""
    rows: list[dict[str, Any]] = []
    settings = config.evaluate
    if not known.has("texts"):
        return rows
    for name in VOTES:
        own = voted(name, known)[1]
        thetas = {
            risk: _threshold(own, known, risk, settings, config.calibrate)
            for risk in settings.risks
        }
        answered, wrong = dict.fromkeys(thetas, 0), dict.fromkeys(thetas, 0)
        drawn, size, spent = 0.0, 0, _Sum()
        for queries in tests():
            used, u = voted(name, queries)
            drawn, size = drawn + float(used.sum()), size + len(queries)
            spent.add(total_tokens(queries, used))
            for risk, theta in thetas.items():
                answer = theta.answers(u)
                answered[risk] += int(answer.sum())
                wrong[risk] += int(queries.wrong[answer].sum())
        rows += [
            {
                "method": name, "risk": risk, "samples": drawn / size,
                "answers": drawn / size + 1.0,
                "tokens": spent.over(size),
                **_covered(answered[risk], wrong[risk], size),
            }
            for risk in thetas
        ]  # fmt: skip
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


def _covered(answered: int, wrong: int, size: int) -> dict[str, Any]:
    return {"coverage": answered / size, "observed": wrong / answered if answered else None}


def tokens(queries: Queries, used: IntArray, answers: FloatArray | None = None) -> float | None:
    """Tokens generated for a query on average; see :func:`total_tokens`."""
    total = total_tokens(queries, used, answers)
    return None if total is None else total / len(queries)


def total_tokens(
    queries: Queries, used: IntArray, answers: FloatArray | None = None
) -> float | None:
    """Tokens generated for queries: their answers, so many samples, and what was asked.

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
    return total
