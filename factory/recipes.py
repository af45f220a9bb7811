"""What each embedded model is trained on: one loss per step, drawn from (seed, stage, step)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from factory import models, packing
from factory.models import ASK, INSTRUCTION
from factory.packing import Segment, segment
from fusevlm.data.pictures import CORRUPTIONS, Pixels, corrupt, move
from fusevlm.data.questions import (
    PACKAGE,
    Asked,
    by_kind,
    derived_questions,
    package_questions,
)
from fusevlm.data.scenes import COLORS, POSITIONS, SHAPES, Scene, is_denial, read_pixels

LossAt = Callable[[int], Tensor]
P_MILD = 0.4  # share of the answerer's pictures that are corrupted
MILD = (1, 2)  # at these severities
P_BARE = 0.2  # share of questions without the short-answer instruction
P_YES_NO = 0.4  # share of yes/no questions
P_DENIED = 0.25  # of them, share with a denial


class Taught(torch.nn.Module):
    """A model in training, with linear heads that read attributes off its picture's summary.

    Contrast alone hardly starts: while pictures do not tell positions, texts about positions are
    pulled together, and then pictures learn nothing from them (measured: cosine 0.997 between the
    nine after 400 steps). The answerer learns slowly for a like reason. The heads give colour,
    shape, size, position and the shape's box; they are thrown away afterwards.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.words = torch.nn.Linear(models.WIDTH, sum(map(len, TAUGHT.values())))
        self.box = torch.nn.Linear(models.WIDTH, len(BOX_MIDDLE))

    def loss(self, summary: Tensor, scenes: Sequence[Scene]) -> Tensor:
        """Cross-entropies of the attributes and a smooth L1 of the box; ``summary`` is [B, 128]."""
        parts = self.words(summary).split([len(names) for names in TAUGHT.values()], dim=1)
        box = torch.tensor([_box(scene) for scene in scenes])
        loss = BOX_WEIGHT * F.smooth_l1_loss(self.box(summary), box, beta=BOX_EXACT)
        for part, (key, names) in zip(parts, TAUGHT.items(), strict=True):
            truth = [names.index(getattr(scene, key)) for scene in scenes]
            loss = loss + F.cross_entropy(part, torch.tensor(truth))
        return loss


class TaughtAnswerer(Taught):
    """An answerer in training, with one more head: does a colour or shape word fit the picture?

    It reads the decoder's state, before the last layer, at that word of a yes/no question. Without
    it the answer to those stays a guess (measured; see docs/embedded.md).
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__(encoder)
        self.match = torch.nn.Linear(models.DECODER_WIDTH, 1)
        self.ids = {word: models.encode(word)[0] for word in (*COLORS, *SHAPES)}

    def match_loss(
        self, states: Tensor, ids: Tensor, rows: Sequence[Sequence[Asked]], scenes: Sequence[Scene]
    ) -> Tensor:
        """Binary cross-entropy over the words; states [B, K, S, H], ids [B, K, S]."""
        yes_no = torch.tensor([[asked.kind == "yes_no" for asked in row] for row in rows])
        said = torch.isin(ids, torch.tensor(list(self.ids.values()))) & yes_no[:, :, None]
        if not said.any():
            return states.new_zeros(())
        own = torch.tensor([[self.ids[s.color], self.ids[s.shape]] for s in scenes])
        fits = (ids[..., None] == own[:, None, None]).any(dim=-1)
        found = self.match(states[said])[:, 0]
        return F.binary_cross_entropy_with_logits(found, fits[said].float())


TAUGHT: dict[str, tuple[str, ...]] = {
    "color": COLORS,
    "shape": SHAPES,
    "size": ("small", "medium", "large"),
    "position": POSITIONS,
}
BOX_MIDDLE, BOX_SCALE, BOX_WEIGHT = (32.0, 32.0, 20.0, 20.0), 10.0, 4.0
BOX_EXACT = (
    0.05  # half a pixel: beyond it the loss is linear, so that a pixel too much still counts
)


def _box(scene: Scene) -> list[float]:
    """Centre, width and height of the shape, about centred and scaled."""
    sides = (*scene.box.center, scene.box.width, scene.box.height)
    return [(x - middle) / BOX_SCALE for x, middle in zip(sides, BOX_MIDDLE, strict=True)]


def contrast(taught: Taught, scenes: Sequence[Scene], *, seed: int, images: int = 32) -> LossAt:
    """The dual encoder's loss on clean pictures, their shapes moved about.

    Each picture is told apart by a drawn text (against the other texts and pictures of the batch),
    by short captions (against *all* captions of the kind: 21 colour–shape pairs, 3 sizes, 9
    positions) and by the heads.
    """
    model = taught.encoder
    pixels = read_pixels(scenes)
    names, groups = _bank(scenes)
    bank = packing.text_ids(names)

    def loss_at(step: int) -> Tensor:
        rng = np.random.default_rng([seed, 1, step])
        index = _images(len(scenes), images, step, seed)
        seen, batch = moved(pixels, scenes, index, rng)
        drawn = [packing.draw_caption(scene, rng) for scene in batch]
        fits = torch.tensor([[caption.fits(scene) for scene in batch] for caption in drawn])
        found = model.get_image_features(pixel_values=models.as_tensor(seen))
        image = _unit(found)
        scale = model.logit_scale.clamp(max=4.6)
        loss = packing.contrastive_loss(
            image, _texts(model, packing.text_ids([c.text for c in drawn])), scale, fits
        )
        logits = scale.exp() * image @ _texts(model, bank).T
        told = [_short_captions(scene) for scene in batch]
        for k, group in enumerate(groups):
            truth = torch.tensor([names[group].index(texts[k]) for texts in told])
            loss = loss + F.cross_entropy(logits[:, group], truth)
        return loss + taught.loss(found.pooler_output, batch)

    return loss_at


def moved(
    pixels: Pixels, scenes: Sequence[Scene], index: Sequence[int], rng: np.random.Generator
) -> tuple[Pixels, list[Scene]]:
    """Pictures ``index`` with their shapes moved, and the scenes they now show."""
    pairs = [move(pixels[i], scenes[i].box, rng) for i in index]
    batch = [replace(scenes[i], box=box) for i, (_, box) in zip(index, pairs, strict=True)]
    return np.stack([picture for picture, _ in pairs]), batch


def _short_captions(scene: Scene) -> tuple[str, ...]:
    return (f"{scene.color} {scene.shape}", f"{scene.size} shape", f"shape at {scene.position}")


def _bank(scenes: Sequence[Scene]) -> tuple[list[str], list[slice]]:
    """All short captions, and where each kind of them stands."""
    pairs = sorted({_short_captions(scene)[0] for scene in scenes})
    kinds = (
        pairs,
        [f"{size} shape" for size in TAUGHT["size"]],
        [f"shape at {place}" for place in POSITIONS],
    )
    ends = np.cumsum([len(kind) for kind in kinds])
    groups = [slice(int(end) - len(kind), int(end)) for end, kind in zip(ends, kinds, strict=True)]
    return [text for kind in kinds for text in kind], groups


def _texts(model: Any, tokens: tuple[Tensor, Tensor]) -> Tensor:
    ids, mask = tokens
    return _unit(model.get_text_features(input_ids=ids, attention_mask=mask))


def _unit(output: Any) -> Tensor:
    return F.normalize(output.pooler_output, dim=-1)


def answering(
    taught: TaughtAnswerer,
    scenes: Sequence[Scene],
    *,
    seed: int,
    images: int = 16,
    questions: int = 8,
) -> LossAt:
    """The answerer's loss: moved shapes, clean or mildly corrupted, ``questions`` for each."""
    model = taught.encoder
    pixels, drawer = read_pixels(scenes), Drawer(scenes)

    def loss_at(step: int) -> Tensor:
        rng = np.random.default_rng([seed, 2, step])
        seen, batch = moved(pixels, scenes, _images(len(scenes), images, step, seed), rng)
        seen = np.stack([mildly(picture, rng) for picture in seen])
        rows = [drawer.draw(scene, questions, rng) for scene in batch]
        ids, labels = packing.pack([[_answer_segment(a, rng) for a in row] for row in rows])
        features, summary = packing.see(model, models.as_tensor(seen))
        last, before = packing.packed_states(model, features, ids)
        loss = packing.answer_loss(model.lm_head(last), labels)
        loss = loss + taught.match_loss(before, ids, rows, batch)
        return loss + taught.loss(summary, batch)

    return loss_at


def asking(
    model: Any, scenes: Sequence[Scene], *, seed: int, images: int = 16, questions: int = 8
) -> LossAt:
    """The question generator's loss: clean picture and answer in, question out."""
    pixels, drawer = read_pixels(scenes), Drawer(scenes)

    def loss_at(step: int) -> Tensor:
        rng = np.random.default_rng([seed, 3, step])
        seen, batch = moved(pixels, scenes, _images(len(scenes), images, step, seed), rng)
        rows = [[_question_segment(a) for a in drawer.draw(s, questions, rng)] for s in batch]
        ids, labels = packing.pack(rows)
        features = packing.image_features(model, models.as_tensor(seen))
        return packing.answer_loss(packing.packed_logits(model, features, ids), labels)

    return loss_at


class Drawer:
    """Draws training questions about scenes: a share yes/no, the other kinds alike.

    The package asks rarely for colours, and its yes/no questions need no picture to be right in
    81 %: no to a plain one, yes to a denying one ("is there not …?"), which is as common. Drawn so,
    the answerer learnt the 81 % and not to compare word and picture. Here every yes/no text of the
    package is asked about every scene; word and picture match in half, and denials are fewer.
    """

    def __init__(self, scenes: Sequence[Scene]) -> None:
        texts = {q for s in scenes for q, answer in s.asked if answer in ("yes", "no")}
        self.decided: dict[tuple[str, bool], list[str]] = {}
        for text in sorted(texts):
            for word in text.rstrip("?").split():
                if word in COLORS or word in SHAPES:
                    self.decided.setdefault((word, is_denial(text)), []).append(text)

    def draw(self, scene: Scene, n: int, rng: np.random.Generator) -> list[Asked]:
        """``n`` questions about a scene with their answers."""
        groups = by_kind([*package_questions(scene), *derived_questions(scene)])
        groups.pop("yes_no", None)
        others = list(groups.values())
        found = []
        for _ in range(n):
            if rng.random() < P_YES_NO:
                found.append(self._yes_no(scene, rng))
            else:
                group = others[int(rng.integers(len(others)))]
                found.append(group[int(rng.integers(len(group)))])
        return found

    def _yes_no(self, scene: Scene, rng: np.random.Generator) -> Asked:
        names, own = ((COLORS, scene.color), (SHAPES, scene.shape))[int(rng.integers(2))]
        matches, denies = bool(rng.random() < 0.5), bool(rng.random() < P_DENIED)
        words = [name for name in names if (name == own) == matches]
        texts = self.decided.get((words[int(rng.integers(len(words)))], denies), [])
        if not texts:  # few scenes, few texts
            return package_questions(scene)[0]
        answer = "yes" if matches != denies else "no"
        return Asked(texts[int(rng.integers(len(texts)))], answer, "yes_no", PACKAGE)


def mildly(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Clean, or any corruption at a low severity."""
    if rng.random() >= P_MILD:
        return pixels
    name = tuple(CORRUPTIONS)[int(rng.integers(len(CORRUPTIONS)))]
    return corrupt(pixels, name, int(rng.choice(MILD)), (int(rng.integers(2**31)), 9))


def _answer_segment(asked: Asked, rng: np.random.Generator) -> Segment:
    bare = rng.random() < P_BARE
    return segment(asked.question + ("" if bare else INSTRUCTION), asked.answer)


def _question_segment(asked: Asked) -> Segment:
    return segment(ASK.format(question=asked.answer), asked.question)


def _images(size: int, batch: int, step: int, seed: int) -> list[int]:
    """Rows of step ``step``: every epoch a new order, a batch never across two epochs."""
    batch = min(batch, size)
    epoch, place = divmod(step, size // batch)
    order = np.random.default_rng([seed, 7, epoch]).permutation(size)
    return [int(i) for i in order[place * batch : (place + 1) * batch]]
