"""What each embedded model is trained on: one loss per step, drawn from (seed, stage, step)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fusevlm.embedded import models, packing
from fusevlm.embedded.models import ASK, INSTRUCTION
from fusevlm.embedded.packing import Captions, Segment, segment
from fusevlm.embedded.pictures import CORRUPTIONS, Pixels, corrupt
from fusevlm.embedded.questions import Asked, by_kind, derived_questions, package_questions
from fusevlm.embedded.scenes import COLORS, POSITIONS, SHAPES, Scene, read_pixels

LossAt = Callable[[int], Tensor]
P_MILD = 0.4  # share of the answerer's pictures that are corrupted
MILD = (1, 2)  # at these severities
P_BARE = 0.2  # share of questions without the short-answer instruction
P_PACKAGE = 0.4


class Taught(torch.nn.Module):
    """A dual encoder in training, with linear heads for colour, shape, size and position.

    Contrast alone hardly starts: while pictures do not tell positions, texts about positions are
    pulled together, and then pictures learn nothing from them (measured: cosine 0.997 between the
    nine after 400 steps). The heads are thrown away afterwards.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.heads = torch.nn.Linear(models.WIDTH, sum(map(len, TAUGHT.values())))


TAUGHT: dict[str, tuple[str, ...]] = {
    "color": COLORS,
    "shape": SHAPES,
    "size": ("small", "medium", "large"),
    "position": POSITIONS,
}


def contrast(
    taught: Taught, scenes: Sequence[Scene], *, seed: int, images: int = 32, texts: int = 1
) -> LossAt:
    """The dual encoder's loss on clean pictures.

    Each picture is told apart by ``texts`` drawn texts (against the other texts and pictures of the
    batch), by short captions (against *all* captions of the kind: 21 colour–shape pairs, 3 sizes, 9
    positions) and by the heads.
    """
    model = taught.encoder
    attributes = torch.tensor(
        [[names.index(getattr(s, key)) for key, names in TAUGHT.items()] for s in scenes]
    )
    pixels = models.as_tensor(read_pixels(scenes))
    captions = Captions(scenes)
    names, groups, truth = _banks(scenes)
    bank = packing.text_ids(names)

    def loss_at(step: int) -> Tensor:
        rng = np.random.default_rng([seed, 1, step])
        index = _images(len(scenes), images, step, seed)
        drawn = [captions.draw(int(i), rng) for i in index for _ in range(texts)]
        fits = torch.tensor(np.stack([c.fits[index] for c in drawn]))
        rows = torch.from_numpy(index)
        seen = model.get_image_features(pixel_values=pixels[rows])
        image = _unit(seen)
        scale = model.logit_scale.clamp(max=4.6)
        loss = packing.contrastive_loss(
            image, _texts(model, packing.text_ids([c.text for c in drawn])), scale, fits
        )
        logits = scale.exp() * image @ _texts(model, bank).T
        for k, group in enumerate(groups):
            loss = loss + F.cross_entropy(logits[:, group], truth[rows, k])
        parts = taught.heads(seen.pooler_output).split([len(n) for n in TAUGHT.values()], dim=1)
        for k, part in enumerate(parts):
            loss = loss + F.cross_entropy(part, attributes[rows, k])
        return loss

    return loss_at


def _banks(scenes: Sequence[Scene]) -> tuple[list[str], list[slice], Tensor]:
    """All short captions, where each kind of them stands, and each scene's own [N, kinds]."""
    told = [(f"{s.color} {s.shape}", f"{s.size} shape", f"shape at {s.position}") for s in scenes]
    names: list[str] = []
    groups, truth = [], []
    for kind in zip(*told, strict=True):
        known = sorted(set(kind))
        groups.append(slice(len(names), len(names) + len(known)))
        truth.append([known.index(text) for text in kind])
        names += known
    return names, groups, torch.tensor(truth).T


def _texts(model: Any, tokens: tuple[Tensor, Tensor]) -> Tensor:
    ids, mask = tokens
    return _unit(model.get_text_features(input_ids=ids, attention_mask=mask))


def _unit(output: Any) -> Tensor:
    return F.normalize(output.pooler_output, dim=-1)


def answering(
    model: Any, scenes: Sequence[Scene], *, seed: int, images: int = 32, questions: int = 4
) -> LossAt:
    """The answerer's loss: clean and mildly corrupted pictures, ``questions`` for each."""
    return _told(model, scenes, [seed, 2], images, questions, _answer_segment)


def asking(
    model: Any, scenes: Sequence[Scene], *, seed: int, images: int = 32, questions: int = 4
) -> LossAt:
    """The question generator's loss: picture and answer in, question out."""
    return _told(model, scenes, [seed, 3], images, questions, _question_segment)


def _told(
    model: Any,
    scenes: Sequence[Scene],
    seeds: list[int],
    n_images: int,
    n_questions: int,
    told: Callable[[Asked, np.random.Generator], Segment],
) -> LossAt:
    pixels = read_pixels(scenes)
    known = [_Choices(scene) for scene in scenes]

    def loss_at(step: int) -> Tensor:
        rng = np.random.default_rng([*seeds, step])
        index = _images(len(scenes), n_images, step, seeds[0])
        seen = np.stack([mildly(pixels[i], rng) for i in index])
        rows = [[told(known[i].draw(rng), rng) for _ in range(n_questions)] for i in index]
        return packing.answer_loss(model, models.as_tensor(seen), *packing.pack(rows))

    return loss_at


class _Choices:
    """The training questions about one scene, drawn so that all kinds are learnt."""

    def __init__(self, scene: Scene) -> None:
        self.package = package_questions(scene)
        self.derived = list(by_kind(derived_questions(scene)).values())

    def draw(self, rng: np.random.Generator) -> Asked:
        if rng.random() < P_PACKAGE:
            return self.package[int(rng.integers(len(self.package)))]
        group = self.derived[int(rng.integers(len(self.derived)))]
        return group[int(rng.integers(len(group)))]


def mildly(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Clean, or any corruption at a low severity."""
    if rng.random() >= P_MILD:
        return pixels
    name = tuple(CORRUPTIONS)[int(rng.integers(len(CORRUPTIONS)))]
    return corrupt(pixels, name, int(rng.choice(MILD)), (int(rng.integers(2**31)), 9))


def _answer_segment(asked: Asked, rng: np.random.Generator) -> Segment:
    bare = rng.random() < P_BARE
    return segment(asked.question + ("" if bare else INSTRUCTION), asked.answer)


def _question_segment(asked: Asked, rng: np.random.Generator) -> Segment:
    return segment(ASK.format(question=asked.answer), asked.question)


def _images(size: int, batch: int, step: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of step ``step``: every epoch a new order, a batch never across two epochs."""
    batch = min(batch, size)
    epoch, place = divmod(step, size // batch)
    order = np.random.default_rng([seed, 7, epoch]).permutation(size)
    return np.asarray(order[place * batch : (place + 1) * batch], dtype=np.int64)
