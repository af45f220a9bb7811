"""The easy-vqa images as scenes, who may see which, and the images nobody may see yet.

Colour and shape follow from the package's own answers; an image whose answers leave them open is
left out. Position and size are measured in the pixels.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.data.pictures import SIDE, Box, Pixels, find_box

COLORS = ("black", "blue", "brown", "gray", "green", "red", "teal", "yellow")
SHAPES = ("circle", "rectangle", "triangle")
POSITIONS = (
    "top left", "top", "top right", "left", "center", "right", "bottom left", "bottom",
    "bottom right",
)  # fmt: skip
HELD_OUT = (("teal", "triangle"), ("brown", "circle"), ("yellow", "rectangle"))
SPLITS = ("train", "dev", "calibration", "test", "reserved")
SPLIT_SEED = 5
N_CALIBRATION, N_DEV = 600, 200  # images
CORNERS = {"circle": 0, "triangle": 3, "rectangle": 4}
LINES = (SIDE / 3, 2 * SIDE / 3)  # between left, center and right; top, center and bottom
SIZES = (16.5, 25.5)  # longest side between small, medium and large
STEP = 5  # widths are told to the nearest 5 pixels


@dataclass(frozen=True)
class Scene:
    """One image: what it shows, and the package's questions about it with their answers."""

    part: str  # the package's own: train or test
    number: int
    color: str
    shape: str
    box: Box
    asked: tuple[tuple[str, str], ...]
    path: str

    @property
    def image_id(self) -> str:
        return f"{self.part}/{self.number}"

    @property
    def seed(self) -> tuple[int, int]:
        """What corruptions of this image are drawn from."""
        return (("train", "test").index(self.part), self.number)

    @property
    def held_out(self) -> bool:
        return (self.color, self.shape) in HELD_OUT

    @property
    def position(self) -> str:
        """One of nine, such as ``top left``, ``left`` or ``center``."""
        x, y = self.box.center
        across = ("left", "", "right")[int(np.searchsorted(LINES, x))]
        down = ("top", "", "bottom")[int(np.searchsorted(LINES, y))]
        return f"{down} {across}".strip() or "center"

    @property
    def size(self) -> str:
        """Small, medium or large, by the longest side."""
        longest = max(self.box.width, self.box.height)
        return ("small", "medium", "large")[int(np.searchsorted(SIZES, longest))]

    @property
    def width(self) -> int:
        """Width in pixels to the nearest 5."""
        return STEP * ((2 * self.box.width + STEP) // (2 * STEP))

    @property
    def corners(self) -> int:
        return CORNERS[self.shape]


@cache
def reserved() -> frozenset[int]:
    """Numbers of the package's test images that are kept for a later confirmation."""
    source = resources.files("fusevlm.data") / "reserved.json"
    return frozenset(json.loads(source.read_text())["ids"])


def agrees(question: str, answer: str, color: str, shape: str) -> bool:
    """Whether a package question has this answer when the image shows ``color`` and ``shape``."""
    words = question.rstrip("?").split()
    if answer in COLORS:
        return answer == color and all(w == shape for w in words if w in SHAPES)
    if answer in SHAPES:
        return answer == shape and all(w == color for w in words if w in COLORS)
    there = color in words or shape in words
    return (there != is_denial(question)) == (answer == "yes")


def is_denial(question: str) -> bool:
    """Whether a yes/no question asks if something is *not* there."""
    return not {"not", "no"}.isdisjoint(question.rstrip("?").split())


@cache
def read_scenes(part: str, *, kept_back: bool = False) -> tuple[Scene, ...]:
    """All usable images of the package's ``train`` or ``test`` part, or those ``kept_back``."""
    checks.choice(part, "part", ("train", "test"))
    package: Any = checks.extra("easy_vqa", "the embedded data", "embedded")
    hidden = reserved() if part == "test" else frozenset()
    asked: dict[int, list[tuple[str, str]]] = {}
    for question, answer, number in zip(*getattr(package, f"get_{part}_questions")(), strict=True):
        if (number in hidden) == kept_back:
            asked.setdefault(number, []).append((question, answer))
    paths: dict[int, str] = getattr(package, f"get_{part}_image_paths")()
    scenes = []
    for number in sorted(asked):
        pairs = [
            pair
            for pair in product(COLORS, SHAPES)
            if all(agrees(question, answer, *pair) for question, answer in asked[number])
        ]
        if len(pairs) == 1:
            box = find_box(_read(paths[number]))
            facts = tuple(asked[number])
            scenes.append(Scene(part, number, *pairs[0], box, facts, paths[number]))
    return tuple(scenes)


def split(name: str) -> tuple[Scene, ...]:
    """The scenes of one split; train and dev hold no held-out pair.

    Calibration and dev images come from the package's training part, test images from its test
    part; ``reserved`` are 400 of those, for confirmations only. Disjoint by image.
    """
    checks.choice(name, "split", SPLITS)
    if name in ("test", "reserved"):
        return read_scenes("test", kept_back=name == "reserved")
    scenes = read_scenes("train")
    order = np.random.default_rng(SPLIT_SEED).permutation(len(scenes))
    if name == "calibration":
        return tuple(scenes[i] for i in sorted(order[:N_CALIBRATION]))
    rest = [scenes[i] for i in order[N_CALIBRATION:] if not scenes[i].held_out]
    chosen = rest[:N_DEV] if name == "dev" else rest[N_DEV:]
    return tuple(sorted(chosen, key=lambda scene: scene.number))


def read_pixels(scenes: Sequence[Scene]) -> Pixels:
    """Clean pictures [N, 64, 64, 3]."""
    return np.stack([_read(scene.path) for scene in scenes])


def _read(path: str) -> Pixels:
    from PIL import Image

    with Image.open(Path(path)) as image:
        return np.asarray(image.convert("RGB"), dtype=np.uint8)
