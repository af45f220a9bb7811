"""Novelty: conformal p-values against brute force, their validity, and what they see."""

import logging

import numpy as np
import pytest

from fusevlm import Fuse, simulate
from fusevlm.errors import InputError
from fusevlm.fuse.novelty import fit_novelty, side_of, strangest
from fusevlm.maths.gaussians import fit_gaussian, mahalanobis


def world(rng, n_units, d=6, most=3):
    """Units of 1 to ``most`` queries that share a part of their looks."""
    size = rng.integers(1, most + 1, n_units)
    units = np.repeat(np.arange(n_units).astype(str), size)
    rows = np.repeat(rng.standard_normal((n_units, d)), size, axis=0)
    return units, rows + 0.5 * rng.standard_normal(rows.shape)


def test_p_values_against_their_definition():
    rng = np.random.default_rng(0)
    units, rows = world(rng, 40)
    texts = [f"what is {w}?" for w in rng.choice(["red", "blue", "round", "small"], len(units))]
    texts[3] = "what is odd?"
    new, said = rng.standard_normal((20, 6)), ["what is red?"] * 19 + ["who came odd?"]
    found = fit_novelty({"image": rows, "question": texts}, units, 0.1)
    p = found.p_values({"image": new, "question": said})

    def scaled(x):
        return (x - rows.mean(0)) / rows.std(0)

    far = mahalanobis(scaled(new), fit_gaussian(scaled(rows)))
    own = np.empty(len(rows))
    for unit in set(units):
        mine = units == unit
        own[mine] = mahalanobis(scaled(rows)[mine], fit_gaussian(scaled(rows)[~mine]))
    for k in range(20):
        share = sum(np.mean(own[units == unit] >= far[k]) for unit in set(units))
        assert p["image"][k] == pytest.approx(min(1.0, 2 * (1 + share) / 41))
    # one calibration query has a word that no other unit has; the last new one has two
    assert p["question"][0] == 1.0
    assert p["question"][19] == pytest.approx(2 * 1 / 41)


@pytest.mark.parametrize(("n_units", "d"), [(120, 3), (120, 40), (300, 200)])
def test_false_alarms_keep_their_level(n_units, d):
    rng = np.random.default_rng(1)
    level, alarms, total = 0.05, 0, 0
    for _ in range(12):
        units, rows = world(rng, n_units + 100, d)
        old = np.isin(units, np.arange(n_units).astype(str))
        names, first = np.unique(units[~old], return_index=True)
        found = fit_novelty({"image": rows[old], "text": rows[old, :2]}, units[old], level)
        fresh = rows[~old][first]
        p, _ = strangest(found.p_values({"image": fresh, "text": fresh[:, :2]}))
        alarms, total = alarms + int(np.sum(p <= level)), total + len(names)
    # all units of a repetition share their references
    assert alarms / total <= level + 3 * np.sqrt(level * (1 - level) / total)


def test_it_names_the_side_and_sees_what_is_far():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((300, 8))
    units = np.arange(300).astype(str)
    views = {"image": rows, "image_pixels": rows[:, :2] ** 2, "question": ["is it red?"] * 300}
    found = fit_novelty(views, units, 0.01)
    assert list(found.sides) == ["image", "question"]
    odd = {"image": np.full((2, 8), 9.0), "image_pixels": np.full((2, 2), 81.0),
           "question": ["is it red?", "who?"]}  # fmt: skip
    p, side = strangest(found.p_values(odd))
    assert (p <= 0.01).all()
    assert side[0] == "image"
    usual = {"image": rows[:1], "image_pixels": rows[:1, :2] ** 2, "question": ["capital who?"]}
    assert strangest(found.p_values(usual))[1] == ["question"]


def test_few_references_are_silent_and_say_so(caplog):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((150, 3))
    found = fit_novelty({"image": rows, "question": rows}, np.arange(150).astype(str), 0.01)
    assert not found.sides
    assert "needs 199 units for 2 side(s)" in found.why
    enough = rng.standard_normal((199, 3))
    assert fit_novelty(
        {"image": enough, "question": enough}, list("x" * 0) + [str(i) for i in range(199)], 0.01
    ).sides
    calibration = simulate.queries(60)
    with caplog.at_level(logging.WARNING):
        fuse = Fuse().fit(calibration)
    assert "no query is called novel" in caplog.text
    assert np.isnan(fuse.score(simulate.queries(10, seed=1)).novelty).all()


def test_views_must_be_those_of_the_fit():
    rng = np.random.default_rng(4)
    rows, units = rng.standard_normal((120, 3)), np.arange(120).astype(str)
    found = fit_novelty({"image": rows, "question": ["a b"] * 120}, units, 0.05)
    with pytest.raises(InputError, match="views lacks 'question'"):
        found.p_values({"image": rows})
    with pytest.raises(InputError, match=r"views\['image'\] must be 3 numbers per query"):
        found.p_values({"image": rows[:, :2], "question": ["a"] * 120})
    with pytest.raises(InputError, match=r"views\['question'\] must be texts"):
        found.p_values({"image": rows, "question": rows})


def test_sides_by_name():
    assert [side_of(n) for n in ("image", "image_pixels", "text_pre", "question", "depth")] == [
        "image", "image", "question", "question", "depth",
    ]  # fmt: skip


def test_wide_and_constant_views():
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((150, 20)) @ rng.standard_normal((20, 700))
    rows[:, 5] = 2.0
    units = np.arange(150).astype(str)
    found = fit_novelty({"image": rows, "depth": np.ones((150, 2))}, units, 0.05)
    p, side = strangest(found.p_values({"image": 10 * rows[:3], "depth": np.ones((3, 2))}))
    assert (p <= 0.05).all()
    assert side == ["image"] * 3
