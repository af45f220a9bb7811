"""Small worlds for the adapter's tests."""

import warnings

import numpy as np
import torch

from fusevlm.priors.gp.bound import Decoder

with warnings.catch_warnings():  # it still uses torch.jit.script
    warnings.simplefilter("ignore", DeprecationWarning)
    import gpytorch

__all__ = ["gpytorch", "make_decoder", "make_pairs"]


def make_pairs(n, *, width=(24, 20), n_latent=3, noise=0.3, seed=0):
    """Unit-norm pairs on a curved manifold; the two modalities may have different widths."""
    rng = np.random.default_rng(seed)
    rules = np.random.default_rng(99)
    x = rng.standard_normal((n, n_latent))
    out = []
    for d in width:
        W, V = rules.standard_normal((n_latent, 8)) * 0.5, rules.standard_normal((8, d))
        Y = rules.standard_normal(d) + np.sin(x @ W + 1.0) @ V
        Y += noise * rng.standard_normal(Y.shape)
        out.append((Y / np.linalg.norm(Y, axis=1, keepdims=True)).astype(np.float32))
    return out


def make_decoder(M, Q, D, *, ard=False, seed=0):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return Decoder(
        inducing=normal(M, Q),
        log_lengthscale=0.3 + 0.2 * normal(Q if ard else 1),
        log_amplitude2=torch.tensor(0.2, dtype=torch.float64),
        log_noise=-1.0 + 0.4 * normal(D),
        mean=0.2 * normal(D),
    )
