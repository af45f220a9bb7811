"""Pictures of one coloured shape: reading them, finding the shape, and spoiling the view.

Pixels are uint8 [64, 64, 3]. A corruption has severities 1 to 5; severity 0 is the clean picture.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fusevlm import checks

Pixels = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

SIDE = 64
CLEAN = "clean"
SEVERITIES = (1, 2, 3, 4, 5)
EDGE = 12  # summed RGB distance from the background above which a pixel is shape


@dataclass(frozen=True)
class Box:
    """The shape's bounding box in pixels, right and bottom exclusive."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def center(self) -> tuple[float, float]:
        """(x, y)."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2


def find_background(pixels: Pixels) -> Pixels:
    """The commonest border colour, [3]."""
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    colours, counts = np.unique(border, axis=0, return_counts=True)
    return np.asarray(colours[counts.argmax()], dtype=np.uint8)


def find_box(pixels: Pixels) -> Box:
    """Where the shape is: all that differs from the background."""
    background = find_background(pixels).astype(np.int64)
    shape = np.abs(pixels.astype(np.int64) - background).sum(axis=2) > EDGE
    rows, columns = np.nonzero(shape.any(axis=1))[0], np.nonzero(shape.any(axis=0))[0]
    return Box(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)


def move(pixels: Pixels, box: Box, rng: np.random.Generator) -> tuple[Pixels, Box]:
    """The shape of a clean picture elsewhere in it, mirrored half the time, and its new box."""
    shape = pixels[box.top : box.bottom, box.left : box.right]
    if rng.random() < 0.5:
        shape = shape[:, ::-1]
    left = int(rng.integers(SIDE - box.width + 1))
    top = int(rng.integers(SIDE - box.height + 1))
    moved = Box(left, top, left + box.width, top + box.height)
    out = np.empty_like(pixels)
    out[:] = find_background(pixels)
    out[moved.top : moved.bottom, moved.left : moved.right] = shape
    return out, moved


def corrupt(pixels: Pixels, corruption: str, severity: int, seed: tuple[int, ...]) -> Pixels:
    """``pixels`` spoilt; the same (corruption, severity, seed) gives the same picture."""
    if corruption == CLEAN:
        return pixels
    names = tuple(CORRUPTIONS)
    checks.choice(corruption, "corruption", (CLEAN, *names))
    checks.choice(str(severity), "severity", tuple(map(str, SEVERITIES)))
    rng = np.random.default_rng([names.index(corruption), severity, *seed])
    spoilt = CORRUPTIONS[corruption](pixels.astype(np.float64), severity, rng)
    return np.clip(np.rint(spoilt), 0, 255).astype(np.uint8)


def _noise(pixels: Floats, severity: int, rng: np.random.Generator) -> Floats:
    deviation = (16.0, 36.0, 64.0, 100.0, 150.0)[severity - 1]
    return pixels + rng.normal(0.0, deviation, pixels.shape)


def _blur(pixels: Floats, severity: int, rng: np.random.Generator) -> Floats:
    from scipy.ndimage import gaussian_filter

    deviation = (1.0, 2.0, 3.5, 5.5, 8.0)[severity - 1]
    blurred: Floats = gaussian_filter(pixels, (deviation, deviation, 0), mode="nearest")
    return blurred


def _occlusion(pixels: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Grey tiles of 8 pixels over a share of the picture."""
    share = (0.08, 0.2, 0.36, 0.54, 0.74)[severity - 1]
    tiles = rng.permutation(64)[: round(64 * share)]
    out = pixels.copy()
    for tile in tiles:
        y, x = divmod(int(tile), 8)
        out[8 * y : 8 * y + 8, 8 * x : 8 * x + 8] = 140.0
    return out


def _low_contrast(pixels: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Fog: towards grey, with a little sensor noise that the fog does not hide."""
    keep = (0.6, 0.4, 0.24, 0.13, 0.06)[severity - 1]
    return 150.0 + keep * (pixels - 150.0) + rng.normal(0.0, 6.0, pixels.shape)


def _pixelation(pixels: Floats, severity: int, rng: np.random.Generator) -> Floats:
    """Blocks of one colour on a shifted grid, then coarse JPEG."""
    from PIL import Image

    block = (3, 5, 8, 12, 18)[severity - 1]
    quality = (40, 25, 15, 8, 4)[severity - 1]
    shift = rng.integers(0, block, 2)
    index = [(np.arange(SIDE) + s) // block for s in shift]
    y, x = np.meshgrid(index[0], index[1], indexing="ij")
    cell = (y * (x.max() + 1) + x).ravel()
    flat = pixels.reshape(-1, 3)
    counts = np.maximum(np.bincount(cell), 1)
    means = np.stack([np.bincount(cell, flat[:, c]) / counts for c in range(3)], axis=1)
    blocks = np.rint(means[cell].reshape(pixels.shape)).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer), dtype=np.float64)


CORRUPTIONS: dict[str, Callable[[Floats, int, np.random.Generator], Floats]] = {
    "noise": _noise,
    "blur": _blur,
    "occlusion": _occlusion,
    "low_contrast": _low_contrast,
    "pixelation": _pixelation,
}


def as_image(pixels: Pixels) -> Any:
    """An RGB PIL image."""
    from PIL import Image

    return Image.fromarray(pixels)
