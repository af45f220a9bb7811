"""α by balance and by grid."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fusevlm import Fuse, simulate
from fusevlm.fuse.evidence import balance_by_median, balance_by_spread
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
def test_grid_tunes_the_fused_score_not_the_evidence(preset, options):
    """Each α by a fit of its own: the best by u* is chosen, which here is not the best by û."""
    world = simulate.queries(200, n_samples=6, d=24, seed=5)
    options = {"normalize": False, "threshold_share": 0.0, **options}
    scores = [Fuse(preset, alpha=a, **options).fit(world).score(world) for a in ALPHA_GRID]
    fused = [roc_auc_score(world.wrong, x.u) for x in scores]
    alone = [roc_auc_score(world.wrong, x.parts["logdet"]) for x in scores]
    assert np.argmax(fused) != np.argmax(alone)
    found = Fuse(preset, alpha="grid", **options).fit(world).model.alpha
    assert found == ALPHA_GRID[int(np.argmax(fused))]
