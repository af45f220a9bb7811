"""FUSE in rounds: fitted, replayed, live, kept; what cannot be is left out and named."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from fusevlm import metrics
from fusevlm.errors import InputError, NotFittedError
from fusevlm.fuse import simulate
from fusevlm.fuse.evidence import text_disagreement
from fusevlm.fuse.rounds import Rounds, Tier, applies, at_tier, costs, usual_tiers
from fusevlm.types import Queries, Samples

TIERS = usual_tiers(12)


@pytest.fixture(scope="module")
def world():
    return simulate.queries(500, n_samples=12, seed=1), simulate.queries(300, n_samples=12, seed=2)


@pytest.fixture(scope="module")
def rounds(world):
    return Rounds(TIERS, normalize="none").fit(world[0])


def test_it_decides_with_fewer_samples(rounds, world):
    _, new = world
    decided = rounds.decide(new, risk=0.2)
    full = rounds.decide(new, risk=0.2, samples=100)
    none = rounds.decide(new, risk=0.2, samples=0)
    assert none.tier.max() == 0
    assert none.answers.mean() < decided.answers.mean() < 13
    assert decided.coverage > none.coverage - 0.1
    assert metrics.auroc(full.u, new.wrong) > metrics.auroc(none.u, new.wrong)
    table = decided.to_pandas()
    assert set(table.columns) == {"u", "p_wrong", "answer", "reason", "tier", "answers"}
    assert "generated answers" in repr(decided)
    assert "stopped after" in decided._repr_html_()


def test_a_budget_is_about_kept_on_new_queries(rounds, world):
    _, new = world
    for samples in (1, 3, 6):
        decided = rounds.decide(new, risk=0.2, samples=samples)
        assert decided.answers.mean() - 1 == pytest.approx(samples, abs=0.5 + 0.2 * samples)


def test_live_and_replayed_are_the_same(rounds, world):
    """Query by query, tier by tier, with no more samples than were drawn by then."""
    _, new = world
    plan = rounds.plan(0.2, 0.1, 4.0)
    replayed = rounds.decide(new, risk=0.2, samples=4.0)
    for i in range(40):
        one = new.take([i])
        cost = costs(rounds.fitted.tiers, applies(rounds.fitted.tiers, one))
        looks = []
        for k, tier in enumerate(rounds.fitted.tiers):
            looks.append(rounds.look(k, at_tier(one, tier), plan, cost))
            if not looks[-1].go_on[0]:
                break
        live = rounds.ended(k, looks[-1], looks[0].scores, [0], plan, cost)
        assert live.tier[0] == replayed.tier[i]
        assert live.answer[0] == replayed.answer[i]
        assert live.u[0] == pytest.approx(replayed.u[i], abs=1e-9)
        assert live.answers[0] == replayed.answers[i]
    assert len(set(replayed.tier)) > 1


def test_saved_and_loaded_it_decides_the_same(rounds, world, tmp_path):
    _, new = world
    rounds.save(tmp_path / "fit")
    again = Rounds.load(tmp_path / "fit")
    one, two = (r.decide(new, risk=0.1, samples=2) for r in (rounds, again))
    for name, values in one.columns().items():
        np.testing.assert_array_equal(values, two.columns()[name])
    assert again.options == rounds.options
    assert repr(again) == repr(rounds)


def test_novel_queries_cost_nothing_more(world):
    known, new = world
    rng = np.random.default_rng(0)
    seen = replace(known, inputs={"text": rng.standard_normal((len(known), 3))})
    rounds = Rounds(TIERS, normalize="none").fit(seen)
    odd = rng.standard_normal((len(new), 3))
    odd[:50] += 30
    decided = rounds.decide(replace(new, inputs={"text": odd}), risk=0.2, samples=8)
    assert not decided.tier[:50].any()
    assert set(decided.reason[:50]) == {"unlike the calibration (question)"}
    assert decided.tier[50:].any()


def test_where_nothing_is_certified_nothing_is_bought(rounds, world):
    _, new = world
    decided = rounds.decide(new, risk=0.001, samples=12)
    assert not decided.answer.any()
    assert not decided.tier.any()
    assert set(decided.reason) == {"nothing certified"}


def texts(queries, n=12):
    rng = np.random.default_rng(len(queries))
    rows = []
    for wrong in queries.wrong:
        share = 0.5 if wrong else 0.9
        said = ["yes" if rng.random() < share else "no" for _ in range(n)]
        rows.append(Samples(said, answer="yes"))
    return rows


def test_a_tier_that_cannot_be_had_is_left_out_and_named(world, caplog):
    """Texts alone say nothing before the first sample."""
    known, new = world
    bare = Queries(known.ids, texts(known), known.wrong)
    with caplog.at_level(logging.WARNING):
        rounds = Rounds(TIERS).fit(bare)
    assert "the tier 'answer' is left out: there is no evidence" in caplog.text
    assert [tier.name for tier in rounds.fitted.tiers] == ["4 samples", "8 samples", "12 samples"]
    decided = rounds.decide(Queries(new.ids, texts(new), new.wrong), risk=0.2)
    assert decided.coverage > 0.3
    assert decided.tiers[0] == "4 samples"


def test_samples_that_are_all_alike_are_not_bought(world):
    """A model that always says the same."""
    known, new = world

    def still(queries):
        said = {"texts": ["yes"] * 12, "token_logprobs": [[-0.1]] * 12, "answer": "yes"}
        same = [Samples(**said, answer_logprobs=q.answer_logprobs) for q in queries.samples]
        return Queries(queries.ids, same, queries.wrong, prior=queries.prior)

    rounds = Rounds(TIERS).fit(still(known))
    assert not rounds.decide(still(new), risk=0.2).tier.any()


def test_few_labels_all_go_to_the_threshold(world, caplog):
    known, new = world
    few = known.take(np.r_[np.flatnonzero(known.wrong)[:12], np.flatnonzero(~known.wrong)[:28]])
    with caplog.at_level(logging.WARNING):
        rounds = Rounds(TIERS, normalize="none").fit(few)
    assert "all labels go to the threshold" in caplog.text
    assert len(rounds.fitted.kept.wrong) == 40
    assert not rounds.fitted.apart
    decided = rounds.decide(new, risk=0.4, samples=3)
    assert np.isfinite(decided.p_wrong).all()


def test_without_enough_labels_samples_tell_what_they_tell_of_all_of_them(world):
    """Texts alone: four of twelve follow twelve less closely than eight do, and all are bought."""
    known, new = world
    few = Queries(known.ids, texts(known), known.wrong)
    few = few.take(np.r_[np.flatnonzero(known.wrong)[:15], np.flatnonzero(~known.wrong)[:45]])
    rounds = Rounds(TIERS).fit(few)
    left = rounds.fitted.variance
    assert left[0] > left[1] > left[2]
    said = [[text_disagreement(q.first(n)) for q in few.samples] for n in (4, 12)]
    share = np.corrcoef(*said)[0, 1]
    assert 1 - left[0] == pytest.approx((1 - left[2]) * share**2, rel=1e-6)
    decided = rounds.decide(Queries(new.ids, texts(new), new.wrong), risk=0.4)
    assert decided.answers.mean() > 5


def test_evidence_of_a_tier_of_its_own(world):
    """The opposite asked of every other query: it costs those an answer, and comes first."""
    known, new = world
    rng = np.random.default_rng(3)

    def asked(queries):
        flips = np.where(queries.wrong, 0.7, 0.2) + 0.2 * rng.standard_normal(len(queries))
        flips[::2] = np.nan
        return replace(queries, evidence={"complement": flips})

    rounds = Rounds(usual_tiers(12, {"complement": 1}), normalize="none").fit(asked(known))
    decided = rounds.decide(asked(new), risk=0.2, samples=3)
    tiers = rounds.fitted.tiers
    assert [tier.name for tier in tiers[:2]] == ["answer", "complement"]
    at = decided.tier == 2
    assert set(decided.answers[at & (np.arange(len(new)) % 2 == 0)]) <= {5.0}
    assert set(decided.answers[at & (np.arange(len(new)) % 2 == 1)]) <= {6.0}


def test_what_cannot_be_is_refused(rounds, world):
    known, _ = world
    with pytest.raises(InputError, match="there is no tier"):
        Rounds([])
    with pytest.raises(InputError, match="rounds need labels"):
        Rounds(TIERS).fit(replace(known, wrong=None))
    with pytest.raises(InputError, match=r"2 tables were given for 4 tiers"):
        Rounds(TIERS).fit([known, known])
    with pytest.raises(InputError, match="expected a table of queries"):
        Rounds(TIERS).fit(known.samples)
    with pytest.raises(InputError, match="not of the same queries"):
        Rounds(TIERS[:2]).fit([known, known.take(slice(None, None, -1))])
    with pytest.raises(NotFittedError, match="not fitted"):
        Rounds(TIERS).decide(known)
    with pytest.raises(InputError, match="samples is -1"):
        rounds.plan(0.1, 0.1, -1)
    bare = Queries(known.ids, texts(known), known.wrong)
    with pytest.raises(InputError, match="no tier can be had"):
        Rounds([Tier("answer")]).fit(bare)
    with pytest.raises(InputError, match="too few to keep some apart"):
        Rounds(TIERS, threshold_share=0.0).fit(known)
