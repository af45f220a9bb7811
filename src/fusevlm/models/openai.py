"""Any server that speaks OpenAI's chat completions: ``openai:NAME@BASE_URL``.

vLLM, SGLang, llama.cpp, Ollama, LM Studio and hosted services each leave out another part of that
protocol, some without saying so. A few calls at the start find out what this one really gives
(:func:`probe`); :meth:`OpenAI.describe` tells it.

Log-probabilities are taken as those of the model's own distribution, before temperature, which is
what OpenAI, vLLM and llama.cpp give by default; the probe compares two temperatures, and values
that follow the temperature are not used. The EOS token's is there only where the server gives it.
There are no hidden states, and no server promises the same samples for the same seed.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from threading import Event
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import FuseError, InputError
from fusevlm.models import completions
from fusevlm.models.calls import CallError, Limits, Promise, Service, cleared
from fusevlm.models.completions import LIMITS, OPTIONAL, Answer, Gives, best_gap, choices, entries
from fusevlm.models.protocol import Capabilities, Decoding
from fusevlm.types import Generation, Query, Samples

logger = logging.getLogger(__name__)

PATH = "/chat/completions"
SOURCE = re.compile(r"(.+)@(https?://.+)", re.DOTALL)
REFUSED = (400, 422)  # of something in the call itself
QUESTION, COLOUR = "Name any colour, animal or town.", "What colour is this?"
PROBED_TOKENS = 16  # at most
RED = (  # 56 × 56 red pixels: some models take no smaller picture
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAAQElEQVR42u3OQQkAAAgAsetf"
    "Wh+mEAYLsKZeSFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRU9CwicjR1t9nCvQAAAABJRU5ErkJggg=="
)
NO_PICTURES = re.compile(r"image|picture|vision|multi-?modal|mmproj", re.IGNORECASE)

Answers = Future[list[Answer]]


@dataclass(eq=False)
class Asked:
    """A query that is being asked, and the first thing that went wrong with it."""

    query: Query
    messages: list[dict[str, Any]]
    promise: Promise
    stop: Event
    failure: CallError | None = None
    prompt_tokens: int = 0


@dataclass(frozen=True, eq=False)
class Pending:
    """The calls of a query: the judged answer's, and the others with the samples they are for."""

    asked: Asked
    judged: Answers
    drawn: Sequence[tuple[Sequence[int], Answers]]


class OpenAI:
    """A model behind an OpenAI-compatible server, ready to sample."""

    def __init__(self, model: str, service: Service, *, decoding: Decoding | None = None) -> None:
        self.model, self.service = model, service
        self.decoding = decoding or Decoding()
        self.gives = probe(model, service, self.decoding)
        logger.info("%s gives %s", self.name, self.gives)

    @classmethod
    def load(
        cls,
        source: str,
        *,
        decoding: Decoding | None = None,
        timeout: float = Limits.timeout,
        retries: int = Limits.retries,
        backoff: float = Limits.backoff,
        max_wait: float = Limits.max_wait,
        per_minute: float | None = Limits.per_minute,
        concurrency: int = Limits.concurrency,
        max_calls: int | None = Limits.max_calls,
        max_tokens: int | None = Limits.max_tokens,
    ) -> OpenAI:
        """``NAME@BASE_URL``; the key, if one is needed, is in FUSEVLM_API_KEY or OPENAI_API_KEY.

        The options are those of :class:`~fusevlm.models.calls.Limits`.
        """
        found = SOURCE.fullmatch(source)
        if found is None:
            raise InputError(
                "a model behind a server is named openai:NAME@BASE_URL, such as "
                "openai:llava@http://localhost:8000/v1; got one without its address."
            )
        limits = Limits(
            timeout, retries, backoff, max_wait, per_minute, concurrency, max_calls, max_tokens
        )
        return cls(found[1], Service(found[2], limits), decoding=decoding)

    @property
    def name(self) -> str:
        return f"{self.model}@{self.service.base}"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            logprobs=self.gives.logprobs,
            hidden_states=False,
            images=self.gives.images,
            deterministic=False,
        )

    def describe(self) -> dict[str, Any]:
        """What the server gives, and the calls and tokens used so far."""
        meter = self.service.meter
        return {**asdict(self.gives), "calls": meter.calls, "tokens": meter.tokens}

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """One Generation per query, in order; the calls of all queries run side by side.

        Samples of equal temperature come of one call where the server gives several, of single
        calls elsewhere; those at temperature 0 are one greedy answer.
        """
        n = checks.count(n, "n")
        heat = checks.vector(temperatures, "temperatures", length=n)
        if len({q.id for q in queries}) < len(queries):
            raise InputError("two queries of a batch have the same id; ids must be unique.")
        stop = Event()
        pool = ThreadPoolExecutor(self.service.limits.concurrency, "fusevlm-call")
        try:
            begun = [self._begin(pool, query, heat, seed, stop) for query in queries]
            for query, pending in zip(queries, begun, strict=True):
                if isinstance(pending, str):
                    yield Generation(query.id, error=pending)
                else:
                    yield self._finish(pending, heat)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)

    def _begin(
        self, pool: ThreadPoolExecutor, query: Query, heat: FloatArray, seed: int, stop: Event
    ) -> Pending | str:
        """Hand a query's calls to the pool, or say why it cannot be asked."""
        greedy, meter = self.decoding.answer_temperature, self.service.meter
        groups = _groups(heat, many=self.gives.n, judged=greedy)
        calls, answers = 1 + len(groups), 1 + sum(_size(t, rows) for t, rows in groups)
        new = answers * self.decoding.max_new_tokens
        try:
            messages = self._messages(query)
            promise = meter.promise(calls, new + calls * meter.longest_prompt)
        except FuseError as error:
            return str(error)
        asked = Asked(query, messages, promise, stop)

        def later(temperature: float, rows: Sequence[int]) -> Answers:
            key = _seed(seed, query.id, rows)
            return pool.submit(self._draw, asked, temperature, _size(temperature, rows), key)

        return Pending(asked, later(greedy, ()), [(rows, later(t, rows)) for t, rows in groups])

    def _messages(self, query: Query) -> list[dict[str, Any]]:
        if not query.question.strip():
            raise InputError("the question is empty.")
        if query.images and not self.gives.images:
            raise InputError(
                f"{self.name} takes no pictures. Serve a model that does, or ask without them."
            )
        text = self.decoding.prompt.format(question=query.question)
        turns = [{"role": role, "content": said} for role, said in query.history]
        shown = [completions.data_url(image) for image in query.images]
        return [*turns, {"role": "user", "content": completions.content(text, shown)}]

    def _draw(self, asked: Asked, temperature: float, k: int, seed: int) -> list[Answer]:
        """``k`` answers; none once something of the query has failed, which is noted there."""
        found: list[Answer] = []
        try:
            while len(found) < k:
                if asked.failure is not None:
                    return []
                found += self._call(asked, temperature, k - len(found), seed + len(found))
        except CallError as error:
            asked.failure = asked.failure or error
            return []
        return found[:k]

    def _call(self, asked: Asked, temperature: float, k: int, seed: int) -> list[Answer]:
        """One call for ``k`` answers, or for one where the server gives no more."""
        many = k > 1 and self.gives.n
        size = k if many else 1
        body = completions.request(
            self.model, asked.messages, self.decoding, self.gives, temperature, size, seed
        )
        try:
            reply = self.service.ask(PATH, body, asked.promise, asked.stop)
        except CallError as error:
            if many and error.status in REFUSED:
                one = self._call(asked, temperature, 1, seed)
                self._single(f"n = {k} was refused")
                return one
            raise _about_pictures(error, asked.query) from error
        prompt, used = completions.count_tokens(reply, self.decoding.max_new_tokens)
        self.service.meter.count(asked.promise, prompt, used)
        asked.prompt_tokens = max(asked.prompt_tokens, prompt)
        answers = completions.read_answers(reply, self.gives, self.decoding)
        if len(answers) < size:
            self._single(f"{len(answers)} of n = {k} answers came")
        return answers

    def _single(self, why: str) -> None:
        """From now on one answer a call."""
        if self.gives.n:
            logger.warning("%s: %s; from now on one answer a call.", self.name, why)
        self.gives = replace(self.gives, n=False)

    def _finish(self, pending: Pending, heat: FloatArray) -> Generation:
        """Wait for a query's calls and put their answers where they belong."""
        asked = pending.asked
        judged = pending.judged.result()
        drawn = [(rows, future.result()) for rows, future in pending.drawn]
        self.service.meter.withdraw(asked.promise)
        if asked.failure is not None:
            return Generation(asked.query.id, error=str(asked.failure))
        found = dict.fromkeys(range(len(heat)), judged[0])  # what no call was made for is greedy
        for rows, answers in drawn:
            found |= zip(rows, answers * (len(rows) // len(answers)), strict=True)
        return _generation(asked, list(found.values()), judged[0], heat, self.gives)


def probe(model: str, service: Service, decoding: Decoding) -> Gives:
    """What the server gives, found by three calls, and by a few more where it refuses something."""
    promise = Promise(0, 0)
    limit = min(decoding.max_new_tokens, PROBED_TOKENS)
    short = replace(decoding, max_new_tokens=limit, top_k=None)

    def ask(gives: Gives, heat: float = 1.0, shown: Sequence[str] = ()) -> dict[str, Any]:
        said = completions.content(COLOUR if shown else QUESTION, shown)
        turn = {"role": "user", "content": said}
        reply = service.ask(
            PATH, completions.request(model, [turn], short, gives, heat, 2, 1), promise
        )
        service.meter.count(promise, *completions.count_tokens(reply, short.max_new_tokens))
        return reply

    try:
        taken, reply = _accepted(ask)
        gives = _given(taken, reply)
        if _follows(reply, lambda: ask(replace(gives, n=False), 0.5)):
            logger.warning("the server's log-probabilities follow the temperature: not used.")
            gives = replace(gives, logprobs=False, top_logprobs=False)
        gives = replace(gives, images=_sees(lambda: ask(replace(gives, n=False), shown=[RED])))
    except CallError as error:
        hint = _known_models(service, model) if error.status == 404 else ""
        raise InputError(f"cannot use {model!r} at {service.base}: {error}{hint}") from error
    if decoding.top_k is not None and not gives.unfiltered:
        raise InputError(
            f"{model!r} at {service.base} takes no top_k; got {decoding.top_k}. Leave it out."
        )
    return gives


def _accepted(ask: Callable[[Gives], dict[str, Any]]) -> tuple[Gives, dict[str, Any]]:
    """The optional parts that the server takes, and its reply to all of them together.

    All at once, then those of OpenAI itself; if it refuses these, one after the other.
    """
    standard = [name for name in OPTIONAL if name != "unfiltered"]
    refusals: list[CallError] = []
    for parts in ([*OPTIONAL], standard, []):
        for limit in LIMITS:
            taken = _with(Gives(limit=limit), parts)
            try:
                reply = ask(taken)
            except CallError as error:
                if error.status not in REFUSED:
                    raise
                refusals.append(error)
                if LIMITS[1] not in str(error):
                    break  # it is not the limit's name that is refused
            else:
                return (taken, reply) if parts else _one_by_one(ask, taken, reply)
    raise refusals[-1]


def _one_by_one(
    ask: Callable[[Gives], dict[str, Any]], taken: Gives, reply: dict[str, Any]
) -> tuple[Gives, dict[str, Any]]:
    """Add each optional part and keep those that are not refused."""
    for name in OPTIONAL:
        more = _with(taken, [name])
        try:
            reply = ask(more)
        except CallError as error:
            if error.status not in REFUSED:
                raise
        else:
            taken = more
    return taken, reply


def _with(gives: Gives, names: Sequence[str]) -> Gives:
    changes: dict[str, Any] = dict.fromkeys(names, True)
    return replace(gives, **changes)


def _given(taken: Gives, reply: Mapping[str, Any]) -> Gives:
    """What came of what the server took without a word."""
    found = choices(reply)
    rows = [(entries(choice), completions.text_of(choice)) for choice in found]
    margins = [completions.numbers(listed)[1] for listed, _ in rows]
    logprobs = taken.logprobs and all(listed for listed, _ in rows)
    ended = [
        row
        for row, choice in zip(rows, found, strict=True)
        if choice.get("finish_reason") == "stop"
    ]
    return replace(
        taken,
        model=cleared(str(reply.get("model") or "")),
        fingerprint=cleared(str(reply.get("system_fingerprint") or "")),
        n=taken.n and len(found) == 2,
        logprobs=logprobs,
        top_logprobs=logprobs and None not in margins,
        spelled=logprobs and all(completions.spells(*row) for row in rows),
        eos=logprobs and bool(ended) and all(completions.has_eos(*row) for row in ended),
    )


def _follows(reply: Mapping[str, Any], ask: Callable[[], dict[str, Any]]) -> bool:
    """Whether log-probabilities follow the temperature, as far as that can be seen.

    The gap between the two best first tokens does not depend on the draw. At half the temperature
    it is the same, or twice as large where it follows.
    """
    here = _first_gap(reply)
    if here is None or here < 0.05:
        return False
    try:
        there = _first_gap(ask())
    except CallError as error:
        if error.status not in REFUSED:
            raise
        return False
    return there is not None and there > 1.5 * here


def _first_gap(reply: Mapping[str, Any]) -> float | None:
    listed = entries(choices(reply)[0])
    return best_gap(listed[0]) if listed else None


def _sees(ask: Callable[[], dict[str, Any]]) -> bool:
    """Whether the server takes a picture."""
    try:
        ask()
    except CallError as error:
        if error.status in (0, 401, 403, 429):  # that is not about pictures
            raise
        logger.info("pictures are refused: %s", error)
        return False
    return True


def _about_pictures(error: CallError, query: Query) -> CallError:
    """Say that it is a picture which is refused, where that is so."""
    about = error.status in REFUSED or error.status in (413, 415) or error.status >= 500
    if not (query.images and about and NO_PICTURES.search(str(error))):
        return error
    return CallError(f"the picture was refused: {error}", status=error.status)


def _known_models(service: Service, model: str) -> str:
    """The server's own list as a hint; nothing if it has none."""
    try:
        listed = service.once("/models").get("data")
    except CallError:
        return ""
    names = [str(one.get("id")) for one in listed or () if isinstance(one, Mapping)]
    return checks.hint(model, names) if names else ""


def _groups(heat: FloatArray, *, many: bool, judged: float) -> list[tuple[float, list[int]]]:
    """(temperature, samples) of each call beside the judged answer's.

    Samples at temperature 0 are all the greedy answer: the judged one, or one call's.
    """
    found: list[tuple[float, list[int]]] = []
    for t in map(float, np.unique(heat)):
        rows = [int(row) for row in np.flatnonzero(heat == t)]
        if t == 0.0 and judged == 0.0:
            continue
        found += [(t, rows)] if many or t == 0.0 else [(t, [row]) for row in rows]
    return found


def _size(temperature: float, rows: Sequence[int]) -> int:
    """How many answers a call is to bring."""
    return max(1, len(rows)) if temperature > 0.0 else 1


def _seed(seed: int, query_id: str, rows: Sequence[int]) -> int:
    """A number of 31 bits that depends on the seed, the query and the sample alone."""
    key = f"{seed}/{query_id}/{rows[0] if rows else 'answer'}"
    return int.from_bytes(hashlib.sha256(key.encode(errors="replace")).digest()[:4]) >> 1


def _generation(
    asked: Asked, drawn: Sequence[Answer], judged: Answer, heat: FloatArray, gives: Gives
) -> Generation:
    query_id = asked.query.id
    if not judged.text:
        return Generation(query_id, error="the judged answer is empty.")
    if gives.logprobs and not all(answer.logprobs for answer in drawn):
        return Generation(
            query_id, error="a sample is empty, and the server gives no log-probability of EOS."
        )
    try:
        samples = Samples(
            [answer.text for answer in drawn],
            [answer.logprobs for answer in drawn] if gives.logprobs else None,
            answer=judged.text,
            answer_logprobs=judged.logprobs,
            answer_margins=judged.margins,
        )
    except InputError as error:
        return Generation(query_id, error=f"the server's numbers cannot be used: {error}")
    return Generation(
        query_id,
        samples,
        temperatures=[float(t) for t in heat],
        truncated=[answer.truncated for answer in drawn],
        prompt_tokens=asked.prompt_tokens,
    )
