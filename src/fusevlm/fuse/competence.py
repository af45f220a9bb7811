"""The competence prior: where does *this* model go wrong? A Gaussian process on its inputs.

Labels of calibration queries, centred and scaled, are regressed on embeddings of their inputs,

    r = f(x) + b_unit + ε,   f ~ GP(0, a·k),   b ~ N(0, υ·σ²),   ε ~ N(0, σ²)

with a squared-exponential kernel k, and b what the queries of one unit (rotated copies of a
question, questions about one image) share beyond the kernel. f is written in at most 256 features
φ(x) = L⁻¹k(z, x), where z are some of the queries and LLᵀ = k(z, z): a Bayesian linear regression,
whose evidence chooses length, a and υ. Every query has a mean and a variance; far from all labelled
inputs they go back to 0 and a·σ². The calibration rows get the values of a fit without their own
unit, in closed form: with rows whitened for υ and A = ΦᵀΦ + I/a, leaving out the rows B of a unit
is a change of rank |B| of A⁻¹ (the matrix inversion lemma).

It is silent with fewer than 100 labels, and where the evidence for it is weak: there it hurts
(measured; see docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, IntArray

NAME = "competence"
LEAST_LABELS = 100
LEAST_GAIN = 3.0  # nats of evidence over "the inputs say nothing"
FEATURES = 256
COMPONENTS = 32  # principal ones of each kind of input
LENGTHS = (0.5, 1.0, 2.0)  # in units of the inputs' own spread
AMPLITUDES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # a/σ²
SHARED = (0.0, 0.3, 1.0, 3.0, 10.0, 100.0, 1000.0)  # υ


@dataclass(frozen=True)
class Projection:
    """Leading principal components of one kind of input, of mean squared length 1."""

    mean: FloatArray  # [D]
    axes: FloatArray  # [D, C]

    def __call__(self, rows: FloatArray) -> FloatArray:
        return np.asarray((rows - self.mean) @ self.axes)


@dataclass(frozen=True)
class Competence:
    """A fitted competence prior."""

    projections: Mapping[str, Projection]
    points: FloatArray  # [M, C] the inputs that span the features
    root: FloatArray  # [M, M] L⁻¹
    length: float
    amplitude: float  # a/σ²
    shared: float  # υ
    noise: float  # σ²
    weights: FloatArray  # [M] posterior mean of the features' weights
    covariance: FloatArray  # [M, M] theirs over σ²
    gain: float  # nats

    def predict(self, inputs: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of f [N], on the scale of the standardised labels."""
        features = _features(self._place(inputs), self.points, self.root, self.length)
        missed = np.maximum(1.0 - np.einsum("nm,nm->n", features, features), 0.0)
        known = np.einsum("nm,mk,nk->n", features, self.covariance, features)
        return features @ self.weights, self.noise * (self.amplitude * missed + known)

    def _place(self, inputs: Mapping[str, FloatArray]) -> FloatArray:
        return np.hstack([project(inputs[name]) for name, project in self.projections.items()])


@dataclass(frozen=True)
class Fitted:
    """A competence prior with the mean and variance of its own rows, their unit left out."""

    model: Competence
    mean: FloatArray
    variance: FloatArray


def fit_competence(
    inputs: Mapping[str, FloatArray], wrong: BoolArray, units: Sequence[str], seed: int = 0
) -> Fitted | None:
    """Fit on labelled calibration queries; None where too little is known for it to help."""
    if len(wrong) < LEAST_LABELS or not wrong.any() or wrong.all():
        return None
    projections = {name: fit_projection(rows) for name, rows in inputs.items()}
    place = np.hstack([project(inputs[name]) for name, project in projections.items()])
    if place.shape[1] == 0:
        return None
    y = wrong.astype(np.float64)
    r = (y - y.mean()) / y.std()
    groups = np.unique(np.asarray(units), return_inverse=True)[1].astype(np.int64)
    chosen = np.random.default_rng(seed).permutation(len(place))[:FEATURES]
    best: tuple[float, ...] = (-np.inf,)
    for length in LENGTHS:
        scaled = length * np.sqrt(len(projections))
        root = _root(place[chosen], scaled)
        features = _features(place, place[chosen], root, scaled)
        for shared in SHARED:
            found = _evidence(features, r, groups, shared)
            if found[0] > best[0]:
                best = (*found, shared, scaled)
    evidence, amplitude, noise, shared, length = best
    null = max(_log_evidence(np.zeros(0), np.zeros(0), r, groups, v)[0] for v in SHARED)
    if evidence - null < LEAST_GAIN:
        return None
    root = _root(place[chosen], length)
    features = _features(place, place[chosen], root, length)
    F, white = _whitened(features, groups, shared), _whitened(r[:, None], groups, shared)[:, 0]
    covariance = np.asarray(np.linalg.inv(F.T @ F + np.eye(F.shape[1]) / amplitude), np.float64)
    weights = covariance @ (F.T @ white)
    model = Competence(
        projections, place[chosen], root, length, amplitude, shared, noise, weights, covariance,
        evidence - null,
    )  # fmt: skip
    return Fitted(model, *_left_out(model, features, F, white, groups))


def fit_projection(rows: FloatArray) -> Projection:
    """The leading components of rows [N, D], at most 32 and N/4 of them."""
    mean = rows.mean(axis=0)
    _, size, axes = np.linalg.svd(rows - mean, full_matrices=False)
    keep = min(COMPONENTS, len(rows) // 4, int(np.sum(size > 1e-8 * max(size[0], 1e-300))))
    scale = np.sqrt(np.sum(size[:keep] ** 2) / len(rows)) if keep else 1.0
    return Projection(mean, axes[:keep].T / scale)


def _kernel(a: FloatArray, b: FloatArray, length: float) -> FloatArray:
    d2 = np.einsum("nc,nc->n", a, a)[:, None] + np.einsum("mc,mc->m", b, b) - 2.0 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(d2, 0.0) / length**2))


def _root(points: FloatArray, length: float) -> FloatArray:
    """L⁻¹ for LLᵀ = k(z, z), with a jitter for points that coincide."""
    K = _kernel(points, points, length) + 1e-6 * np.eye(len(points))
    return np.asarray(np.linalg.inv(np.linalg.cholesky(K)))


def _features(x: FloatArray, points: FloatArray, root: FloatArray, length: float) -> FloatArray:
    return np.asarray(_kernel(x, points, length) @ root.T)


def _whitened(rows: FloatArray, groups: IntArray, shared: float) -> FloatArray:
    """Rows times (I + υ·11ᵀ)^(−½) within each unit: their noise is then independent."""
    if shared == 0.0:
        return rows
    size = np.bincount(groups)
    total = np.zeros((len(size), rows.shape[1]))
    np.add.at(total, groups, rows)
    factor = (1.0 - 1.0 / np.sqrt(1.0 + shared * size)) / size
    return np.asarray(rows - factor[groups, None] * total[groups])


def _evidence(
    features: FloatArray, r: FloatArray, groups: IntArray, shared: float
) -> tuple[float, float, float]:
    """The largest log evidence over the amplitudes, with that amplitude and σ²."""
    F, white = _whitened(features, groups, shared), _whitened(r[:, None], groups, shared)[:, 0]
    values, vectors = np.linalg.eigh(F.T @ F)
    values = np.maximum(values, 0.0)
    projected = vectors.T @ (F.T @ white)
    found = []
    for amplitude in AMPLITUDES:
        explained = amplitude * projected**2 / (1.0 + amplitude * values)
        log_det = np.log1p(amplitude * values)
        evidence, noise = _log_evidence(explained, log_det, r, groups, shared)
        found.append((evidence, amplitude, noise))
    return max(found)


def _log_evidence(
    explained: FloatArray, log_det: FloatArray, r: FloatArray, groups: IntArray, shared: float
) -> tuple[float, float]:
    """log N(r; 0, σ²(ΦaΦᵀ + I + υ·11ᵀ)) at its best σ², up to a constant; and that σ²."""
    white = _whitened(r[:, None], groups, shared)[:, 0]
    noise = (float(white @ white) - float(explained.sum())) / len(r)
    volume = float(log_det.sum()) + float(np.log1p(shared * np.bincount(groups)).sum())
    return -0.5 * (len(r) * np.log(noise) + volume), noise


def _left_out(
    model: Competence, features: FloatArray, F: FloatArray, white: FloatArray, groups: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of f at each row from a fit without the rows of its unit."""
    missed = np.maximum(1.0 - np.einsum("nm,nm->n", features, features), 0.0)
    mean, variance = np.empty(len(white)), np.empty(len(white))
    half = F @ model.covariance
    usual = np.einsum("nm,mk,nk->n", features, model.covariance, features)
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(groups))[:-1]):
        # A⁻¹ without the unit's rows, by the matrix inversion lemma
        mine = F[rows]
        inner = np.linalg.inv(np.eye(len(rows)) - mine @ half[rows].T)
        lost = half[rows].T @ inner
        own = features[rows]
        mean[rows] = own @ (model.weights - lost @ (white[rows] - mine @ model.weights))
        variance[rows] = usual[rows] + np.einsum("nb,bn->n", own @ lost, half[rows] @ own.T)
    return mean, model.noise * (model.amplitude * missed + variance)
