"""What the adapter learns from real CLIP vectors of COCO pairs, 400 to fit and 100 to ask."""

import numpy as np
import pytest
from scipy import stats

from fusevlm.priors import KnnPrior, MahalanobisPrior
from fusevlm.priors.gp.adapter import GpAdapter

LEVELS = np.linspace(0.0, 0.9, 10)


def split(features):
    order = np.random.default_rng(0).permutation(500)
    train, held = order[:400], order[400:]
    return features[:, train], features[:, held]


@pytest.fixture(scope="module")
def clip(clip_folder):
    return split(np.load(clip_folder / "features_clip.npy"))


@pytest.fixture(scope="module")
def trained(clip):
    train, _ = clip
    return GpAdapter(n_inducing=100).fit(*train)


def marginal(train, held):
    """Mean log-likelihood per output of held-out rows under independent training Gaussians."""
    return stats.norm.logpdf(held, train.mean(axis=0), train.std(axis=0)).mean()


def cross_modal_gain(adapter, train, held, text):
    """Nat per output by which x* of the image predicts the text better than the text's marginal.

    x* sees the image only, so nothing is fitted to what is predicted.
    """
    x = adapter.latents(held[0], None).x
    found = adapter.log_likelihood("text", text, x).mean() / text.shape[1]
    return found - marginal(train[1], text)


def mixed(held, level, seed=1):
    """Held-out embeddings with random unit vectors mixed in, normalised again."""
    noise = np.random.default_rng(seed).standard_normal(held.shape).astype(held.dtype)
    noise /= np.linalg.norm(noise, axis=2, keepdims=True)
    rows = (1.0 - level) * held + level * noise
    return rows / np.linalg.norm(rows, axis=2, keepdims=True)


def blended(held, level):
    """Two real pairs mixed, normalised again."""
    rows = (1.0 - level) * held + level * np.roll(held, 1, axis=1)
    return rows / np.linalg.norm(rows, axis=2, keepdims=True)


def test_matched_pairs_are_likelier_than_shuffled_ones(trained, clip):
    train, held = clip
    shuffled = np.roll(held[1], 1, axis=0)
    matched_joint = trained.latents(held[0], held[1]).log_joint
    shuffled_joint = trained.latents(held[0], shuffled).log_joint
    assert (matched_joint - shuffled_joint).mean() / 1024 > 0.1
    assert np.mean(matched_joint > shuffled_joint) > 0.8
    assert cross_modal_gain(trained, train, held, held[1]) > 0.05
    assert cross_modal_gain(trained, train, held, shuffled) < -0.3


def test_the_untrained_network_control_gains_nothing(trained, clip, clip_folder):
    """Raw densities of two embedding spaces cannot be compared; gains over each one's marginal can.

    The untrained network's image vectors fill a few dimensions, so their density is high whatever
    the model; but they tell next to nothing about the caption.
    """
    train, held = clip
    control_train, control_held = split(np.load(clip_folder / "features_clip_random.npy"))
    control = GpAdapter(n_inducing=100).fit(*control_train)
    real = cross_modal_gain(trained, train, held, held[1])
    nothing = cross_modal_gain(control, control_train, control_held, control_held[1])
    assert real > 0.05
    assert nothing < 0.01
    shuffled = np.roll(control_held[1], 1, axis=0)
    gap = (
        control.latents(*control_held).log_joint
        - control.latents(control_held[0], shuffled).log_joint
    )
    assert gap.mean() / 1024 < 0.02


@pytest.mark.parametrize("joint", [False, True])
def test_s_rises_with_noise(trained, clip, joint):
    _, held = clip
    s = [trained.statistics(*mixed(held, level), joint=joint)["s"] for level in LEVELS]
    assert stats.spearmanr(LEVELS, np.mean(s, axis=1)).statistic >= 0.9
    each = [stats.spearmanr(LEVELS, query).statistic for query in np.transpose(s)]
    assert np.median(each) >= 0.9


@pytest.mark.parametrize("prior", [KnnPrior(), MahalanobisPrior()], ids=["knn", "mahalanobis"])
def test_the_references_rise_with_noise_too(prior, clip):
    train, held = clip
    prior.fit(*train)
    s = [prior.statistics(*mixed(held, level))[prior.primary].mean() for level in LEVELS]
    assert stats.spearmanr(LEVELS, s).statistic >= 0.9


def test_blends_are_reported_not_judged(trained, clip):
    """The docs say that s falls for a blend of two real pairs: it lies between training data."""
    _, held = clip
    s = [trained.statistics(*blended(held, level))["s"].mean() for level in (0.0, 0.25, 0.5)]
    assert np.isfinite(s).all()
    assert s[2] < s[0]


def test_s_does_not_depend_on_the_start(trained, clip):
    """10 searches, each from 32 random draws (4 climbs), every query: 1e-3 of the range of s."""
    _, held = clip
    rng = np.random.default_rng(0)
    values = []
    for _ in range(10):
        s = 0.0
        for name, z in zip(("image", "text"), held, strict=True):
            given = {"image": None, "text": None, name: z}
            starts = rng.standard_normal((100, 32, 10))
            x = trained.latents(**given, starts=starts, n_climbs=4, tol=1e-6).x
            s = s + 0.5 * np.log(trained.predict(x)[name].variance).mean(axis=1)
        values.append(s)
    spread = np.ptp(values, axis=0)
    own = trained.statistics(*held)["s"]
    width = np.ptp(own)
    assert spread.max() < 1e-3 * width
    assert np.abs(own - np.median(values, axis=0)).max() < 1e-3 * width
