"""A picture of the latent space: where training pairs lie, where the decoder is sure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm.checks import FloatArray, extra, matrix
from fusevlm.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fusevlm.priors.gp.adapter import GpAdapter

GRID = 60
MOST_POINTS = 3000


def latent_plane(X: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Centre [Q] and the two leading principal directions [2, Q] of the training latents."""
    centre = X.mean(axis=0)
    _, _, directions = np.linalg.svd(X - centre, full_matrices=False)
    return centre, directions[:2]


def latent_picture(adapter: GpAdapter, queries: Any = None, *, labels: Any = None) -> Figure:
    """Training latents and s over the plane of their two leading principal components.

    The background is s(x) on the plane through the centre (other directions at their mean), the
    points are the training latents, ``queries`` [B, Q] (latents, as ``adapter.latents(…).x`` gives
    them) lie on top, coloured by ``labels`` [B] if given. Points off the plane are projected on it.
    """
    extra("matplotlib", "the latent picture", "report")
    from matplotlib.figure import Figure

    X = adapter.training_latents
    if X.shape[1] < 2:
        raise InputError("the picture needs at least 2 latent dimensions; this adapter has 1.")
    marks = None if queries is None else matrix(queries, "queries")
    if marks is not None and marks.shape[1] != X.shape[1]:
        raise InputError(
            f"queries has {marks.shape[1]} columns; expected latents of {X.shape[1]} dimensions, "
            f"as adapter.latents(image, text).x gives them."
        )
    centre, plane = latent_plane(X)
    flat = (X - centre) @ plane.T
    shown = [flat] if marks is None else [flat, (marks - centre) @ plane.T]
    low = np.min([points.min(axis=0) for points in shown], axis=0) - 0.5
    high = np.max([points.max(axis=0) for points in shown], axis=0) + 0.5
    across, up = (np.linspace(low[i], high[i], GRID) for i in range(2))
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    field = log_variance(adapter, centre + grid @ plane).reshape(GRID, GRID)
    drawn = axes.pcolormesh(across, up, field, cmap="viridis", shading="gouraud", rasterized=True)
    figure.colorbar(drawn, ax=axes, label="s(x): mean log predictive variance")
    some = flat[:: -(-len(flat) // MOST_POINTS)]
    axes.scatter(
        some[:, 0], some[:, 1], s=4, color="white", alpha=0.6, linewidths=0, label="training pairs"
    )
    if marks is not None:
        colour = {"color": "tab:red"} if labels is None else {"c": labels, "cmap": "coolwarm"}
        axes.scatter(
            shown[1][:, 0],
            shown[1][:, 1],
            s=18,
            edgecolors="black",
            linewidths=0.4,
            label="queries",
            **colour,
        )
    axes.set(xlabel="first principal direction of x", ylabel="second", title="Latent space")
    axes.legend(loc="upper right", facecolor="0.6", framealpha=0.8, markerscale=1.5)
    return figure


def log_variance(adapter: GpAdapter, x: FloatArray) -> FloatArray:
    """s at latents x [B, Q]: the mean over modalities of (1/D)·log det Σ(x)."""
    each = [np.log(p.variance).mean(axis=1) for p in adapter.predict(x).values()]
    return np.asarray(np.mean(each, axis=0))
