"""How many labels until a risk can be certified: exact where it can be, by simulation otherwise.

The model of the scores is binormal: u | right ~ N(0, 1), u | wrong ~ N(√2·Φ⁻¹(AUROC), 1). With the
overall error rate it gives the error rate of the surest share of all queries exactly.

==========  ======================================================================================
labels      what happens from there on
==========  ======================================================================================
``least``   exact: with fewer nothing can be certified, even with every answer right
``first``   simulated: something is certified, at whatever coverage, with probability ``power``
``single``  exact: one test, at the threshold of the wanted coverage and no other, succeeds
``needed``  simulated: the certified threshold answers the wanted coverage or more
==========  ======================================================================================

Labels are divided as :class:`~fusevlm.Fuse` divides them: a ``share`` of them tests thresholds, the
others choose the candidates. The simulation is ``candidate_grid`` and ``learn_then_test`` of
``fuse.thresholds`` for many label sets at once; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.displays import Displayed
from fusevlm.errors import InputError
from fusevlm.fuse.thresholds import first_coverage, least_answers
from fusevlm.maths import bounds
from fusevlm.metrics import auroc as auroc_of

MAX_LABELS = 20_000  # nobody labels more for a threshold; beyond it the answer is None
REPETITIONS = 400  # simulated label sets: a standard error of .015 at a power of .9
RUNG = 1.05  # simulated numbers of labels are these steps apart
GUESS = 1.15  # the sequence needs about so much more than the best single test
BATCH = 100  # label sets after which a simulation may stop, where its result is plain
PRIOR_QUERIES = 50  # what the binormal curve counts for beside observed errors (why_nothing)
COVERAGES = np.linspace(0.05, 1.0, 20)  # where a first test may succeed


@dataclass(frozen=True)
class Binormal:
    """Scores of a model wrong in ``error_rate`` of all queries, ranked as well as ``auroc``."""

    error_rate: float
    auroc: float

    @property
    def shift(self) -> float:
        """How much higher the scores of wrong answers are: √2·Φ⁻¹(AUROC)."""
        from scipy.special import ndtri

        return float(np.sqrt(2.0) * ndtri(self.auroc))

    def coverage_at(self, theta: Any) -> FloatArray:
        """P(u ≤ θ)."""
        from scipy.special import ndtr

        right, wrong = ndtr(theta), ndtr(theta - self.shift)
        return np.asarray((1.0 - self.error_rate) * right + self.error_rate * wrong)

    def error_at(self, coverage: float) -> float:
        """P(wrong | u ≤ θ) at the θ that answers ``coverage`` of all queries."""
        from scipy.optimize import brentq
        from scipy.special import ndtr

        if coverage >= 1.0:
            return self.error_rate
        edge = 40.0 + self.shift
        theta = brentq(lambda t: float(self.coverage_at(t)) - coverage, -edge, edge, xtol=1e-12)
        return float(self.error_rate * ndtr(theta - self.shift) / coverage)

    def errors_at(self, coverages: FloatArray) -> FloatArray:
        """:meth:`error_at` of each."""
        return np.array([self.error_at(float(coverage)) for coverage in coverages])

    def largest_coverage(self, risk: float) -> float:
        """The coverage at which the error rate reaches ``risk``: no larger one can be certified."""
        from scipy.optimize import brentq
        from scipy.special import log_ndtr, logit

        if self.error_rate < risk:
            return 1.0
        if self.shift <= 0.0:
            return 0.0
        # the odds of being wrong below θ are odds(error rate)·Φ(θ − shift)/Φ(θ)
        wanted = logit(risk) - logit(self.error_rate)

        def excess(theta: float) -> float:
            return float(log_ndtr(theta - self.shift) - log_ndtr(theta) - wanted)

        far = -1.0
        while excess(far) > 0.0:
            far *= 2.0
        return float(self.coverage_at(brentq(excess, far, 40.0 + self.shift)))

    def draw(self, rng: np.random.Generator, size: int) -> tuple[FloatArray, BoolArray]:
        """Scores and labels of ``size`` queries; a larger draw begins with the smaller one."""
        from scipy.special import ndtri

        noise = rng.standard_normal((size, 2))
        wrong = noise[:, 0] < ndtri(self.error_rate)
        return noise[:, 1] + self.shift * wrong, wrong


@dataclass(frozen=True, repr=False)
class LabelPlan(Displayed):
    """What so many labels bring; None where more than ``MAX_LABELS`` would be needed, or forever.

    All numbers count labels in all, those for tuning included. What was given stands beside what
    was found: ``risk``, ``delta``, ``coverage``, ``error_rate``, ``auroc``, ``power``, ``share``.

    error_at_coverage  error rate among the wanted coverage of surest queries
    largest_coverage   no more than this could be certified, however many the labels
    least              exact: below it nothing is certified, even with every answer right
    first              simulated: from here on something is certified, at whatever coverage
    single             exact: one test at the wanted coverage would succeed
    needed             simulated: the certified threshold answers the wanted coverage, or more
    first_share        share of simulated label sets of that size after which it was so
    needed_share       the same of ``needed``
    repetitions        simulated label sets
    """

    risk: float
    delta: float
    coverage: float
    error_rate: float
    auroc: float
    power: float
    share: float
    error_at_coverage: float
    largest_coverage: float
    least: int
    first: int | None
    single: int | None
    needed: int | None
    first_share: float | None
    needed_share: float | None
    repetitions: int

    @property
    def possible(self) -> bool:
        """Whether the wanted coverage can be certified at all."""
        return self.error_at_coverage < self.risk

    def facts(self) -> dict[str, str]:
        """What to show of it, in words."""
        answered = f"{self.coverage:.3g} of all queries"
        surest = f"{self.error_at_coverage:.3g} of the surest {self.coverage:.3g}"
        return {
            "wanted": f"answer {answered}, at most {self.risk:g} of them wrong, with probability "
            f"{1 - self.delta:g}",
            "assumed": f"wrong in {self.error_rate:.3g} of all queries and in {surest} "
            f"(AUROC {self.auroc:.3g})",
            "at best": f"{self.largest_coverage:.3g} of all queries, with any number of labels",
            "nothing": f"below {self.least:,} labels, even with every answer right (exact)",
            "something": self._simulated(self.first, self.first_share),
            "wanted coverage": self._wanted(),
            "labels": f"{self.share:g} of them test the threshold, the others set the score and "
            "the candidates",
        }

    def _wanted(self) -> str:
        if not self.possible:
            less = f"a coverage below {self.largest_coverage:.3g}, " * (self.largest_coverage > 0)
            return f"impossible with any number of labels: ask for {less}a larger risk or AUROC"
        alone = "" if self.single is None else f"; {self.single:,} if one test were enough (exact)"
        return self._simulated(self.needed, self.needed_share) + alone

    def _simulated(self, labels: int | None, share: float | None) -> str:
        if labels is None or share is None:
            return f"not with {MAX_LABELS:,} labels"
        error = 2.0 * np.sqrt(max(share * (1 - share), 1 / self.repetitions) / self.repetitions)
        return f"from about {labels:,} labels on (simulated probability {share:.3f} ± {error:.3f})"

    def _title(self) -> str:
        return "How many labels?"

    def _facts(self) -> dict[str, str]:
        return self.facts()


def labels_needed(
    *,
    risk: float,
    error_rate: float,
    delta: float = 0.1,
    coverage: float = 0.5,
    auroc: float = 0.85,
    power: float = 0.9,
    share: float = 0.5,
    seed: int = 0,
    repetitions: int = REPETITIONS,
) -> LabelPlan:
    """How many labels until ``risk`` can be certified, and until ``coverage`` is answered with it.

    risk, delta  the error rate among answered queries is to be at most risk, with 1 − delta
    coverage     share of all queries that are to be answered
    error_rate   of the model over all queries
    auroc        how well the score ranks wrong above right, at least 0.5 (a pilot's will do)
    power        probability, over the draw of labels, with which it is to succeed
    share        of the labels kept for the threshold (``threshold_share`` of Fuse)

    A coverage at which the error rate is above the risk is impossible: the plan says so, with the
    largest that is not. Simulated numbers are taken one standard error on the safe side of
    ``power`` and are 5 % apart, so they are rather too large than too small. They assume that the
    score ranks alike with any number of labels.
    """
    risk, delta = checks.fraction(risk, "risk"), checks.fraction(delta, "delta")
    coverage, power = checks.fraction(coverage, "coverage"), checks.fraction(power, "power")
    share, rate = checks.fraction(share, "share"), checks.fraction(error_rate, "error_rate")
    repetitions = checks.count(repetitions, "repetitions", least=BATCH)
    world = Binormal(rate, _ranking(auroc))
    there, largest = world.error_at(coverage), world.largest_coverage(risk)
    least = in_all(least_answers(risk, delta), share)
    alone = None
    if there < risk:
        alone = single_test(coverage, there, risk, delta, power, round(share * MAX_LABELS))
    single = None if alone is None else in_all(alone, share)
    trials = _Trials(world, risk, delta, share, seed, repetitions)
    first = needed = None
    about, _ = _first_size(world.errors_at(COVERAGES), risk, delta, power)
    if about is not None and least < MAX_LABELS:
        first = _search(lambda n: trials.succeed(n, 0.0, power), least, GUESS * about / share)
    if first is not None and single is not None:
        guess = max(first, GUESS * single)
        needed = _search(lambda n: trials.succeed(n, coverage, power), least, guess)
    return LabelPlan(
        risk,
        delta,
        coverage,
        rate,
        world.auroc,
        power,
        share,
        there,
        largest,
        least,
        first,
        single,
        needed,
        None if first is None else trials.share_of(first, 0.0),
        None if needed is None else trials.share_of(needed, coverage),
        repetitions,
    )


def in_all(size: int, share: float) -> int:
    """Fewest labels of which ``size`` are kept for the threshold, at least 3 being left to tune."""
    labels = max(size + 3, int((size - 0.5) / share))
    while round(share * labels) < size or labels - round(share * labels) < 3:
        labels += 1
    return labels


def single_test(
    coverage: float, error: float, risk: float, delta: float, power: float, most: int
) -> int | None:
    """Fewest threshold labels with which one exact test at this coverage succeeds; None: > most.

    Of n labels m ~ Bin(n, coverage) are answered, and Bin(m, error) of those are wrong. The power
    rises in teeth: the number returned holds, and so does every one above it up to ``most``.
    """
    chance = single_powers(coverage, error, risk, delta, most)
    low = np.flatnonzero(chance < power)
    found = int(low[-1]) + 1 if len(low) else 0
    return found if found <= most else None


def single_powers(
    coverage: float, error: float, risk: float, delta: float, most: int
) -> FloatArray:
    """P(one test at this coverage succeeds) with 0, 1, …, ``most`` threshold labels.

    E[g(M)] for M ~ Bin(n, c) and every n: one query more is answered or not, so that the values for
    n + 1 labels are (1 − c)·g(m) + c·g(m + 1) of those for n.
    """
    g = bounds.power_of_test(np.arange(most + 1), error, risk, delta)
    found = np.empty(most + 1)
    for n in range(most + 1):
        found[n] = g[0]
        g = (1.0 - coverage) * g[:-1] + coverage * g[1:]
    return found


@dataclass(frozen=True)
class _Trials:
    """Label sets drawn from ``world``, each taken through the whole procedure.

    The same label sets serve every number of labels, longer ones beginning with the shorter.
    """

    world: Binormal
    risk: float
    delta: float
    share: float
    seed: int
    repetitions: int
    reached: dict[int, FloatArray] = field(default_factory=dict)  # labels: true coverages

    def succeed(self, labels: int, coverage: float, power: float) -> bool:
        """Whether ``power`` is reached, with one standard error to spare."""
        goal = min(1.0, power + np.sqrt(power * (1.0 - power) / self.repetitions))
        for size in range(BATCH, self.repetitions, BATCH):
            seen = self.share_of(labels, coverage, size)
            if abs(seen - goal) > 3.0 * np.sqrt(power * (1.0 - power) / size):
                return bool(seen > goal)
        return bool(self.share_of(labels, coverage) >= goal)

    def share_of(self, labels: int, coverage: float, size: int | None = None) -> float:
        """Share of the first ``size`` label sets that certify something, and ``coverage`` of it."""
        size = size or self.repetitions
        seen = self.reached.get(labels, np.zeros(0))
        while len(seen) < size:
            numbers = range(len(seen), min(len(seen) + BATCH, size))
            theta = self.thresholds(*self.draws(labels, numbers))
            seen = np.concatenate([seen, self.world.coverage_at(theta)])
        self.reached[labels] = seen
        return float(np.mean((seen[:size] > 0.0) & (seen[:size] >= coverage)))

    def draws(self, labels: int, numbers: Iterable[int]) -> tuple[FloatArray, BoolArray, BoolArray]:
        """Scores and labels of these label sets [sets, labels], and which are kept apart."""
        seeds = [np.random.default_rng([self.seed, number]) for number in numbers]
        sets = [self.world.draw(rng, labels) for rng in seeds]
        steps = np.rint(self.share * np.arange(labels + 1))  # of any first n, round(share·n)
        return np.array([u for u, _ in sets]), np.array([w for _, w in sets]), np.diff(steps) > 0

    def thresholds(self, u: FloatArray, wrong: BoolArray, apart: BoolArray) -> FloatArray:
        """``learn_then_test`` with the ``candidate_grid`` of the others, for all sets at once."""
        scores, errors = _in_order(u[:, ~apart], wrong[:, ~apart])
        size = int(apart.sum())
        wrong_in_order = np.diff(errors, axis=1)
        start = np.array(
            [[first_coverage(own, size, self.risk, self.delta)] for own in wrong_in_order]
        )
        place = (start + (1.0 - start) * np.linspace(0.0, 1.0, 161)) * (scores.shape[1] - 1)
        below = np.minimum(place.astype(int), scores.shape[1] - 2)
        low, high = (np.take_along_axis(scores, below + k, axis=1) for k in (0, 1))
        grid = low + (place - below) * (high - low)
        scores, errors = _in_order(u[:, apart], wrong[:, apart])
        pairs = zip(scores, grid, strict=True)
        answered = np.array([np.searchsorted(mine, theta, side="right") for mine, theta in pairs])
        allowed = bounds.allowed_errors(np.arange(size + 1), self.risk, self.delta)[answered]
        failed = np.take_along_axis(errors, answered, axis=1) > allowed
        stop = np.where(failed.any(axis=1), np.argmax(failed, axis=1), grid.shape[1])
        last = np.take_along_axis(grid, np.maximum(stop - 1, 0)[:, None], axis=1)[:, 0]
        return np.where(stop > 0, last, -np.inf)


def _in_order(u: FloatArray, wrong: BoolArray) -> tuple[FloatArray, IntArray]:
    """Scores of each set, ascending, and the errors among the first 0, 1, … of them."""
    order = np.argsort(u, axis=1)
    errors = np.cumsum(np.take_along_axis(wrong, order, axis=1), axis=1)
    return np.take_along_axis(u, order, axis=1), np.pad(errors, ((0, 0), (1, 0)))


def _search(holds: Callable[[int], bool], least: int, guess: float) -> int | None:
    """The first number of labels on a ladder from ``least`` up that ``holds``; None: none does.

    From the ``guess`` on in growing steps until it is enclosed, then by halves.
    """
    rungs = np.geomspace(least, MAX_LABELS, 2 + int(np.log(MAX_LABELS / least) / np.log(RUNG)))
    ladder = np.unique(np.ceil(rungs).astype(int)).tolist()
    low, high, step = -1, len(ladder), 2
    at = min(int(np.searchsorted(ladder, guess)), high - 1)
    while high - low > 1:
        if holds(ladder[at]):
            high = at
        else:
            low = at
        if high == len(ladder):
            at = min(low + step, high - 1)
        elif low == -1:
            at = max(high - step, 0)
        else:
            at = (low + high) // 2
        step *= 2
    return ladder[high] if high < len(ladder) else None


def _ranking(auroc: float) -> float:
    value = checks.fraction(auroc, "auroc")
    if value < 0.5:
        raise InputError(
            f"auroc is {value:g}: such a score ranks the wrong way. Pass its negative, whose AUROC "
            f"is {1 - value:g}."
        )
    return value


def why_nothing(
    u: Any,
    wrong: Any,
    *,
    risk: float,
    delta: float = 0.1,
    tuning_u: Any = None,
    tuning_wrong: Any = None,
    share: float = 0.5,
    power: float = 0.9,
) -> str:
    """One sentence on why nothing was certified with the threshold queries ``u``, ``wrong``.

    The error curve is that of the tuning queries where they are given, else of these. ``share`` is
    that of labels kept for the threshold; 1 where all labels go there (``fit_threshold``).
    """
    labels = checks.labels(wrong)
    scores = checks.vector(u, "u", length=len(labels))
    known = scores if tuning_u is None else checks.vector(tuning_u, "tuning_u")
    errors = labels if tuning_u is None else checks.labels(tuning_wrong, length=len(known))
    size, fewest = len(labels), least_answers(risk, delta)
    rate = _error_curve(known, errors)
    enough, at = _first_size(rate, risk, delta, power)
    surest = f"the surest {COVERAGES[at]:.0%} are wrong in about {rate[at]:.1%}"
    start = f"nothing is certified at risk {risk:g} and delta {delta:g}: "
    hope = "label more, or ask for a larger risk"
    if enough is not None:
        hope = f"about {_rounded(GUESS * enough / share):,} labels in all should do"
    if labels.all():
        return start + (
            f"all {size} labels kept for the threshold are wrong; check that 1 means wrong, or "
            "answer nothing with this model."
        )
    if not labels.any() and size < 2 * fewest:
        return start + (
            f"all {size} labels kept for the threshold are right, but at least {fewest} of them "
            f"must lie below the first candidate threshold; about {_rounded(2 * fewest / share):,} "
            "labels in all should do."
        )
    if size < fewest:
        return start + (
            f"at least {fewest} answered labels are needed, all of them right, and {size} were "
            f"kept for the threshold; {hope}."
        )
    if enough is None:
        m = int(np.round(COVERAGES[at] * len(known)))
        right = m - int(errors[np.argsort(known)[:m]].sum())
        sure = 1.0 - bounds.clopper_pearson_upper(right, m, delta) > risk  # the lower limit
        verdict = "more labels will not help" if sure else "more labels will hardly help"
        return start + (
            f"{verdict}, for {surest} (by {len(known)} labels); ask for a risk well above that, or "
            "bring better evidence."
        )
    if GUESS * enough <= size:
        return start + (
            f"{surest} (by {len(known)} labels), for which {size} threshold labels mostly suffice, "
            "but these had more errors than that; label more queries, or ask for a larger risk."
        )
    return start + (
        f"{surest} (by {len(known)} labels), and {size} labels kept for the threshold are too few "
        f"to show that it is below the risk; {hope}."
    )


def _error_curve(u: FloatArray, wrong: BoolArray) -> FloatArray:
    """Error rates among the surest, at COVERAGES: those seen, smoothed by a binormal curve.

    Half an error is added, because the best of many noisy rates looks better than it is.
    """
    both = bool(wrong.any()) and not wrong.all()
    overall = float((wrong.sum() + 0.5) / (len(wrong) + 1.0))
    world = Binormal(overall, float(np.clip(auroc_of(u, wrong), 0.5, 0.999)) if both else 0.5)
    known = np.round(COVERAGES * len(u)).astype(int)
    errors = np.concatenate([[0], np.cumsum(wrong[np.argsort(u)])])[known] + 0.5
    smooth = world.errors_at(COVERAGES)
    return np.asarray(
        np.minimum(1.0, (errors + PRIOR_QUERIES * smooth) / (known + PRIOR_QUERIES)), np.float64
    )


def _first_size(
    rate: FloatArray, risk: float, delta: float, power: float
) -> tuple[int | None, int]:
    """Fewest threshold labels with which a test at one of COVERAGES mostly succeeds, and at which.

    ``rate`` are the error rates there. None where all need too many; then the place of the lowest.
    """
    sizes = np.unique(np.geomspace(1, MAX_LABELS, 200).astype(int))
    answered = np.floor(COVERAGES[:, None] * sizes).astype(int)
    low = bounds.power_of_test(answered, rate[:, None], risk, delta) < power
    last = np.where(low.any(axis=1), len(sizes) - 1 - np.argmax(low[:, ::-1], axis=1), -1)
    best = int(np.argmin(last))
    if last[best] + 1 == len(sizes):
        return None, int(np.argmin(rate))
    return int(sizes[last[best] + 1]), best


def _rounded(labels: float) -> int:
    """Up to two significant digits."""
    unit = 10 ** max(0, int(np.floor(np.log10(labels))) - 1)
    return int(np.ceil(labels / unit) * unit)
