"""Where queries arrive: asked in batches, answers remembered, counted and watched for drift.

HTTP and MCP both stand before one :class:`Desk`; it knows neither of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np

from fusevlm import checks
from fusevlm.assistant import Seen
from fusevlm.checks import FRACTION, OneOf
from fusevlm.data.sampled import Sampled
from fusevlm.errors import FuseError, InputError, library_quiet
from fusevlm.meanings import best_sample, by_string
from fusevlm.render.answer import ABSTAIN, Answer
from fusevlm.scorer import Scorer, decide_again, needs_pictures
from fusevlm.serve.answerers import STEPS, Answerer, halted, private_names, usual_samples
from fusevlm.serve.batches import Batcher
from fusevlm.serve.drift import DriftWatch
from fusevlm.serve.faults import Fault
from fusevlm.serve.feedback import Feedback
from fusevlm.serve.limits import Limits
from fusevlm.serve.logs import note
from fusevlm.serve.memory import Known, Memory, light
from fusevlm.serve.metrics import Metrics
from fusevlm.types import Queries, Query, Samples

FLAG, REFUSE = "flag", "refuse"
ENDING = 3.0  # seconds that a thread gets to end
AGAIN = 30.0  # seconds after which a model that could not be reached may be tried again


@dataclass(frozen=True)
class Offer:
    """What a server offers where a request says nothing else."""

    name: str  # of the model, before people
    risk: Annotated[float, FRACTION] = 0.05
    delta: Annotated[float, FRACTION] = 0.1
    on_abstain: Annotated[str, OneOf(FLAG, REFUSE)] = FLAG

    def __post_init__(self) -> None:
        checks.options(self)


@dataclass(frozen=True)
class Terms:
    """On which terms a query is asked."""

    risk: float
    delta: float
    n: int | None = None
    samples: float | str | None = None
    seed: int = 0


@dataclass(frozen=True)
class Look:
    """Samples that have come so far, for those who watch."""

    tier: str
    samples: Mapping[str, int]
    answer: str
    p_wrong: float | None


@dataclass(frozen=True, eq=False)
class Asked:
    """A query that waits for its answer."""

    query: Query
    terms: Terms
    unit: str
    tell: Callable[[Look], None] | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Those of one key can be asked together; all samples serve any risk, rounds one."""
        terms = self.terms
        in_rounds = terms.samples is not None or terms.n == 0
        risk = (terms.risk, terms.delta) if in_rounds else None
        return terms.n, terms.samples, terms.seed, bool(self.query.images), risk


@dataclass(frozen=True, eq=False)
class Brought:
    """Samples that wait to be judged."""

    row: Sampled
    risk: float
    delta: float


@dataclass(frozen=True)
class Told:
    """An answer and its id."""

    id: str
    answer: Answer


@dataclass(eq=False)
class _Last:
    """The last that was seen of each query of a batch."""

    asked: Sequence[Asked]
    seen: dict[str, Seen] = field(default_factory=dict)

    def watch(self, seen: Seen) -> None:
        """Keep it, and tell those who watch the query."""
        self.seen[seen.query.id] = seen
        said = seen.samples
        for one in self.asked:
            if one.tell is not None and one.query.id == seen.query.id:
                p = None if np.isnan(seen.p_wrong) else seen.p_wrong
                one.tell(Look(seen.tier, _counted(said), said.answer or "", p))


class Desk:
    """Answers queries and judges samples; threads and event loops may share one."""

    def __init__(
        self,
        answerer: Answerer | None,
        offer: Offer,
        *,
        scorer: Scorer | None = None,
        limits: Limits | None = None,
        feedback: Feedback | None = None,
    ) -> None:
        self.answerer, self.scorer, self.offer = answerer, scorer, offer
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self.memory = Memory(self.limits.known, self.limits.known_bytes)
        self._feedback = feedback
        self._again = 0.0  # when a model that could not be reached may be tried again
        self.drift = None if answerer is None else DriftWatch(answerer.fuse)
        self.usual = 0 if answerer is None else usual_samples(answerer)
        self._shown = answerer is not None and needs_pictures(answerer.fuse)

        def sized(size: int) -> None:
            self.metrics.observe("fusevlm_batch_queries", float(size))

        self._queries = Batcher(self._ask, self.limits, sized)
        self._rows = Batcher(self._judge, replace(self.limits, workers=1))

    @property
    def rounds(self) -> bool:
        """Whether samples can be drawn as they are needed."""
        return getattr(self.answerer, "rounds", None) is not None

    @property
    def keeps_feedback(self) -> bool:
        """Whether there is a table for it."""
        return self._feedback is not None

    async def ask(
        self, query: Query, terms: Terms, tell: Callable[[Look], None] | None = None
    ) -> Told:
        """The answer to a query; ``tell`` hears of its samples, from another thread."""
        if self.answerer is None:
            raise Fault("no_model")
        if self._shown and not query.images:
            raise Fault("cannot_ask", words="this model is asked about a picture; send one.")
        named = replace(query, id=digest_of(query))
        asked = Asked(named, terms, unit_of(query), tell)
        return await self._wait(self._queries.submit(asked.key, asked))

    async def score(self, row: Sampled, risk: float, delta: float) -> Told:
        """What the fit says of samples."""
        assert self.scorer is not None
        own = replace(row, query=replace(row.query, id=secrets.token_hex(8)))
        brought = Brought(own, risk, delta)
        return await self._wait(self._rows.submit((risk, delta, bool(row.query.images)), brought))

    async def _wait(self, future: Future[Told]) -> Told:
        """What comes of work that was handed in; a client that leaves withdraws it."""
        seconds = self.limits.seconds
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), seconds)
        except TimeoutError as error:
            raise Fault("too_slow", seconds=seconds) from error
        except InputError as error:
            raise Fault("cannot_ask", words=self._public(str(error))) from error
        except FuseError as error:
            raise Fault("no_answer") from error
        finally:
            future.cancel()

    def _public(self, words: str) -> str:
        """An error's words with the public name for the model's own, which may be an address."""
        if self.answerer is None:
            return words
        for private in private_names(self.answerer):
            words = words.replace(private, self.offer.name)
        return words

    def decide(self, name: str, risk: float, delta: float) -> Told:
        """The answer of that id at another risk; at its own it is as it was told."""
        known = self._find(name)
        if (known.answer.risk, known.answer.delta) == (risk, delta):
            return Told(name, known.answer)
        judge = self.scorer if known.judged_by_scorer else self.answerer
        if known.scores is None or judge is None:
            raise Fault("other_risk")
        with library_quiet():
            answer = decide_again(
                judge.fuse, known.answer, known.scores, known.samples, risk=risk, delta=delta
            )
        return Told(name, answer)

    def feedback(self, name: str, wrong: bool) -> None:
        """Keep what somebody says of an answer."""
        if self._feedback is None:
            raise Fault("no_feedback")
        if self._feedback.tell(name, self._find(name), wrong):
            self.metrics.count("fusevlm_feedback_total", wrong=str(wrong).lower())

    def _find(self, name: str) -> Known:
        known = self.memory.find(name)
        if known is None:
            raise Fault("unknown_answer", known=self.memory.most)
        return known

    def not_ready(self) -> str:
        """Why no query is taken; nothing as a rule."""
        if not (self._queries.alive and self._rows.alive):
            return "the server is ending."
        if self._queries.waiting >= self.limits.queue:
            return "the queue is full."
        recent = time.monotonic() < self._again
        if self.answerer is not None and recent and halted(self.answerer):
            return "the model behind this server cannot be reached, or its budget is used up."
        return ""

    def metrics_text(self) -> str:
        """What was counted, and how things stand."""
        gauges = {
            "fusevlm_queue_length": float(self._queries.waiting + self._rows.waiting),
            "fusevlm_ready": float(not self.not_ready()),
        }
        state = None if self.drift is None else self.drift.state
        if state is not None:
            gauges |= {
                "fusevlm_drift_p_value": state.p_value,
                "fusevlm_drift_queries": float(state.seen),
                "fusevlm_drift_alarm": float(state.alarm),
                "fusevlm_drift_alarms_total": float(state.alarms),
            }
        return self.metrics.text(gauges)

    def close(self) -> None:
        """Take no more and end; nobody waits any more for what a model is still at."""
        for one in (self._queries, self._rows):
            one.close(ENDING)

    def _ask(self, several: Sequence[Asked]) -> list[Any]:
        """Answers to queries of one key, asked together; equal ones are asked once."""
        assert self.answerer is not None
        first, last = several[0].terms, _Last(several)
        unique = {one.query.id: one.query for one in several}
        steps = STEPS if any(one.tell for one in several) else ()
        with library_quiet():  # the answer itself says what is odd
            told = self.answerer.ask_all(
                list(unique.values()), risk=first.risk, delta=first.delta, n=first.n,
                samples=first.samples, seed=first.seed, watch=last.watch, steps=steps,
            )  # fmt: skip
            if halted(self.answerer):  # only asking can tell that it is back, so not for ever
                self._again = time.monotonic() + AGAIN
            found = dict(zip(unique, told, strict=True))
            return [self._keep(one, found[one.query.id], last.seen) for one in several]

    def _keep(
        self, asked: Asked, found: Answer | FuseError, seen: Mapping[str, Seen]
    ) -> Told | FuseError:
        """Decide at the query's own risk; remember, count and watch."""
        if isinstance(found, FuseError):
            return found
        assert self.answerer is not None
        assert self.drift is not None
        own, terms = seen[asked.query.id], asked.terms
        answer, scores = replace(found, model=self.offer.name), own.scores
        if scores is not None and (answer.risk, answer.delta) != (terms.risk, terms.delta):
            answer = decide_again(
                self.answerer.fuse, answer, scores, own.samples, risk=terms.risk,
                delta=terms.delta,
            )  # fmt: skip
        if own.table is not None and self._as_calibrated(asked):
            self._watch(asked.unit, own.table)
        return self._remember(Known(answer, light(own.samples), scores, asked.unit))

    def _as_calibrated(self, asked: Asked) -> bool:
        """Whether it was asked as the calibration's queries were: only such can be compared."""
        n = asked.terms.n
        return not asked.query.history and asked.terms.samples is None and n in (None, self.usual)

    def _watch(self, unit: str, table: Queries) -> None:
        assert self.drift is not None
        alarm, now = self.drift.see(unit, table), self.drift.state
        if alarm and now is not None:
            note("drift", p_value=now.p_value, worst=now.worst)

    def _remember(self, known: Known) -> Told:
        name, answer = f"fv-{secrets.token_urlsafe(16)}", known.answer
        forgotten = self.memory.keep(name, known)
        if self._feedback is not None:
            self._feedback.forget(forgotten)
        self.metrics.count("fusevlm_decisions_total", decision=answer.decision)
        if answer.decision == ABSTAIN:
            self.metrics.count("fusevlm_abstentions_total", reason=answer.reason)
        self.metrics.observe("fusevlm_samples", answer.generated)
        return Told(name, answer)

    def _judge(self, several: Sequence[Brought]) -> list[Any]:
        """What the fit says of samples that were brought; rows of one risk and delta."""
        assert self.scorer is not None
        rows, risk, delta = [one.row for one in several], several[0].risk, several[0].delta
        with library_quiet():
            table = self.scorer.table(rows)
            scores = self.scorer.fuse.score(table)
            told = self.scorer.decided(rows, table, scores, risk=risk, delta=delta)
        found = []
        for k, (row, answer) in enumerate(zip(rows, told, strict=True)):
            assert row.samples is not None
            own = Known(answer, row.samples, scores.take([k]), unit_of(row.query), True)
            found.append(self._remember(own))
        return found


def measures_of(samples: Samples) -> dict[str, float | int]:
    """What samples say without any calibration; larger = less sure."""
    from fusevlm.baselines import semantic_entropy

    texts = list(samples.texts)
    answer = samples.answer if samples.answer is not None else texts[best_sample(texts)]
    meanings = by_string([*texts, answer])
    said = meanings[:-1]
    return {
        "semantic_entropy": float(np.asarray(semantic_entropy(samples))),
        "disagreement": float(np.mean(said != meanings[-1])),
        "distinct": len(np.unique(said)),
    }


def _counted(samples: Samples) -> dict[str, int]:
    from collections import Counter

    return dict(Counter(samples.texts).most_common())


def digest_of(query: Query) -> str:
    """What a query is sampled by: equal queries draw equal samples, whoever asks and when."""
    told = hashlib.sha256()
    for text in (query.question, *(part for turn in query.history for part in turn)):
        told.update(f"{len(text)}:".encode() + text.encode())
    for image in query.images:
        told.update(hashlib.sha256(image).digest())
    return told.hexdigest()[:32]


def unit_of(query: Query) -> str:
    """What queries have in common: their pictures, else their question."""
    told = hashlib.sha256()
    for image in query.images:
        told.update(hashlib.sha256(image).digest())
    if not query.images:
        told.update(query.question.encode())
    return told.hexdigest()[:16]
