"""The paper's likelihood Ṽ | u ~ N(a + slope·u, τ²), completed on calibration queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError
from fusevlm.fuse.prior import Prior, fit_prior
from fusevlm.fuse.tuning import DEFAULT_Z, choose_temperature, choose_z
from fusevlm.maths.fusion import Posterior, posterior
from fusevlm.maths.noise import ols_noise


@dataclass(frozen=True)
class ScalarModel:
    """Constants learnt on calibration queries; ``prior.sigma0`` is ∞ without s."""

    prior: Prior
    offset: float  # added to û's origin: a = a_query + slope·offset
    shift: float  # added to a as it is (the OLS ablation's intercept)
    fixed_tau2: float | None  # replaces the per-query τ² (OLS ablation)
    temperature: float  # factor on τ²
    z: float

    def intercept(self, a: FloatArray, slope: FloatArray) -> FloatArray:
        return a + slope * self.offset + self.shift

    def noise(self, tau2: FloatArray) -> FloatArray:
        base = tau2 if self.fixed_tau2 is None else np.full_like(tau2, self.fixed_tau2)
        return base * self.temperature

    def posterior(
        self,
        s: FloatArray | None,
        V: FloatArray,
        a: FloatArray,
        slope: FloatArray,
        tau2: FloatArray,
    ) -> tuple[FloatArray, FloatArray, Posterior]:
        """m0, σ0 and the posterior, from the per-query columns of the evidence table."""
        m0 = self.prior.mean(s, len(V))
        sigma0 = np.full(len(V), self.prior.sigma0 if s is not None else np.inf)
        fused = posterior(m0, sigma0, V, self.intercept(a, slope), slope, self.noise(tau2))
        return m0, sigma0, fused


def fit_scalar(
    V: FloatArray,
    a: FloatArray,
    slope: FloatArray,
    tau2: FloatArray,
    s: FloatArray | None,
    wrong: BoolArray | None,
    *,
    intercept: str,
    noise: str,
    z: str | float,
) -> ScalarModel:
    """Complete the likelihood and fit the prior on calibration queries.

    ``fitted`` puts the mean of û at 0; ``ols`` replaces a and τ² by a regression on m0(s);
    ``tempered`` multiplies τ² by one labelled factor. A prior without s is uninformative.
    """
    offset = float(np.mean((V - a) / slope)) if intercept == "fitted" else 0.0
    a = a + slope * offset
    prior = fit_prior(s, V, a, slope, tau2)
    shift, fixed, temperature = 0.0, None, 1.0
    if noise == "ols":
        shift, fixed = ols_noise(V - a, slope, prior.mean(s, len(V)))
    elif noise == "tempered":
        if wrong is None:
            raise InputError("noise='tempered' needs labels: pass wrong=..., or use 'jackknife'.")
        checks.both_classes(wrong, "noise='tempered'")
        if s is not None:
            temperature = choose_temperature(prior, s, V, a, slope, tau2, wrong)
    if s is None:
        prior = Prior(prior.alpha0, 0.0, np.inf)
    model = ScalarModel(prior, offset, shift, fixed, temperature, DEFAULT_Z)
    if isinstance(z, str):
        if wrong is not None and wrong.any() and not wrong.all():
            fused = model.posterior(s, V, a - slope * offset, slope, tau2)[2]
            z = choose_z(fused.m, fused.sigma, wrong)
        else:
            z = DEFAULT_Z
    return ScalarModel(prior, offset, shift, fixed, temperature, float(z))
