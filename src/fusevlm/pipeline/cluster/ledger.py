"""What the workers of a cluster have together: budget and pace of a service, and who tried what.

One :class:`Ledger` lives in an actor of the cluster; each worker has a :class:`SharedMeter` and a
:class:`SharedPace` that ask it. Nothing here is Ray's: they are given a way to call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any

from fusevlm import checks
from fusevlm.models.budget import BudgetError, Meter, Pace, Promise, Shared, count_before
from fusevlm.settings import ServerConfig

MOST_ATTEMPTS = 4  # at a piece whose worker dies
Call = Callable[..., Any]  # the name of a method of the ledger and its arguments


class Ledger:
    """Counts for all workers; several of them may call at a time."""

    def __init__(self, limits: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        config = checks.changed(ServerConfig(), dict(limits), "option of a server")
        self.meter, self.pace = Meter(config), Pace(config.per_minute)
        if before:
            count_before(self.meter, before)
        self._open: dict[int, Promise] = {}
        self._keys, self._lock = count(1), Lock()
        self._attempts: dict[int, int] = {}

    def begin(self, index: int) -> int:
        """Note that a worker begins a piece; how often that was so by now."""
        with self._lock:
            self._attempts[index] = self._attempts.get(index, 0) + 1
            return self._attempts[index]

    def promise(self, calls: int, answers: int, tokens: int) -> tuple[int, str]:
        """The number of a promise; or 0, and why there is none."""
        try:
            made = self.meter.promise(calls, answers, tokens)
        except BudgetError as error:
            return 0, str(error)
        with self._lock:
            key = next(self._keys)
            self._open[key] = made
        return key, ""

    def withdraw(self, key: int) -> None:
        with self._lock:
            made = self._open.pop(key, None)
        if made is not None:
            self.meter.withdraw(made)

    def send(self, key: int) -> str:
        """Count a call; why it may not be sent, or nothing."""
        try:
            self.meter.send(self._open.get(key, Promise()))
        except BudgetError as error:
            return str(error)
        return ""

    def count(self, key: int, prompt: int, answer: int) -> None:
        self.meter.count(self._open.get(key, Promise()), prompt, answer)

    def used(self) -> dict[str, Any]:
        """Calls and tokens used by all, their price, and why the latest promise was refused."""
        meter = self.meter
        return {"calls": meter.calls, "prompt": meter.prompt, "answer": meter.answer,
                "cost": meter.cost, "refusal": meter.refusal}  # fmt: skip

    def turn(self) -> float:
        return self.pace.turn()

    def hold(self, seconds: float) -> None:
        self.pace.hold(seconds)


@dataclass(eq=False)
class _Numbered(Promise):
    key: int = 0  # of the ledger's


class SharedMeter:
    """A :class:`fusevlm.models.budget.Meter` that all workers have together."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def promise(self, calls: int, answers: int, tokens: int) -> Promise:
        key, why = self._call("promise", calls, answers, tokens)
        if why:
            raise BudgetError(why)
        return _Numbered(calls, key=key)

    def withdraw(self, promise: Promise) -> None:
        self._call("withdraw", _key(promise))

    def send(self, promise: Promise) -> None:
        why = self._call("send", _key(promise))
        if why:
            raise BudgetError(why)

    def count(self, promise: Promise, prompt: int, answer: int) -> None:
        self._call("count", _key(promise), prompt, answer)

    def __getattr__(self, name: str) -> Any:
        if name in ("calls", "prompt", "answer", "cost", "refusal"):
            return self._call("used")[name]
        raise AttributeError(name)


class SharedPace:
    """A :class:`fusevlm.models.budget.Pace` that all workers have together."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def turn(self) -> float:
        return float(self._call("turn"))

    def hold(self, seconds: float) -> None:
        self._call("hold", seconds)


def _key(promise: Promise) -> int:
    return promise.key if isinstance(promise, _Numbered) else 0


def shared_by(call: Call) -> Shared:
    """Budget and pace of the ledger that ``call`` reaches."""
    return Shared(SharedMeter(call), SharedPace(call))
