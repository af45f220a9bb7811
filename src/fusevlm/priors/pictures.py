"""What a picture looks like, from its pixels alone: cheap, and the same for any model.

A picture is brought to 64×64 pixels and to three channels (brightness, red − green, blue − the mean
of both), then halved three times. At each of the four sizes and in each channel: seven quantiles of
the values, and of the logarithm of the gradient's length. 168 numbers, by which a photograph, a
drawing and noise differ more than by what a network trained on one of them makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fusevlm.checks import FloatArray
from fusevlm.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE, SIZES = 64, 4
QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
FLAT = 0.003  # below this a gradient is rounding
WIDTH = SIZES * 2 * 3 * len(QUANTILES)


def picture_statistics(images: Sequence[Image]) -> FloatArray:
    """Statistics [N, 168] of PIL images: a view for novelty, also where the model is a black box.

    >>> fuse.fit(samples, wrong, views={"image": picture_statistics(images)})   # doctest: +SKIP
    """
    if not len(images):
        raise InputError("there are no images; expected at least one.")
    return np.stack([_statistics(image) for image in images])


def _statistics(image: Image) -> FloatArray:
    from PIL.Image import Resampling

    small = image.convert("RGB").resize((SIDE, SIDE), Resampling.BILINEAR)
    red, green, blue = np.moveaxis(np.asarray(small, dtype=np.float64) / 255.0, 2, 0)
    channels = np.stack([(red + green + blue) / 3, red - green, blue - (red + green) / 2])
    found = []
    for _ in range(SIZES):
        down, right = np.diff(channels, axis=1)[:, :, :-1], np.diff(channels, axis=2)[:, :-1]
        slopes = np.log(FLAT + np.hypot(down, right))
        found += [np.quantile(values.reshape(3, -1), QUANTILES, axis=1) for values in
                  (channels, slopes)]  # fmt: skip
        channels = _halved(channels)
    return np.concatenate([values.ravel() for values in found])


def _halved(channels: FloatArray) -> FloatArray:
    """Means of 2×2 pixels."""
    c, h, w = channels.shape
    return np.asarray(channels.reshape(c, h // 2, 2, w // 2, 2).mean(axis=(2, 4)))
