"""α by balance, by the size of the Taylor remainder, and by labels."""

import numpy as np
import pytest
from scipy.special import polygamma
from sklearn.metrics import roc_auc_score

from fusevlm import Fuse, simulate
from fusevlm.errors import InputError
from fusevlm.fuse.evidence import (
    LARGEST_ALPHA,
    Responses,
    balance_by_median,
    balance_by_spread,
    bounded_alpha,
)
from fusevlm.fuse.tuning import ALPHA_GRID, choose_alpha


def test_balance_makes_the_two_terms_of_umpire_alike():
    rng = np.random.default_rng(0)
    volume, incoherence = rng.normal(-7, 2, 501), rng.uniform(0.1, 0.6, 501)
    by_median = balance_by_median(volume, incoherence)
    assert by_median > 0
    assert np.median(by_median * incoherence) == pytest.approx(abs(np.median(volume)))
    by_spread = balance_by_spread(volume, incoherence)
    assert np.std(by_spread * incoherence) == pytest.approx(np.std(volume))
    # spreads do not care where zero lies on the log-det scale; medians do
    assert balance_by_spread(volume + 100, incoherence) == pytest.approx(by_spread)
    assert balance_by_median(volume + 100, incoherence) != pytest.approx(by_median)


def test_without_incoherence_the_weights_stay_one():
    assert balance_by_median(np.ones(5), np.zeros(5)) == 0.0
    assert balance_by_spread(np.arange(5.0), np.zeros(5)) == 0.0


def test_grid_finds_the_alpha_that_ranks_best():
    rng = np.random.default_rng(1)
    wrong = rng.random(2000) < 0.4
    a, b = wrong + rng.normal(0, 1, 2000), wrong + rng.normal(0, 3, 2000)
    # the best combination a + αb of independent signals has α = (1/9)/(1/1)
    best = choose_alpha(lambda alpha: a + alpha * b, wrong, grid=(0.0, 0.1, 1.0, 10.0))
    assert best == 0.1
    tied = choose_alpha(lambda alpha: a * (1 + alpha), wrong, grid=(0.5, 1.0, 2.0))
    assert tied == 0.5


@pytest.mark.parametrize(
    ("preset", "options"), [("paper", {"noise": "jackknife", "intercept": "a0"}), ("practical", {})]
)
def test_tuning_is_of_the_fused_score_not_the_evidence(preset, options):
    """Each α by a fit of its own: the best by u* is chosen, which here is not the best by û."""
    world = simulate.queries(200, n_samples=6, d=24, seed=5)
    options = {"normalize": "none", "threshold_share": 0.0, **options}
    scores = [Fuse(preset, alpha=a, **options).fit(world).score(world) for a in ALPHA_GRID]
    fused = [roc_auc_score(world.wrong, x.u) for x in scores]
    alone = [roc_auc_score(world.wrong, x.parts["logdet"]) for x in scores]
    assert np.argmax(fused) != np.argmax(alone)
    found = Fuse(preset, alpha="tuned", **options).fit(world).model.alpha
    assert found == ALPHA_GRID[int(np.argmax(fused))]


def test_bounded_alpha_is_the_last_with_small_remainders():
    """Against weights, ν_eff and R_w typed out in long form, on a dense grid of α."""
    rng = np.random.default_rng(3)
    n, d, queries = 6, 40, 60
    p = rng.beta(2, 1, (queries, n))
    found = bounded_alpha([Responses(np.eye(n), d, row) for row in p])
    noise_sd = np.sqrt(sum(polygamma(1, (d + 1 - j) / 2) for j in range(1, n + 1)))

    def share_within(alpha):
        w = np.exp(2 * alpha * (1 - p))
        nu = w.sum(axis=1) ** 2 / (w**2).sum(axis=1)
        taylor = n * np.log(w.mean(axis=1)) - n / 2 * (n / nu - 1)
        return np.mean(np.abs(np.log(w).sum(axis=1) - taylor) <= noise_sd)

    kept = np.array([share_within(alpha) >= 0.95 for alpha in np.linspace(0, 5, 5001)])
    first_broken = int(np.argmin(kept))
    assert found == pytest.approx(np.linspace(0, 5, 5001)[first_broken], abs=1.1e-3)


def test_bounded_alpha_of_equal_confidences_is_the_largest():
    same = [Responses(np.eye(4), 20, np.full(4, p)) for p in (0.2, 0.9, 1.0)]
    assert bounded_alpha(same) == pytest.approx(LARGEST_ALPHA)


def test_tuning_without_labels_bounds_the_remainder():
    world = simulate.queries(120, n_samples=6, d=24, seed=7)
    free = Fuse("paper", normalize="none", alpha="remainder").fit(world.samples, s=world.s)
    for wrong in (None, np.zeros(120), np.ones(120)):
        tuned = Fuse("paper", normalize="none", probability="min_max").fit(
            world.samples, wrong, s=world.s
        )
        assert tuned.model.alpha == free.model.alpha > 0


def test_an_alpha_that_cannot_be_scored_is_passed_over():
    """30 samples in 6 dimensions: large weights leave the scatter singular in double precision."""
    many = simulate.queries(60, n_samples=30, d=6, seed=2)
    options = {"normalize": "none", "threshold_share": 0.0}
    with pytest.raises(InputError, match="singular"):
        Fuse(alpha=1e3, jitter=0.0, **options).fit(many)
    tuned = Fuse(alpha="tuned", jitter=0.0, **options).fit(many)
    assert tuned.model.alpha in ALPHA_GRID
    with pytest.raises(InputError, match="no"):
        choose_alpha(lambda alpha: refuse(), np.array([True, False]))


def refuse():
    raise InputError("no")
