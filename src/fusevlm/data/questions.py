"""Questions about scenes: the package's own and derived ones, and the query sets made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.data.pictures import CLEAN, CORRUPTIONS, SEVERITIES, as_image, corrupt
from fusevlm.data.scenes import COLORS, LINES, SHAPES, SIZES, STEP, Scene, read_pixels, split
from fusevlm.types import Query

PACKAGE, DERIVED = "easy_vqa", "derived"
N_QUERIES = {"dev": 500, "calibration": 1500, "test": 1500, "reserved": 1500}
QUERY_SEEDS = {"dev": 11, "calibration": 12, "test": 13, "reserved": 14}
P_CLEAN = 0.3
P_PACKAGE = 0.45
HELD_OUT_SHARE, UNSEEN_SHARE = 0.06, 0.05
MARGIN = 1.0  # pixels: a position, size or width that hinges on less is not asked for


@dataclass(frozen=True)
class Asked:
    """A question about one scene with its right answer."""

    question: str
    answer: str
    kind: str
    source: str
    unseen: bool = False  # a phrasing that training never uses

    @property
    def answer_type(self) -> str:
        """yes/no, number or other."""
        if self.answer in ("yes", "no"):
            return "yes/no"
        return "number" if self.answer.isdigit() else "other"


@dataclass(frozen=True)
class Kind:
    """A derived kind of question: phrasings, and its answer (None where it would be a toss-up)."""

    answer: Callable[[Scene], str | None]
    seen: tuple[str, ...]
    unseen: tuple[str, ...]


def _clear_size(scene: Scene) -> str | None:
    longest = max(scene.box.width, scene.box.height)
    return scene.size if all(abs(longest - line) >= MARGIN for line in SIZES) else None


def _clear_position(scene: Scene) -> str | None:
    clear = all(abs(c - line) >= MARGIN for c in scene.box.center for line in LINES)
    return scene.position if clear else None


def _clear_width(scene: Scene) -> str | None:
    clear = STEP / 2 - abs(scene.box.width - scene.width) >= MARGIN
    return str(scene.width) if clear else None


def describe(scene: Scene) -> str | None:
    """Such as ``small red circle``."""
    size = _clear_size(scene)
    return None if size is None else f"{size} {scene.color} {scene.shape}"


KINDS: dict[str, Kind] = {
    "position": Kind(
        _clear_position,
        ("where is the shape?", "where in the image is the shape?", "what is its position?"),
        ("which part of the image contains the shape?",),
    ),
    "size": Kind(
        _clear_size,
        ("how big is the shape?", "what size is the shape?", "what is the size of the shape?"),
        ("is the shape small, medium or large?",),
    ),
    "describe": Kind(
        describe,
        ("what is in the image?", "describe the image.", "what does the image contain?"),
        ("what is present where the shape is?",),
    ),
    "corners": Kind(
        lambda scene: str(scene.corners),
        ("how many corners does the shape have?", "how many corners are there?"),
        ("what is the number of corners?",),
    ),
    "width": Kind(
        _clear_width,
        ("how wide is the shape in pixels?", "how many pixels wide is the shape?"),
        ("what is the width of the shape?",),
    ),
    "color": Kind(lambda scene: scene.color, (), ("which color does the shape have?",)),
    "shape": Kind(lambda scene: scene.shape, (), ("which shape does it have?",)),
}


def package_questions(scene: Scene) -> list[Asked]:
    """The package's own questions about a scene."""
    return [Asked(q, a, _package_kind(a), PACKAGE) for q, a in scene.asked]


def _package_kind(answer: str) -> str:
    if answer in COLORS:
        return "color"
    return "shape" if answer in SHAPES else "yes_no"


def derived_questions(scene: Scene, *, unseen: bool = False) -> list[Asked]:
    """All derived questions about a scene, in seen or in unseen phrasings."""
    found = []
    for name, kind in KINDS.items():
        answer = kind.answer(scene)
        if answer is not None:
            for question in kind.unseen if unseen else kind.seen:
                found.append(Asked(question, answer, name, DERIVED, unseen))
    return found


def by_kind(questions: Sequence[Asked]) -> dict[str, list[Asked]]:
    """Questions grouped by kind, in order."""
    groups: dict[str, list[Asked]] = {}
    for asked in questions:
        groups.setdefault(asked.kind, []).append(asked)
    return groups


def draw(scene: Scene, rng: np.random.Generator, *, unseen: bool = False) -> Asked:
    """One question: the package's with probability ``P_PACKAGE``, else a derived kind, evenly."""
    if not unseen and rng.random() < P_PACKAGE:
        return _pick(package_questions(scene), rng)
    groups = list(by_kind(derived_questions(scene, unseen=unseen)).values())
    return _pick(groups[int(rng.integers(len(groups)))], rng)


def _pick(items: Sequence[Asked], rng: np.random.Generator) -> Asked:
    return items[int(rng.integers(len(items)))]


def draw_corruption(rng: np.random.Generator) -> tuple[str, int]:
    """Clean with probability ``P_CLEAN``, else any corruption and severity alike."""
    if rng.random() < P_CLEAN:
        return CLEAN, 0
    names = tuple(CORRUPTIONS)
    return names[int(rng.integers(len(names)))], int(rng.choice(SEVERITIES))


def queries(name: str, *, limit: int | None = None) -> list[Query]:
    """The queries of a split (dev, calibration, test or reserved), in a fixed order.

    6 % show a held-out pair and 5 % are unseen phrasings (dev has neither pair nor phrasing); the
    picture is clean in 30 %. A query occurs once: image, question and corruption together.
    """
    checks.choice(name, "split", tuple(N_QUERIES))
    size = N_QUERIES[name] if limit is None else min(limit, N_QUERIES[name])
    rng = np.random.default_rng(QUERY_SEEDS[name])
    scenes = split(name)
    pools = {held: [s for s in scenes if s.held_out == held] for held in (False, True)}
    found: dict[str, Query] = {}
    while len(found) < size:
        fate = rng.random()
        held = name != "dev" and fate < HELD_OUT_SHARE
        unseen = name != "dev" and not held and fate < HELD_OUT_SHARE + UNSEEN_SHARE
        scene = pools[held][int(rng.integers(len(pools[held])))]
        asked = draw(scene, rng, unseen=unseen)
        query = make_query(name, scene, asked, *draw_corruption(rng))
        found.setdefault(query.id, query)
    return list(found.values())


def make_query(name: str, scene: Scene, asked: Asked, corruption: str, severity: int) -> Query:
    """One query with its picture and everything that is known about it."""
    pixels = corrupt(read_pixels([scene])[0], corruption, severity, scene.seed)
    view = corruption if corruption == CLEAN else f"{corruption}-{severity}"
    words = "-".join(asked.question.rstrip("?.").replace(",", "").split())
    facts: dict[str, Any] = {
        "split": name,
        "source": asked.source,
        "kind": asked.kind,
        "answer_type": asked.answer_type,
        "corruption": corruption,
        "severity": severity,
        "held_out_pair": scene.held_out,
        "unseen_phrasing": asked.unseen,
        "image_id": scene.image_id,
        "color": scene.color,
        "shape": scene.shape,
    }
    return Query(
        id=f"{scene.image_id}/{view}/{words}",
        question=asked.question,
        images=[as_image(pixels)],
        references=[asked.answer],
        metadata=facts,
    )
