"""What calls of a service have used, and what they may still use: calls, tokens, money; and when.

A budget and a pace are of one process, or of several that share them (:class:`Shared`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from fusevlm.errors import FuseError
from fusevlm.settings import ServerConfig

MILLION = 1e6  # tokens that a price is for


class BudgetError(FuseError):
    """The budget has less than is wanted."""

    passing = True  # with a larger one


@dataclass(eq=False)
class Promise:
    """What a query may still use of the budget, kept for it until it is done."""

    calls: int = 0
    prompt: int = 0
    answer: int = 0


@dataclass(eq=False)
class Meter:
    """Calls and tokens used, and those promised to queries under way; the budget bounds their sum.

    Tokens of a prompt are known only when they are paid for, so that a budget of tokens or money
    may be exceeded by what prompts of the calls under way have more than the longest before.
    """

    limits: ServerConfig = field(default_factory=ServerConfig)
    calls: int = 0
    prompt: int = 0  # tokens
    answer: int = 0
    longest_prompt: int = 0
    refusal: str = ""  # why the latest promise was refused
    _open: list[Promise] = field(default_factory=list)
    _lock: Any = field(default_factory=Lock, repr=False)

    @property
    def tokens(self) -> int:
        return self.prompt + self.answer

    @property
    def cost(self) -> float:
        """In the unit of the prices; 0 without any."""
        return self._price(self.prompt, self.answer)

    def promise(self, calls: int, answers: int, tokens: int) -> Promise:
        """Keep so many calls for one query, with as many answers of at most so many tokens."""
        with self._lock:
            made = Promise(calls, calls * self.longest_prompt, answers * tokens)
            self._need(made)
            self._open.append(made)
            return made

    def withdraw(self, promise: Promise) -> None:
        """Free what a promise has left."""
        with self._lock:
            if promise in self._open:
                self._open.remove(promise)

    def send(self, promise: Promise) -> None:
        """Count a call that is about to be sent, first from the promise, then from the rest."""
        with self._lock:
            if promise.calls > 0:
                promise.calls -= 1
            else:
                self._need(Promise(1))
            self.calls += 1

    def count(self, promise: Promise, prompt: int, answer: int) -> None:
        """Count the tokens of an answered call."""
        with self._lock:
            promise.prompt = max(0, promise.prompt - prompt)
            promise.answer = max(0, promise.answer - answer)
            self.prompt += prompt
            self.answer += answer
            self.longest_prompt = max(self.longest_prompt, prompt)

    def _price(self, prompt: int, answer: int) -> float:
        rates = (self.limits.price_prompt, self.limits.price_answer)
        return (prompt * rates[0] + answer * rates[1]) / MILLION

    def _need(self, more: Promise) -> None:
        wanted = {
            "max_calls": (more.calls, self.calls, sum(p.calls for p in self._open)),
            "max_tokens": (
                more.prompt + more.answer,
                self.tokens,
                sum(p.prompt + p.answer for p in self._open),
            ),
            "max_cost": (
                self._price(more.prompt, more.answer),
                self.cost,
                sum(self._price(p.prompt, p.answer) for p in self._open),
            ),
        }
        for name, (new, used, kept) in wanted.items():
            limit = getattr(self.limits, name)
            if limit is not None and new and used + kept + new > limit:
                self.refusal = (
                    f"the budget {name} = {limit:g} is used up: {used:.6g} used, {kept:.6g} kept "
                    f"for queries under way, {new:.6g} wanted. Allow more: --{_flag(name)}, or "
                    f"server.{name} in the config."
                )
                raise BudgetError(self.refusal)


def _flag(name: str) -> str:
    return name.replace("_", "-")


def count_before(meter: Meter, before: Mapping[str, Any]) -> None:
    """Begin a meter with what earlier sessions used."""
    meter.calls, meter.prompt = int(before["calls"]), int(before["prompt_tokens"])
    meter.answer = int(before["answer_tokens"])


class Pace:
    """When the next call may begin: so many a minute, and not before a server wants it."""

    def __init__(self, per_minute: float | None = None) -> None:
        self.gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0  # when the next call may begin
        self._lock = Lock()

    def turn(self) -> float:
        """Take a turn; the seconds to wait for it."""
        with self._lock:
            now = time.monotonic()
            start = max(now, self._next)
            self._next = start + self.gap
            return start - now

    def hold(self, seconds: float) -> None:
        """Nobody calls before so many seconds have passed."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


@dataclass(frozen=True, eq=False)
class Shared:
    """A meter and a pace that several processes have together; what each was given is in it."""

    meter: Any  # with the attributes and methods of Meter
    pace: Any  # with those of Pace
