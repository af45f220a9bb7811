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
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from threading import Event
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import FuseError, InputError
from fusevlm.models import completions
from fusevlm.models.budget import BudgetError, Promise, Shared, count_before
from fusevlm.models.calls import CallError, Service, cleared
from fusevlm.models.completions import LIMITS, OPTIONAL, Answer, Gives, best_gap, choices, entries
from fusevlm.models.protocol import Capabilities, Decoding
from fusevlm.models.protocol import asked as checked
from fusevlm.settings import ServerConfig
from fusevlm.store.declared import built
from fusevlm.store.journal import Journal
from fusevlm.types import Generation, Query, Samples

logger = logging.getLogger(__name__)

PATH = "/chat/completions"
SOURCE = re.compile(r"(.+)@(https?://.+)", re.DOTALL)
REFUSED = (400, 422)  # of something in the call itself
QUESTION, COLOUR = "Name any colour, animal or town.", "What colour is this?"
PROBED_TOKENS = 16  # at most
ALIKE = 4  # answers that are all the same: the temperature is ignored
JUDGED = -1  # the judged answer's place among the samples
PATIENCE = 4.0  # seconds for a server that is only looked for
RED = (  # 56 × 56 red pixels: some models take no smaller picture
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAAQElEQVR42u3OQQkAAAgAsetf"
    "Wh+mEAYLsKZeSFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRUVFRU9CwicjR1t9nCvQAAAABJRU5ErkJggg=="
)
NO_PICTURES = re.compile(r"image|picture|vision|multi-?modal|mmproj", re.IGNORECASE)


@dataclass(eq=False)
class Asked:
    """A query that is being asked: the answers so far by their place, and what went wrong first."""

    query: Query
    messages: list[dict[str, Any]]
    stop: Event
    key: str  # begins the keys of its answers in a journal
    found: dict[int, Answer] = field(default_factory=dict)
    promise: Promise = field(default_factory=Promise)
    failure: FuseError | None = None
    prompt_tokens: int = 0
    calls: list[Future[None]] = field(default_factory=list)


class OpenAI:
    """A model behind an OpenAI-compatible server, ready to sample.

    journal  where each answer is kept as soon as it has come; those that are there already are
             not asked for again. None: nowhere
    """

    def __init__(
        self,
        model: str,
        service: Service,
        *,
        decoding: Decoding | None = None,
        gives: Gives | None = None,
    ) -> None:
        self.model, self.service = model, service
        self.decoding = decoding or Decoding()
        self.journal: Journal | None = None
        self.gives = probe(model, service, self.decoding) if gives is None else gives
        if gives is not None:
            _need_server(model, service)
        logger.info("%s gives %s", self.name, self.gives)

    @classmethod
    def load(
        cls,
        source: str,
        *,
        decoding: Decoding | None = None,
        server: ServerConfig | None = None,
        before: Mapping[str, Any] | None = None,
        shared: Shared | None = None,
        **limits: Any,
    ) -> OpenAI:
        """``NAME@BASE_URL``; the key, if one is needed, is in FUSEVLM_API_KEY or OPENAI_API_KEY.

        server  patience, pace and budget; ``limits`` change single ones of it
        before  what :meth:`describe` told of an earlier session: it is not probed again, and what
                was used counts
        shared  budget and pace of several processes, in which what was used counts already
        """
        name, base = _named(source)
        wanted = checks.changed(server or ServerConfig(), limits, "option of a server")
        service = Service(base, wanted, shared)
        known = None
        if before:
            if shared is None:
                count_before(service.meter, before)
            known = noted_gives(before)
        return cls(name, service, decoding=decoding, gives=known)

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

    @property
    def halted(self) -> str:
        """Why asking on would be in vain: the budget, or a server that is down; else nothing."""
        return self.service.meter.refusal or self.service.down

    def describe(self) -> dict[str, Any]:
        """What the server gives, and the calls, tokens and money used so far."""
        meter = self.service.meter
        return {
            **asdict(self.gives),
            "calls": meter.calls,
            "prompt_tokens": meter.prompt,
            "answer_tokens": meter.answer,
            "cost": round(meter.cost, 6),
        }

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """One Generation per query, in order; the calls of all queries run side by side.

        Samples of equal temperature come of one call where the server gives several, of single
        calls elsewhere; those at temperature 0 are one greedy answer.
        """
        with self.begin(queries, checked(queries, n, temperatures), seed) as session:
            yield from session.draw([query.id for query in queries], n)

    @contextmanager
    def begin(
        self, queries: Sequence[Query], temperatures: FloatArray, seed: int
    ) -> Iterator[_Session]:
        """Queries of which samples are drawn in rounds, each round of calls of its own."""
        heat = checked(queries, len(temperatures), temperatures)
        stop = Event()
        pool = ThreadPoolExecutor(self.service.limits.concurrency, "fusevlm-call")
        begun = {query.id: Asked(query, [], stop, "") for query in queries}
        try:
            yield _Session(self, begun, heat, seed, pool)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
            for asked in begun.values():
                if asked.calls:  # nobody waited for it: what was kept for it is free again
                    self.service.meter.withdraw(asked.promise)

    def ask(self, asked: Asked, heat: FloatArray, seed: int, pool: ThreadPoolExecutor) -> None:
        """Hand the calls of a query to the pool: those for answers that are not known yet."""
        if asked.failure is not None:
            return
        try:
            asked.messages = asked.messages or self._messages(asked.query)
            asked.key = _key(self.model, self.decoding, seed, asked.query.id, asked.messages)
            self._recall(asked, heat)
            greedy = self.decoding.answer_temperature
            left = _groups(heat, many=self.gives.n, judged=greedy, known=asked.found)
            answers = sum(_size(t, rows) for t, rows in left)
            asked.promise = self.service.meter.promise(
                len(left), answers, self.decoding.max_new_tokens
            )
        except FuseError as error:
            asked.failure = error
            return
        for temperature, rows in left:
            key = _seed(seed, asked.query.id, rows)
            asked.calls.append(pool.submit(self._draw, asked, temperature, rows, key))

    def _recall(self, asked: Asked, heat: FloatArray) -> None:
        """Take the answers that were paid for before."""
        if self.journal is None:
            return
        for row in (JUDGED, *range(len(heat))):
            known = completions.kept_answer(self.journal.find(f"{asked.key}/{row}"))
            if known is not None:
                asked.found[row], tokens = known
                asked.prompt_tokens = max(asked.prompt_tokens, tokens)

    def _messages(self, query: Query) -> list[dict[str, Any]]:
        if not query.question.strip():
            raise InputError("the question is empty.")
        if query.images and not self.gives.images:
            raise InputError(
                f"{self.name} takes no pictures. Serve a model that does, or ask without them."
            )
        text = self.decoding.prompt.replace("{question}", query.question)
        turns = [{"role": role, "content": said} for role, said in query.history]
        shown = [completions.data_url(image) for image in query.images]
        return [*turns, {"role": "user", "content": completions.content(text, shown)}]

    def _draw(self, asked: Asked, temperature: float, rows: Sequence[int], seed: int) -> None:
        """Answers for ``rows``; none once something of the query has failed, which is noted."""
        left = list(rows)
        try:
            while left:
                if asked.failure is not None:
                    return
                drawn = len(rows) - len(left)
                found = self._call(asked, temperature, _size(temperature, left), seed + drawn)
                # a greedy answer is the same for all
                took = dict.fromkeys(left, found[0]) if temperature == 0.0 else {}
                took = took or dict(zip(left, found, strict=False))
                for row, answer in took.items():
                    _refuse_empty(answer, row, self.gives)
                self._keep(asked, took)
                left = left[len(took) :]
        except FuseError as error:
            asked.failure = asked.failure or error

    def _keep(self, asked: Asked, answers: Mapping[int, Answer]) -> None:
        """Put answers into their places, and into the journal."""
        for row, answer in answers.items():
            if self.journal is not None:
                known = {"answer": asdict(answer), "prompt_tokens": asked.prompt_tokens}
                self.journal.add(f"{asked.key}/{row}", known)
            asked.found[row] = answer

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
        return answers[:size]

    def _single(self, why: str) -> None:
        """From now on one answer a call."""
        if self.gives.n:
            logger.warning("%s: %s; from now on one answer a call.", self.name, why)
        self.gives = replace(self.gives, n=False)

    def finish(self, asked: Asked, heat: FloatArray) -> Generation:
        """Wait for a query's calls and put their answers together."""
        try:
            while asked.calls:
                asked.calls.pop(0).result()
        finally:
            self.service.meter.withdraw(asked.promise)
        if asked.failure is not None:
            return _failed(asked, asked.failure)
        judged = asked.found[JUDGED]
        drawn = [asked.found.get(row, judged) for row in range(len(heat))]  # else it is greedy
        return _generation(asked, drawn, judged, heat, self.gives)


@dataclass(frozen=True, eq=False)
class _Session:
    """Queries that are being asked, in rounds."""

    model: OpenAI
    begun: Mapping[str, Asked]
    temperatures: FloatArray
    seed: int
    pool: ThreadPoolExecutor

    def draw(self, ids: Sequence[str], n: int) -> Iterator[Generation]:
        """One Generation for each of these queries, in order, with its first n samples."""
        heat = self.temperatures[:n]
        for i in ids:
            self.model.ask(self.begun[i], heat, self.seed, self.pool)
        for i in ids:
            yield self.model.finish(self.begun[i], heat)


def _named(source: str) -> tuple[str, str]:
    """Name and address of a source."""
    found = SOURCE.fullmatch(source)
    if found is None:
        raise InputError(
            "a model behind a server is named openai:NAME@BASE_URL, such as "
            "openai:llava@http://localhost:8000/v1; got one without its address."
        )
    return found[1], found[2]


def check_source(source: str) -> None:
    """Refuse a source without address, or whose server does not answer within seconds."""
    name, base = _named(source)
    _need_server(name, Service(base, ServerConfig(timeout=PATIENCE)))


def _need_server(model: str, service: Service) -> None:
    """Refuse a server that cannot be reached; what it answers to a free call does not matter."""
    try:
        service.once("/models")
    except CallError as error:
        if error.status == 0 and error.passing:
            raise InputError(f"cannot use {model!r} at {service.base}: {error}") from error


def noted_gives(before: Mapping[str, Any]) -> Gives:
    """What an earlier session found the server to give, as it noted it."""
    known = {one.name: before[one.name] for one in fields(Gives) if one.name in before}
    found: Gives = built(Gives, known)
    return found


def probe(model: str, service: Service, decoding: Decoding) -> Gives:
    """What the server gives, found by three calls.

    A few more where it refuses something, or always says the same.
    """
    promise = Promise()
    limit = min(decoding.max_new_tokens, PROBED_TOKENS)
    short = replace(decoding, max_new_tokens=limit, top_k=None)

    said: list[str] = []  # to the question without a picture

    def ask(gives: Gives, heat: float = 1.0, shown: Sequence[str] = ()) -> dict[str, Any]:
        turn = {
            "role": "user",
            "content": completions.content(COLOUR if shown else QUESTION, shown),
        }
        body = completions.request(model, [turn], short, gives, heat, 2, 1 + len(said))
        reply = service.ask(PATH, body, promise)
        service.meter.count(promise, *completions.count_tokens(reply, short.max_new_tokens))
        said.extend([] if shown else map(completions.text_of, choices(reply)))
        return reply

    try:
        taken, reply = _accepted(ask)
        gives = _given(taken, reply)
        if _follows(reply, lambda: ask(replace(gives, n=False), 0.5)):
            logger.warning("the server's log-probabilities follow the temperature: not used.")
            gives = replace(gives, logprobs=False, top_logprobs=False)
        gives = replace(gives, images=_sees(lambda: ask(replace(gives, n=False), shown=[RED])))
        while len(set(said)) == 1 and len(said) < ALIKE:
            ask(replace(gives, n=False), 2.0)
        if len(set(said)) == 1:
            logger.warning("the server's answers do not vary: it seems to ignore the temperature.")
            gives = replace(gives, varies=False)
    except (CallError, BudgetError) as error:
        missing = getattr(error, "status", 0) == 404
        hint = _known_models(service, model) if missing else ""
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


def _groups(
    heat: FloatArray, *, many: bool, judged: float, known: Mapping[int, Answer]
) -> list[tuple[float, list[int]]]:
    """(temperature, places) of each call, the judged answer's first, for what is not known.

    Samples at temperature 0 are all the greedy answer: the judged one, or one call's.
    """
    found = [] if JUDGED in known else [(judged, [JUDGED])]
    for t in map(float, np.unique(heat)):
        rows = [int(row) for row in np.flatnonzero(heat == t) if int(row) not in known]
        if not rows or (t == 0.0 and judged == 0.0):
            continue
        found += [(t, rows)] if many or t == 0.0 else [(t, [row]) for row in rows]
    return found


def _size(temperature: float, rows: Sequence[int]) -> int:
    """How many answers a call is to bring."""
    return len(rows) if temperature > 0.0 else 1


def _seed(seed: int, query_id: str, rows: Sequence[int]) -> int:
    """A number of 31 bits that depends on the seed, the query and the sample alone."""
    key = f"{seed}/{query_id}/{'answer' if rows[0] == JUDGED else rows[0]}"
    return int.from_bytes(hashlib.sha256(key.encode(errors="replace")).digest()[:4]) >> 1


def _key(model: str, decoding: Decoding, seed: int, query_id: str, messages: Any) -> str:
    """What answers to a query depend on, as the beginning of a key."""
    asked = json.dumps([model, asdict(decoding), seed, query_id, messages], sort_keys=True)
    return hashlib.sha256(asked.encode(errors="replace")).hexdigest()[:32]


def _failed(asked: Asked, error: FuseError) -> Generation:
    """A row with its reason; what the server did may be otherwise another time."""
    itself = isinstance(error, InputError) or getattr(error, "status", 0) in REFUSED
    passing = error.passing or not itself
    return Generation(asked.query.id, error=str(error), passing=passing, refused=not passing)


def _refuse_empty(answer: Answer, row: int, gives: Gives) -> None:
    """Nothing is no answer to judge, and no sample without the log-probability of its end."""
    if row == JUDGED and not answer.text:
        raise CallError("the judged answer is empty.")
    if gives.logprobs and not answer.logprobs:
        raise CallError("a sample is empty, and the server gives no log-probability of EOS.")


def _generation(
    asked: Asked, drawn: Sequence[Answer], judged: Answer, heat: FloatArray, gives: Gives
) -> Generation:
    samples = Samples(
        [answer.text for answer in drawn],
        [answer.logprobs for answer in drawn] if gives.logprobs else None,
        answer=judged.text,
        answer_logprobs=judged.logprobs,
        answer_margins=judged.margins,
    )
    return Generation(
        asked.query.id,
        samples,
        temperatures=[float(t) for t in heat],
        truncated=[answer.truncated for answer in drawn],
        prompt_tokens=asked.prompt_tokens,
    )
