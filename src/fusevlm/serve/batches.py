"""Work that is done in batches: what comes together is done together, and the queue is bounded."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Generic, TypeVar

from fusevlm.serve.faults import Fault, busy
from fusevlm.serve.limits import Limits

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
LONGEST_WAIT = 60  # seconds a client is asked to wait
OLD = 0.8  # weight of what batches took before


@dataclass(frozen=True, eq=False)
class Job(Generic[Item]):
    """An item that waits until then; those of one key can be done together."""

    item: Item
    key: Hashable
    until: float
    future: Future[Any] = field(default_factory=Future)


class Batcher(Generic[Item]):
    """Threads that take items of one key from a queue, some at a time.

    ``work`` is given some items and returns, for each, its value or the exception that it met with.
    If it raises, each item is tried by itself, so that one cannot spoil the others.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Sequence[Any]],
        limits: Limits,
        sized: Callable[[int], None] = lambda size: None,
    ) -> None:
        self._work, self._limits, self._sized = work, limits, sized
        self._waiting: deque[Job[Item]] = deque()
        self._changed = threading.Condition()
        self._closing, self._pace = False, 0.1  # pace: seconds of a batch
        self._threads = [
            threading.Thread(target=self._serve, name=f"fusevlm-batch-{k}", daemon=True)
            for k in range(limits.workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """Whether items are taken."""
        return not self._closing and all(thread.is_alive() for thread in self._threads)

    def submit(self, key: Hashable, item: Item) -> Future[Any]:
        """What will come of the item; a full queue refuses it, and cancelling withdraws it."""
        with self._changed:
            if self._closing:
                raise Fault("not_ready", words="the server is ending.")
            if len(self._waiting) >= self._limits.queue:
                raise busy(self._wait())
            job = Job(item, key, time.monotonic() + self._limits.seconds)
            self._waiting.append(job)
            self._changed.notify_all()
        job.future.add_done_callback(self._withdraw)
        return job.future

    def _withdraw(self, future: Future[Any]) -> None:
        """Take what was cancelled out of the queue, with all that it holds."""
        if future.cancelled():
            with self._changed:
                self._waiting = deque(job for job in self._waiting if job.future is not future)

    def close(self, seconds: float | None = None) -> None:
        """Take no more, do what waits, and end; what takes longer than so many seconds is left."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        until = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))

    def _wait(self) -> int:
        """Seconds until the queue should be half as long."""
        batches = (len(self._waiting) / 2 + 1) / (self._limits.batch * self._limits.workers)
        return max(1, min(LONGEST_WAIT, ceil(batches * self._pace)))

    def _serve(self) -> None:
        while (jobs := self._next()) is not None:
            begun = time.monotonic()
            if jobs:
                try:
                    self._do(jobs)
                except BaseException as error:  # the thread must go on, whatever happens
                    logger.exception("a batch broke")
                    for job in jobs:
                        if not job.future.done():
                            job.future.set_exception(error)
                took = time.monotonic() - begun
                self._pace = OLD * self._pace + (1 - OLD) * took

    def _next(self) -> list[Job[Item]] | None:
        """The next jobs of one key, perhaps none; None where all is done and no more will come."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            key, size = self._waiting[0].key, self._limits.batch
            until = time.monotonic() + self._limits.linger
            while not self._closing and self._alike(key) < size:
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            taken: list[Job[Item]] = []
            kept: deque[Job[Item]] = deque()
            for job in self._waiting:
                full = len(taken) == size or job.key != key
                (kept if full else taken).append(job)
            self._waiting = kept
        wanted = [job for job in taken if job.future.set_running_or_notify_cancel()]
        now = time.monotonic()
        for job in wanted:
            if job.until <= now:
                job.future.set_exception(TimeoutError())
        return [job for job in wanted if not job.future.done()]

    def _alike(self, key: Hashable) -> int:
        return sum(job.key == key for job in self._waiting)

    def _do(self, jobs: Sequence[Job[Item]]) -> None:
        self._sized(len(jobs))
        try:
            found = self._work([job.item for job in jobs])
        except BaseException as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._do([job])
                return
            found = [error]
        for job, one in zip(jobs, found, strict=True):
            if isinstance(one, BaseException):
                job.future.set_exception(one)
            else:
                job.future.set_result(one)
