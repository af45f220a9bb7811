"""Batches: what comes together is done together, and nothing waits for ever or without bound."""

import threading
import time

import pytest

from fusevlm.serve.batches import Batcher
from fusevlm.serve.faults import Fault
from fusevlm.serve.limits import Limits


class Work:
    """Doubles numbers; the gate holds a batch back."""

    def __init__(self):
        self.gate, self.batches, self.begun = threading.Event(), [], threading.Semaphore(0)
        self.gate.set()

    def __call__(self, items):
        self.batches.append(list(items))
        self.begun.release()
        assert self.gate.wait(30)
        if any(item < 0 for item in items):
            raise ValueError("below zero")
        return [KeyError(item) if item == 13 else 2 * item for item in items]


@pytest.fixture
def work():
    return Work()


def batcher(work, **limits):
    return Batcher(work, Limits(**{"batch": 4, "linger": 0.0, "queue": 8, **limits}))


def busy(found, work):
    """Hold the worker with an item of its own."""
    work.gate.clear()
    first = found.submit("held", 100)
    assert work.begun.acquire(timeout=10)
    return first


def test_what_waits_is_done_together_and_in_order(work):
    found = batcher(work)
    first = busy(found, work)
    futures = [found.submit("a", k) for k in range(6)]
    assert found.waiting == 6
    work.gate.set()
    assert [one.result(10) for one in futures] == [0, 2, 4, 6, 8, 10]
    assert first.result(10) == 200
    assert work.batches == [[100], [0, 1, 2, 3], [4, 5]]
    found.close()


def test_only_items_of_one_key_are_done_together_and_the_first_goes_first(work):
    found = batcher(work)
    busy(found, work)
    futures = [found.submit(key, k) for k, key in enumerate("abacb")]
    work.gate.set()
    assert [one.result(10) for one in futures] == [0, 2, 4, 6, 8]
    assert work.batches[1:] == [[0, 2], [1, 4], [3]]
    found.close()


def test_the_first_waits_a_moment_for_others(work):
    found = batcher(work, linger=600.0, batch=3)
    futures = [found.submit("a", k) for k in range(3)]  # full: nobody waits any longer
    assert [one.result(60) for one in futures] == [0, 2, 4]
    assert work.batches == [[0, 1, 2]]
    found.close()


def test_a_full_queue_refuses_and_says_when_to_come_again(work):
    found = batcher(work)
    busy(found, work)
    for k in range(8):
        found.submit("a", k)
    with pytest.raises(Fault) as refused:
        found.submit("a", 9)
    assert refused.value.status == 429
    assert int(refused.value.headers["Retry-After"]) >= 1
    work.gate.set()
    found.close()


def test_what_is_withdrawn_is_not_done(work):
    found = batcher(work)
    first = busy(found, work)
    one, two = found.submit("a", 1), found.submit("a", 2)
    assert one.cancel()
    assert not first.cancel()  # it is under way
    work.gate.set()
    assert (first.result(10), two.result(10)) == (200, 4)
    assert work.batches == [[100], [2]]
    found.close()


def test_what_is_withdrawn_makes_room_at_once(work):
    found = batcher(work)
    busy(found, work)
    gone = [found.submit("a", k) for k in range(8)]
    assert all(one.cancel() for one in gone)
    assert found.waiting == 0
    stays = found.submit("a", 9)  # a full queue would refuse it
    work.gate.set()
    assert stays.result(10) == 18
    found.close()
    assert work.batches == [[100], [9]]


def test_what_waited_too_long_is_not_done(work):
    found = batcher(work, seconds=0.05)
    busy(found, work)
    late = found.submit("a", 1)
    time.sleep(0.1)
    work.gate.set()
    with pytest.raises(TimeoutError):
        late.result(10)
    found.close()
    assert work.batches == [[100]]


def test_one_that_fails_does_not_spoil_the_others(work):
    found = batcher(work)
    busy(found, work)
    good, bad, other = (found.submit("a", k) for k in (1, -1, 3))
    work.gate.set()
    assert (good.result(10), other.result(10)) == (2, 6)
    with pytest.raises(ValueError, match="below zero"):
        bad.result(10)
    own, fine = found.submit("a", 13), found.submit("a", 14)
    with pytest.raises(KeyError):
        own.result(10)
    assert fine.result(10) == 28
    assert found.alive
    found.close()


def test_closing_finishes_what_waits_and_takes_no_more(work):
    found = batcher(work)
    busy(found, work)
    futures = [found.submit("a", k) for k in range(5)]
    closing = threading.Thread(target=found.close)
    closing.start()
    while found.alive:
        time.sleep(0.001)
    with pytest.raises(Fault) as refused:
        found.submit("a", 9)
    assert refused.value.status == 503
    work.gate.set()
    closing.join(10)
    assert [one.result(0) for one in futures] == [0, 2, 4, 6, 8]


def test_several_workers_lose_nothing_and_do_nothing_twice(work):
    found = batcher(work, workers=3, queue=1000, linger=0.001)
    futures = [found.submit(k % 5, k) for k in range(500) if k != 13]
    assert [one.result(20) for one in futures] == [2 * k for k in range(500) if k != 13]
    found.close()
    assert sorted(k for batch in work.batches for k in batch) == [k for k in range(500) if k != 13]
    assert all(len({k % 5 for k in batch}) == 1 for batch in work.batches)
