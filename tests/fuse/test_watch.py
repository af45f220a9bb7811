"""Drift through Fuse: a batch, a stream, the warning of score, and a few new labels."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from fusevlm import Fuse, simulate
from fusevlm.errors import InputError, library_quiet
from fusevlm.fuse.watch import first_of_units


def world(n, seed, **options):
    found = simulate.queries(n, n_samples=4, d=8, seed=seed, **options)
    rng = np.random.default_rng(seed)
    return replace(found, inputs={"image": rng.standard_normal((n, 6))})


CALIBRATION, NEW = world(600, 1), world(200, 2)


@pytest.fixture(scope="module")
def fuse():
    return Fuse().fit(CALIBRATION)


def test_the_reference_is_what_was_kept_apart_one_row_per_unit():
    units = [str(k // 2) for k in range(600)]
    fuse = Fuse().fit(replace(CALIBRATION, units=units))
    assert len(fuse._reference) == 150
    assert set(fuse._reference.names) == {
        "surprisal", "logdet", "s", *(f"image input {k}" for k in range(1, 5)),
    }  # fmt: skip
    assert set(fuse._reference.pairs) == {("s", "surprisal"), ("s", "logdet")}
    assert first_of_units(["b", "a", "b", "c", "a"]) == [0, 1, 3]


def test_no_drift_is_found_where_there_is_none(fuse):
    found = fuse.check_drift(NEW)
    assert not found.drifted
    assert found.n_reference == 300
    assert found.n_new == 200


def test_what_moved_is_named(fuse):
    flipped = fuse.check_drift(replace(NEW, prior={"s": -NEW.s}))
    assert flipped.drifted
    assert {part.name for part in flipped.moved} <= {"s × surprisal", "s × logdet"}
    constant = fuse.check_drift(replace(NEW, prior={"s": np.zeros(200)}))
    assert (constant.moved[0].name, constant.moved[0].direction) == ("s", "narrower")
    shifted = NEW.inputs["image"] + 3 * np.eye(6)[0]
    moved = fuse.check_drift(replace(NEW, inputs={"image": shifted}))
    assert moved.moved[0].name.startswith("image input")


def test_score_warns_once_and_seldom(fuse, caplog):
    with caplog.at_level(logging.WARNING):
        fuse.score(NEW)
    assert "drift" not in caplog.text
    with caplog.at_level(logging.WARNING):
        fuse.score(replace(NEW, prior={"s": np.full(200, 0.3)}))
    assert caplog.text.count("drift:") == 1
    assert "s narrower" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fuse.score(NEW.take(range(10)))  # too few to tell
    assert "drift" not in caplog.text


def test_a_batch_is_warned_of_once_however_often_it_is_scored(caplog):
    fuse = Fuse().fit(CALIBRATION)
    moved = replace(NEW, prior={"s": np.full(200, 0.3)})
    with caplog.at_level(logging.WARNING):
        fuse.score(moved)
        fuse.predict_proba(moved)
        fuse.decide(moved)
        fuse.decide(moved, risk=0.1)
    assert caplog.text.count("drift:") == 1
    with caplog.at_level(logging.WARNING):
        fuse.score(moved.take(range(100)))  # another batch
    assert caplog.text.count("drift:") == 2
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            fuse.score(CALIBRATION)
    assert caplog.text.count("were in the fit") == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        fuse.fit(CALIBRATION).score(moved)  # a new fit knows nothing of it
    assert caplog.text.count("drift:") == 1


def test_a_batch_scored_in_silence_is_warned_of_later(caplog):
    fuse = Fuse().fit(CALIBRATION)
    moved = replace(NEW, prior={"s": np.full(200, 0.3)})
    with library_quiet():
        fuse.score(moved)
    with caplog.at_level(logging.WARNING):
        fuse.score(moved)
    assert caplog.text.count("drift:") == 1


def test_the_warning_keeps_its_rate(fuse, caplog):
    fired = 0
    with caplog.at_level(logging.WARNING):
        for seed in range(60):
            caplog.clear()
            fuse.score(world(60, 100 + seed))
            fired += "drift:" in caplog.text
    assert fired / 60 <= 0.01 + 3 * np.sqrt(0.01 * 0.99 / 60)


def test_a_stream(fuse):
    monitor = fuse.monitor(level=0.05)
    assert not monitor.update(NEW).alarm
    state = monitor.update(replace(NEW, prior={"s": np.zeros(200)}))
    assert state.alarm
    assert state.worst == "s"
    assert 200 < state.since < 260
    monitor.reset()
    assert monitor.state.n == 0
    assert not monitor.state.alarm


def test_a_few_labels_of_new_data():
    labelled = world(150, 5, base_rate=0.6)
    fuse = Fuse().fit(CALIBRATION)
    before = fuse.predict_proba(labelled).mean()
    theta = fuse.threshold(risk=0.2)
    found = fuse.recalibrate(labelled, risk=0.2)
    assert found.standing.verdict == "refuted"
    assert found.before == pytest.approx(before)
    assert found.after == pytest.approx(fuse.predict_proba(labelled).mean())
    assert abs(found.after - labelled.wrong.mean()) < 0.03 < abs(before - labelled.wrong.mean())
    assert fuse.threshold(risk=0.2).threshold < theta.threshold  # from the new labels
    assert "from these labels" in str(found)
    same = Fuse().fit(CALIBRATION)
    theta = same.threshold(risk=0.3)
    kept = same.recalibrate(world(150, 6), risk=0.3)
    assert kept.standing.verdict in ("confirmed", "open")
    assert abs(kept.after - kept.before) < 0.05
    assert same.threshold(risk=0.3).threshold == pytest.approx(theta.threshold, abs=0.2)
    with pytest.raises(InputError, match="recalibrate needs labels"):
        same.recalibrate(replace(NEW, wrong=None))
