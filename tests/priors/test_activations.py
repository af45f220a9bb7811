"""Statistics of activations against scikit-learn, direct inverses and fits made again."""

import numpy as np
import pytest
from sklearn.covariance import ShrunkCovariance, empirical_covariance
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct

from fusevlm.errors import InputError, NotFittedError
from fusevlm.maths.covariance import oas_intensity
from fusevlm.maths.gaussians import fit_gaussian, mahalanobis
from fusevlm.priors import ActivationPrior
from fusevlm.priors.activations import (
    STATISTICS,
    fit_laplace,
    left_out_log_variance,
    left_out_mahalanobis,
    log_variance,
)


def world(N, D, seed=0, *, copies=1):
    """Activations off the origin with unequal spreads, each image's ``copies`` times, and units."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((N // copies, D)) * np.linspace(0.3, 3.0, D) + rng.normal(size=D)
    rows = np.repeat(rows, copies, axis=0)
    units = [f"u{k // copies}" for k in range(N)]
    order = rng.permutation(N)
    return rows[order], [units[k] for k in order]


@pytest.mark.parametrize(("N", "D"), [(40, 6), (9, 30)])
@pytest.mark.parametrize("copies", [1, 3])
def test_left_out_values_are_those_of_a_fit_without_the_unit(N, D, copies):
    """Every unit really left out, and everything fitted again."""
    rows, units = world(N - N % copies, D, copies=copies)
    rows = rows + np.random.default_rng(1).normal(size=rows.shape) * 0.1
    far, spread = left_out_mahalanobis(rows, units), left_out_log_variance(rows, units)
    for unit in set(units):
        own = np.array([u == unit for u in units])
        rest = rows[~own]
        np.testing.assert_allclose(far[own], mahalanobis(rows[own], fit_gaussian(rest)), rtol=1e-8)
        expected = log_variance(rows[own], fit_laplace(rest))
        np.testing.assert_allclose(spread[own], expected, rtol=1e-8, atol=1e-8)


def test_mahalanobis_is_scikit_learns_under_a_shrunk_covariance():
    """Without their row: the squared distance that scikit-learn gives after a fit of the others."""
    rows, units = world(25, 5)
    found = left_out_mahalanobis(rows, units)
    expected = []
    for k in range(len(rows)):
        rest = np.delete(rows, k, axis=0)
        rho = oas_intensity(empirical_covariance(rest), len(rest))
        fitted = ShrunkCovariance(shrinkage=rho).fit(rest)
        expected.append(fitted.mahalanobis(rows[k : k + 1])[0])
    np.testing.assert_allclose(found, np.sqrt(np.array(expected) / 5), rtol=1e-8)


def test_laplace_is_the_posterior_variance_of_a_linear_map():
    """A Gaussian process with a linear kernel: noise 1, prior variance 1/λ of each weight."""
    rows, _ = world(12, 4)
    new = world(5, 4, seed=3)[0]
    ridge = np.sum(rows**2) / rows.size
    kernel = DotProduct(sigma_0=0.0, sigma_0_bounds="fixed") * (1.0 / ridge)
    process = GaussianProcessRegressor(kernel, alpha=1.0, optimizer=None)
    _, deviation = process.fit(rows, np.zeros(12)).predict(new, return_std=True)
    np.testing.assert_allclose(log_variance(new, fit_laplace(rows)), 2 * np.log(deviation))


def test_neither_depends_on_the_scale_of_the_activations():
    rows, units = world(20, 4)
    for apply in (left_out_mahalanobis, left_out_log_variance):
        np.testing.assert_allclose(apply(rows, units), apply(1e3 * rows, units), rtol=1e-9)


@pytest.mark.parametrize("name", ["mahalanobis_image", "laplace_image"])
def test_reference_rows_look_like_new_ones(name):
    """Three queries an image: their own values are those of new images, which the fit's are not."""
    images, _ = world(1060, 40)
    rows, new = np.repeat(images[:60], 3, axis=0), images[60:]
    units = [str(k // 3) for k in range(180)]
    prior = ActivationPrior([name]).fit(image=rows)
    fresh = prior.statistics(image=new)[name]
    seen = prior.statistics(image=rows)[name]
    own = prior.left_out(units, image=rows)[name]
    by_row = prior.left_out([str(k) for k in range(180)], image=rows)[name]
    error = {k: abs(np.median(v) - np.median(fresh)) for k, v in
             {"own": own, "seen": seen, "by row": by_row}.items()}  # fmt: skip
    assert error["own"] < 0.25 * min(error["seen"], error["by row"])


def test_saved_references_give_the_same(tmp_path):
    image, _ = world(30, 4)
    text, _ = world(30, 7, seed=2)
    prior = ActivationPrior().fit(image, text)
    assert prior.primary == "mahalanobis_image"
    prior.save(tmp_path / "prior")
    again = ActivationPrior.load(tmp_path / "prior").statistics(image, text)
    assert list(again) == list(STATISTICS)
    for name, values in prior.statistics(image, text).items():
        np.testing.assert_array_equal(again[name], values)


def test_only_what_is_named_is_read():
    text, units = world(30, 4)
    prior = ActivationPrior(["laplace_text"]).fit(text=text)
    odd = np.full((30, 9), np.nan)  # images, which nobody asked about
    np.testing.assert_array_equal(
        prior.statistics(odd, text)["laplace_text"], log_variance(text, fit_laplace(text))
    )
    assert list(prior.left_out(units, odd, text)) == ["laplace_text"]


def test_what_cannot_be_is_said():
    rows, units = world(6, 3)
    with pytest.raises(InputError, match="Did you mean 'laplace_text'"):
        ActivationPrior(["laplace_txt"])
    with pytest.raises(InputError, match="no statistic is named"):
        ActivationPrior([])
    with pytest.raises(NotFittedError):
        ActivationPrior().statistics(rows, rows)
    with pytest.raises(InputError, match="text activations are missing"):
        ActivationPrior(["laplace_text"]).fit(rows)
    with pytest.raises(InputError, match="width 2; the fit had 3"):
        ActivationPrior(["laplace_text"]).fit(text=rows).statistics(text=rows[:, :2])
    with pytest.raises(InputError, match="6 queries of one unit are no reference"):
        left_out_mahalanobis(rows, list("aaaaaa"))
    with pytest.raises(InputError, match="5 groups for 6 rows"):
        left_out_mahalanobis(rows, units[:5])
    same = np.ones((6, 3))
    same[0] = 2.0
    with pytest.raises(InputError, match="have the same activations"):
        left_out_mahalanobis(same, units)
    with pytest.raises(InputError, match="all activations are zero"):
        fit_laplace(np.zeros((4, 2)))
