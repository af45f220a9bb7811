"""Why a query is unsure: what each source adds to the posterior, ranked among calibration queries.

The posterior mean is linear in all that is known of a query (:mod:`fusevlm.fuse.vector`), so it
divides exactly into what the columns add to it. They are gathered into sources,

    picture, question, input   prior statistics of the one, of the other, of both together
    competence                 where this model went wrong before
    answer, samples, opposite  the judged answer's likelihood, how the samples spread, the negation

and these into the bars that are shown: *aleatoric* (the input, before any answer), *epistemic* (the
answers), *competence* and *novelty*. A bar is the share of calibration queries in which the same
sources add less, so that all have one scale.

The reason is novelty, where that is why a query is refused; else the input, if that bar is high – a
poor picture makes a model hesitate, not the other way round –; else the higher of competence and
the answers. Which side of the input it is, the standardised statistics of each side tell. The share
of wrong answers beside it is that of the calibration queries with about as much of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, Shape
from fusevlm.displays import Displayed, Rows
from fusevlm.fuse.results import NOTHING_CERTIFIED, UNLIKE, Scores
from fusevlm.meanings import by_string
from fusevlm.types import Samples

PICTURE, QUESTION, INPUT = "picture", "question", "input"
COMPETENCE, ANSWER, SAMPLES, OPPOSITE = "competence", "answer", "samples", "opposite"
ALEATORIC, EPISTEMIC, NOVELTY = "aleatoric", "epistemic", "novelty"
BARS = {
    ALEATORIC: (PICTURE, QUESTION, INPUT),
    EPISTEMIC: (ANSWER, SAMPLES, OPPOSITE),
    COMPETENCE: (COMPETENCE,),
}
OF_ANSWERS = {
    "surprisal": ANSWER, "log_surprisal": ANSWER, "margin": ANSWER, "complement": OPPOSITE,
    "competence": COMPETENCE,
}  # fmt: skip
OF_BOTH = ("s", "disagreement", "reconstruction", "latent_distance")
SIDE = {"_image": PICTURE, "_text": QUESTION, "_question": QUESTION}  # by the end of a name
NEAR = 0.1  # share of the calibration queries whose errors are counted
LEAST_NEAR = 30
HIGH = 0.7  # a bar from which it is called a reason
LONGEST = 60  # characters shown of a sample
SMALL = 0.05  # what its sources must add at least, together


def source_of(name: str, *, prior: bool) -> str:
    """The source that a column belongs to, by its name."""
    if name in OF_ANSWERS:
        return OF_ANSWERS[name]
    if not prior:
        return SAMPLES
    return next((side for end, side in SIDE.items() if name.endswith(end)), INPUT)


def sources(
    contributions: Mapping[str, FloatArray], prior_names: Sequence[str]
) -> dict[str, FloatArray]:
    """What each source adds to the posterior mean [N]."""
    found: dict[str, FloatArray] = {}
    for name, values in contributions.items():
        source = source_of(name, prior=name in prior_names)
        found[source] = found[source] + values if source in found else np.asarray(values)
    return found


def sides(standardised: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """How strange each side of the input is [N]: the mean of its own standardised statistics."""
    found: dict[str, list[FloatArray]] = {}
    for name, values in standardised.items():
        side = source_of(name, prior=True)
        if side in (PICTURE, QUESTION):
            found.setdefault(side, []).append(values)
    return {side: np.mean(columns, axis=0) for side, columns in found.items()}


@dataclass(frozen=True)
class References:
    """What sources add to the posterior of the calibration queries, and which were wrong."""

    added: Mapping[str, Annotated[FloatArray, Shape("N")]]
    wrong: Annotated[BoolArray | None, Shape("N")]

    def rank(self, names: Sequence[str], values: FloatArray) -> FloatArray:
        """The share of calibration queries to which these sources together add less [M]."""
        known = np.sort(self.total(names))
        below = np.searchsorted(known, values, side="left")
        ties = np.searchsorted(known, values, side="right") - below
        return np.asarray((below + 0.5 * ties) / len(known))

    def total(self, names: Sequence[str]) -> FloatArray:
        """What these sources add together to each calibration query."""
        there = [self.added[name] for name in names if name in self.added]
        return np.sum(there, axis=0) if there else np.zeros(len(next(iter(self.added.values()))))

    def error_rate(self, names: Sequence[str], value: float) -> float | None:
        """The share that was wrong among calibration queries to which they add about as much."""
        if self.wrong is None:
            return None
        apart = np.abs(self.total(names) - value)
        count = min(len(apart), max(LEAST_NEAR, round(NEAR * len(apart))))
        return float(self.wrong[np.argsort(apart, kind="stable")[:count]].mean())


@dataclass(frozen=True)
class Explanation(Displayed):
    """Why a query is unsure, or why it is not.

    bars      by name, from 0 to 1: the share of calibration queries with less of it
    added     what each source adds to the posterior mean
    reason    novelty, aleatoric, competence or epistemic; empty where none stands out
    side      of the input, where it is about the input: picture, question, or neither
    sentence  the reason in words
    errors    the share that was wrong among calibration queries with about as much of it
    """

    bars: Mapping[str, float]
    added: Mapping[str, float]
    reason: str
    side: str
    sentence: str
    errors: float | None = None

    def _title(self) -> str:
        return self.sentence

    def _facts(self) -> dict[str, str]:
        found = {"why": self.sentence, "reason": " ".join([self.reason, self.side]).strip()}
        return {**found, **{name: f"{value:.0%}" for name, value in self.bars.items()}}


def explain(
    scores: Scores,
    references: References | None,
    samples: Sequence[Samples],
    reasons: Sequence[str],
) -> list[Explanation]:
    """One explanation per query; ``reasons`` are those of the decisions, empty where answered."""
    bars = bars_of(scores, references)
    found: Rows[Explanation] = Rows()
    for i, said in enumerate(samples):
        added = {name: float(values[i]) for name, values in scores.sources.items()}
        own = {name: float(values[i]) for name, values in bars.items() if not np.isnan(values[i])}
        reason = _reason(own, added, reasons[i])
        side, errors = _side(scores, i, reason), None
        if references is not None and reason in BARS:
            errors = references.error_rate(BARS[reason], _together(added, reason))
        sentence = _sentence(reason, side, said, errors, added, reasons[i])
        found.append(Explanation(own, added, reason, side, sentence, errors))
    return found


def bars_of(scores: Scores, references: References | None) -> dict[str, FloatArray]:
    """The bars of all queries [N]; NaN where novelty was not judged."""
    found: dict[str, FloatArray] = {}
    if references is not None:
        for bar, names in BARS.items():
            there = [scores.sources[name] for name in names if name in scores.sources]
            if there:
                found[bar] = references.rank(names, np.sum(there, axis=0))
    return {**found, NOVELTY: 1.0 - scores.novelty}


def _together(added: Mapping[str, float], bar: str) -> float:
    return sum(added.get(name, 0.0) for name in BARS[bar])


def _reason(bars: Mapping[str, float], added: Mapping[str, float], refused: str) -> str:
    """The first of the causes that stands out."""
    if refused.startswith(UNLIKE):
        return NOVELTY
    high = [bar for bar in BARS if bars.get(bar, 0.0) >= HIGH and _together(added, bar) > SMALL]
    if ALEATORIC in high:
        return ALEATORIC
    return max(high, key=lambda bar: bars[bar], default="")


def _side(scores: Scores, i: int, reason: str) -> str:
    """The side of the input that a reason is about: the stranger one of query ``i``."""
    if reason == NOVELTY:
        return {"image": PICTURE}.get(scores.strangest[i], scores.strangest[i])
    kind = {ALEATORIC: "", COMPETENCE: f"{COMPETENCE}_"}.get(reason)
    known = {s: scores.sides.get(f"{kind}{s}") for s in (PICTURE, QUESTION)}
    values = {side: float(v[i]) for side, v in known.items() if kind is not None and v is not None}
    if len(values) < 2 and kind != "":
        return ""
    return max(values, key=lambda side: values[side]) if values else ""


def _sentence(
    reason: str,
    side: str,
    samples: Samples,
    errors: float | None,
    added: Mapping[str, float],
    refused: str,
) -> str:
    """The reason in plain words; ``refused`` is why the decision is to abstain, or empty."""
    if refused == NOTHING_CERTIFIED:
        return "Nothing can be promised at this risk with the labels it was calibrated on."
    if reason == NOVELTY:
        return f"The {side or 'query'} is unlike those it was calibrated on."
    rate = "" if errors is None else _of_ten(errors)
    if reason == ALEATORIC:
        what = {
            PICTURE: "The picture is poor or unusual",
            QUESTION: "The question is worded in an unusual way",
        }.get(side, "Picture and question do not fit what it knows")
        named = {PICTURE: "pictures", QUESTION: "questions"}.get(side, "queries")
        return f"{what}{f'; on such {named} it errs {rate}' if rate else ''}."
    if reason == COMPETENCE:
        named = {PICTURE: "Pictures", QUESTION: "Questions"}.get(side, "Queries")
        return f"{named} like this one it often gets wrong{f': {rate}' if rate else ''}."
    if reason == EPISTEMIC:
        most = max(BARS[EPISTEMIC], key=lambda source: added.get(source, -np.inf))
        if most == OPPOSITE and samples.answer:
            return f"It says {_short(samples.answer)} to the opposite too."
        return _of_samples(samples, rate)
    return "Several things add up." if refused else "Nothing about it is unusual."


def _of_samples(samples: Samples, rate: str) -> str:
    """How the samples disagree, or that they agree and it is unsure all the same."""
    counts = counted(samples)
    n = len(samples)
    if len(counts) > 1 and counts[0][1] < 0.9 * n:
        (first, most), (second, next_) = counts[:2]
        rest = n - most - next_
        more = f", {rest} something else" if rest else ""
        return (
            f"It contradicts itself: {most} of {n} say {_short(first)}, {next_} {_short(second)}"
            f"{more}."
        )
    often = f"; when it does, it errs {rate}" if rate else ""
    sure = ""
    if samples.answer_logprobs is not None:
        sure = f" (probability {float(np.exp(np.sum(samples.answer_logprobs))):.2f})"
    return f"It hesitates over its answer{sure}{often}."


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def counted(samples: Samples) -> list[tuple[str, int]]:
    """Meanings with how many samples have them, most frequent first, by their first wording."""
    meanings = by_string(samples.texts)
    first: dict[int, str] = {}
    for meaning, text in zip(meanings.tolist(), samples.texts, strict=True):
        first.setdefault(meaning, text or "(nothing)")
    return [(first[m], c) for m, c in Counter(meanings.tolist()).most_common()]


def _of_ten(share: float) -> str:
    """A share as people say it."""
    if share < 0.05:
        return "hardly ever" if share < 0.025 else "1 time of 25"
    times = round(10 * share)
    if times == 0 or abs(share - 0.05) < 0.025:
        return "1 time of 20"
    return "always" if times == 10 else f"{times} time{'s' if times > 1 else ''} of 10"


def references_of(added: Mapping[str, FloatArray], wrong: Any) -> References:
    """What a fit keeps of its calibration queries."""
    labels = None if wrong is None else np.asarray(wrong, dtype=np.bool_)
    return References({name: np.asarray(values) for name, values in added.items()}, labels)
