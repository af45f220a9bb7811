"""The competence prior: where does *this* model go wrong? Bayesian regression on its inputs.

Labels of calibration queries, centred and scaled, are regressed on the leading principal components
x of their inputs' embeddings, each of variance 1,

    r = f(x) + b_unit + ε,   f(x) = wᵀx,  w ~ N(0, a·σ²·I),   b ~ N(0, υ·σ²),   ε ~ N(0, σ²)

a Gaussian process with a linear kernel; b is what the queries of one unit (rotated copies of a
question, questions about one image) share beyond it. The evidence chooses a, υ and σ². Every query
has a mean and a variance of f, which grows with the distance from all that was labelled. The
calibration rows get the values of a fit without their own unit, in closed form: with rows whitened
for υ and A = XᵀX + I/a, leaving out the rows B of a unit is a change of rank |B| of A⁻¹ (the matrix
inversion lemma).

It is silent with fewer than 100 labelled units, and where the evidence for it is weak: there it
hurts (measured; see docs/experiments.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from fusevlm.checks import BoolArray, FloatArray, IntArray, Shape

NAME = "competence"
LEAST_UNITS = 100
LEAST_GAIN = 3.0  # nats of evidence over "the inputs say nothing"
COMPONENTS = 48  # principal ones of each kind of input
SMALL = 1e-3  # components that vary less than this share of the first are left out
AMPLITUDES = tuple(float(a) for a in np.logspace(-4, 0, 13))  # a
SHARED = (0.0, 0.3, 1.0, 3.0, 10.0, 100.0, 1000.0)  # υ


@dataclass(frozen=True)
class Projection:
    """Leading principal components of one kind of input, of variance 1."""

    mean: Annotated[FloatArray, Shape("D")]
    axes: Annotated[FloatArray, Shape("D", "C")]

    def __call__(self, rows: FloatArray) -> FloatArray:
        return np.asarray((rows - self.mean) @ self.axes)


@dataclass(frozen=True)
class Competence:
    """A fitted competence prior."""

    projections: Mapping[str, Projection]
    amplitude: float  # a
    shared: float  # υ
    noise: float  # σ²
    weights: Annotated[FloatArray, Shape("C")]  # posterior mean of w
    covariance: Annotated[FloatArray, Shape("C", "C")]  # that of w over σ²
    gain: float  # nats

    def predict(self, inputs: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of f [N], on the scale of the standardised labels."""
        X = project(self.projections, inputs)
        return X @ self.weights, self.noise * _spread(X, self.covariance)

    def parts(self, inputs: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
        """What each kind of input adds to the mean [N]."""
        found, start = {}, 0
        for name, own in self.projections.items():
            X = own(inputs[name])
            found[name] = X @ self.weights[start : start + X.shape[1]]
            start += X.shape[1]
        return found


@dataclass(frozen=True)
class Fitted:
    """A competence prior with the mean and variance of its own rows, their unit left out."""

    model: Competence
    mean: FloatArray
    variance: FloatArray


def fit_competence(
    inputs: Mapping[str, FloatArray], wrong: BoolArray, units: Sequence[str]
) -> Fitted | None:
    """Fit on labelled calibration queries; None where too little is known for it to help."""
    if len(set(units)) < LEAST_UNITS or not wrong.any() or wrong.all():
        return None
    projections = {name: fit_projection(rows) for name, rows in inputs.items()}
    X = project(projections, inputs)
    y = wrong.astype(np.float64)
    r = (y - y.mean()) / y.std()
    groups = np.unique(np.asarray(units), return_inverse=True)[1].astype(np.int64)
    evidence, amplitude, noise, shared = max((*_evidence(X, r, groups, v), v) for v in SHARED)
    null = max(_log_evidence(np.zeros(0), np.zeros(0), r, groups, v)[0] for v in SHARED)
    if X.shape[1] == 0 or evidence - null < LEAST_GAIN:
        return None
    F, white = _whitened(X, groups, shared), _whitened(r[:, None], groups, shared)[:, 0]
    covariance = np.asarray(np.linalg.inv(F.T @ F + np.eye(F.shape[1]) / amplitude), np.float64)
    weights = covariance @ (F.T @ white)
    model = Competence(
        projections, amplitude, shared, noise, weights, covariance, evidence - null
    )  # fmt: skip
    return Fitted(model, *_left_out(model, X, F, white, groups))


def project(projections: Mapping[str, Projection], inputs: Mapping[str, FloatArray]) -> FloatArray:
    """All components of all kinds of inputs [N, C]."""
    return np.hstack([own(inputs[name]) for name, own in projections.items()])


def fit_projection(rows: FloatArray, most: int = COMPONENTS) -> Projection:
    """The leading components of rows [N, D], at most 48 and N/4 of them."""
    mean = rows.mean(axis=0)
    _, size, axes = np.linalg.svd(rows - mean, full_matrices=False)
    large = int(np.sum(size > SMALL * size[0])) if size[0] > 1e-12 * np.abs(rows).max() else 0
    keep = min(most, len(rows) // 4, large)
    scaled = axes[:keep].T * (np.sqrt(len(rows)) / size[:keep])
    return Projection(mean, np.ascontiguousarray(scaled))  # in the order a saved one has


def _spread(X: FloatArray, covariance: FloatArray) -> FloatArray:
    """xᵀSx of each row."""
    return np.asarray(((X @ covariance) * X).sum(axis=1))


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
    X: FloatArray, r: FloatArray, groups: IntArray, shared: float
) -> tuple[float, float, float]:
    """The largest log evidence over the amplitudes, with that amplitude and σ²."""
    F, white = _whitened(X, groups, shared), _whitened(r[:, None], groups, shared)[:, 0]
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
    """log N(r; 0, σ²(a·XXᵀ + I + υ·11ᵀ)) at its best σ², up to a constant; and that σ²."""
    white = _whitened(r[:, None], groups, shared)[:, 0]
    noise = (float(white @ white) - float(explained.sum())) / len(r)
    volume = float(log_det.sum()) + float(np.log1p(shared * np.bincount(groups)).sum())
    return -0.5 * (len(r) * np.log(noise) + volume), noise


def _left_out(
    model: Competence, X: FloatArray, F: FloatArray, white: FloatArray, groups: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and variance of f at each row from a fit without the rows of its unit."""
    mean, variance = np.empty(len(white)), np.empty(len(white))
    half = F @ model.covariance
    usual = _spread(X, model.covariance)
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.cumsum(np.bincount(groups))[:-1]):
        own, mine = X[rows], F[rows]
        inner = np.linalg.inv(np.eye(len(rows)) - mine @ half[rows].T)
        lost = half[rows].T @ inner
        mean[rows] = own @ (model.weights - lost @ (white[rows] - mine @ model.weights))
        variance[rows] = usual[rows] + np.einsum("nb,bn->n", own @ lost, half[rows] @ own.T)
    return mean, model.noise * variance
