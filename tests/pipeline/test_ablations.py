import numpy as np
import pytest
from scipy.stats import rankdata

from fusevlm import metrics, simulate
from fusevlm.errors import InputError
from fusevlm.pipeline.ablations import ABLATIONS, COVERAGE, Split, first_samples, run_ablation

QUICK = [name for name in ABLATIONS if "jitter" not in name and "split_half" not in name]


@pytest.fixture(scope="module")
def splits():
    world = simulate.queries(500, n_samples=8, d=32, seed=3)
    cut = [slice(0, 200), slice(200, 500)]
    return [Split(world.samples[c], world.s[c], world.wrong[c]) for c in cut]


@pytest.fixture(scope="module")
def outcomes(splits):
    return {name: run_ablation(ABLATIONS[name], *splits) for name in QUICK}


def test_every_row_gives_finite_scores_and_probabilities(outcomes, splits):
    for name, found in outcomes.items():
        assert found.u.shape == found.p_wrong.shape == splits[1].wrong.shape, name
        assert np.isfinite(found.u).all(), name
        assert ((found.p_wrong >= 0) & (found.p_wrong <= 1)).all(), name


@pytest.mark.parametrize("name", [n for n in QUICK if ABLATIONS[n].equals])
def test_rows_that_must_be_equal_rank_alike(outcomes, name):
    row = ABLATIONS[name]
    assert row.reason
    own, other = outcomes[name].u, outcomes[row.equals].u
    own, other = rankdata(np.round(own, 9)), rankdata(np.round(other, 9))
    if row.readout == "logistic" and np.corrcoef(own, other)[0, 1] < 0:
        own = len(own) + 1 - own  # the labels turned the sigmoid round
    np.testing.assert_allclose(own, other, atol=0.51)  # rounding may tie two neighbours


@pytest.mark.parametrize(
    "name", ["paper_global", "paper_ols", "paper_unweighted", "paper_prior", "practical_evidence"]
)
def test_other_rows_rank_otherwise(outcomes, splits, name):
    base = ABLATIONS[name].preset
    aurocs = [metrics.auroc(outcomes[n].u, splits[1].wrong) for n in (name, base)]
    assert aurocs[0] != aurocs[1]


def test_prior_only_ranks_by_s_alone(outcomes, splits):
    for name in ("paper_prior", "practical_prior"):
        correlation = np.corrcoef(rankdata(outcomes[name].u), rankdata(splits[1].s))[0, 1]
        assert abs(correlation) == pytest.approx(1.0)


def test_evidence_only_is_blind_to_s(outcomes, splits):
    fit, test = (Split(x.samples, np.cos(np.arange(len(x.s))), x.wrong) for x in splits)
    for name in ("paper_evidence", "practical_evidence"):
        again = run_ablation(ABLATIONS[name], fit, test)
        np.testing.assert_array_equal(again.u, outcomes[name].u)


def test_the_quantile_rule_answers_its_share_of_calibration(splits):
    fit = splits[0]
    found = run_ablation(ABLATIONS["paper_quantile"], fit, fit)
    assert np.mean(found.u <= found.theta) == pytest.approx(COVERAGE, abs=1 / len(fit.wrong))


def test_global_tuning_beats_its_start_on_the_fit(splits):
    """Labels buy likelihood: its cross-entropy on the fit is below that of the logistic readout."""
    fit = splits[0]

    def cross_entropy(name):
        p = np.clip(run_ablation(ABLATIONS[name], fit, fit).p_wrong, 1e-12, 1 - 1e-12)
        return -np.mean(np.where(fit.wrong, np.log(p), np.log(1 - p)))

    assert cross_entropy("paper_global") < cross_entropy("paper_logistic")


def test_subsamples_are_nested_and_keep_the_answer(splits):
    query = splits[0].samples[0]
    three, five = first_samples(query, 3), first_samples(query, 5)
    assert five.texts[:3] == three.texts
    np.testing.assert_array_equal(five.embeddings[:3], three.embeddings)
    assert three.answer_logprobs is query.answer_logprobs or np.array_equal(
        three.answer_logprobs, query.answer_logprobs
    )
    assert len(splits[0].first(2).samples[0]) == 2
    assert first_samples(query, 8) is query
    with pytest.raises(InputError, match="9 responses are wanted"):
        first_samples(query, 9)


def test_global_tuning_belongs_to_the_scalar_fusion(splits):
    from dataclasses import replace

    row = replace(ABLATIONS["paper_global"], preset="practical")
    with pytest.raises(InputError, match="scalar"):
        run_ablation(row, *splits)
