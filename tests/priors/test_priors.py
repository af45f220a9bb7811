"""The training-free priors against sklearn and scipy, and the contract all priors share."""

import numpy as np
import pytest
from scipy.spatial import distance
from sklearn.covariance import empirical_covariance, shrunk_covariance
from sklearn.neighbors import NearestNeighbors
from tests.store.test_objects import arrays_of

from fusevlm.errors import ArtefactError, InputError, NotFittedError
from fusevlm.maths.covariance import oas_intensity
from fusevlm.priors import KnnPrior, MahalanobisPrior

MAKERS = {"knn": KnnPrior, "mahalanobis": MahalanobisPrior}


def unit(n, d, seed):
    rows = np.random.default_rng(seed).standard_normal((n, d)) + 1.0
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


IMAGE, TEXT = unit(120, 8, 0), unit(120, 6, 1)
NEW_IMAGE, NEW_TEXT = unit(600, 8, 2), unit(600, 6, 3)


def test_knn_against_sklearn():
    found = KnnPrior(k=7).fit(IMAGE, TEXT).statistics(NEW_IMAGE, NEW_TEXT)
    each = [
        NearestNeighbors(n_neighbors=7).fit(rows).kneighbors(new)[0].mean(axis=1)
        for rows, new in ((IMAGE, NEW_IMAGE), (TEXT, NEW_TEXT))
    ]
    np.testing.assert_allclose(found["distance_image"], each[0], atol=1e-7)
    np.testing.assert_allclose(found["distance_text"], each[1], atol=1e-7)
    np.testing.assert_allclose(found["distance"], np.mean(each, axis=0), atol=1e-7)


@pytest.mark.parametrize("n", [120, 5])
def test_mahalanobis_against_scipy_with_sklearns_shrinkage(n):
    prior = MahalanobisPrior().fit(IMAGE[:n])
    S = empirical_covariance(IMAGE[:n])
    inverse = np.linalg.inv(shrunk_covariance(S, shrinkage=oas_intensity(S, n)))
    mean = IMAGE[:n].mean(axis=0)
    wanted = [distance.mahalanobis(z, mean, inverse) / np.sqrt(8) for z in NEW_IMAGE]
    np.testing.assert_allclose(prior.statistics(NEW_IMAGE)["distance"], wanted, rtol=1e-8)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
class TestContract:
    """One suite for all priors."""

    def test_primary_names_a_statistic_per_query(self, make):
        found = make().fit(IMAGE, TEXT).statistics(NEW_IMAGE[:9], NEW_TEXT[:9])
        assert make.primary in found
        assert all(v.shape == (9,) and v.dtype == np.float64 for v in found.values())

    def test_strange_queries_have_more_of_it(self, make):
        prior = make(norm="any").fit(IMAGE, TEXT)
        near = prior.statistics(NEW_IMAGE, NEW_TEXT)[prior.primary].mean()
        far = prior.statistics(-NEW_IMAGE, -NEW_TEXT)[prior.primary].mean()
        assert far > 1.5 * near

    def test_either_modality_may_be_left_out(self, make):
        prior = make().fit(IMAGE, TEXT)
        one = prior.statistics(None, NEW_TEXT)
        np.testing.assert_array_equal(one["distance"], one["distance_text"])
        with pytest.raises(InputError, match="text embeddings were given, but the fit had none"):
            make().fit(IMAGE).statistics(None, NEW_TEXT)

    def test_save_and_load(self, make, tmp_path):
        prior = make().fit(IMAGE, TEXT)
        prior.save(tmp_path)
        again = make.load(tmp_path).statistics(NEW_IMAGE, NEW_TEXT)
        for name, values in prior.statistics(NEW_IMAGE, NEW_TEXT).items():
            np.testing.assert_array_equal(again[name], values)
        arrays_of(tmp_path).write_bytes(b"")
        with pytest.raises(ArtefactError, match="truncated"):
            make.load(tmp_path)

    def test_bad_input(self, make):
        prior = make()
        with pytest.raises(NotFittedError, match="call fit first"):
            prior.statistics(IMAGE)
        with pytest.raises(InputError, match="not of norm 1"):
            prior.fit(2 * IMAGE)
        with pytest.raises(InputError, match="norm 0 in row 3"):
            make(norm="normalize").fit(np.where(np.arange(120)[:, None] == 3, 0.0, IMAGE))
        prior.fit(IMAGE, TEXT)
        with pytest.raises(InputError, match="width 6; the fit had 8"):
            prior.statistics(TEXT)

    def test_normalising_is_dividing_by_the_norm(self, make):
        scaled = IMAGE * np.linspace(1, 4, 120)[:, None]
        one = make(norm="normalize").fit(scaled).statistics(3 * NEW_IMAGE)["distance"]
        np.testing.assert_allclose(
            one, make().fit(IMAGE).statistics(NEW_IMAGE)["distance"], rtol=1e-6
        )


def test_too_few_pairs():
    with pytest.raises(InputError, match="5 pairs are fewer than k = 10"):
        KnnPrior().fit(IMAGE[:5])
    with pytest.raises(InputError, match="at least 2"):
        MahalanobisPrior().fit(IMAGE[:1])
    with pytest.raises(InputError, match="all training embeddings are equal"):
        MahalanobisPrior().fit(np.repeat(IMAGE[:1], 9, axis=0))
