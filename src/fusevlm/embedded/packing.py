"""Training batches: many questions about one picture share its encoding; captions share a batch.

For the LLaVA-shaped models a row is ``prefix | segment | segment | …``: the prefix holds the image,
a segment one question with its answer. A segment sees the prefix and itself and starts at the
position after the prefix, so that its loss is exactly that of a prompt of its own – at the cost of
one image for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from fusevlm.embedded import models
from fusevlm.embedded.models import ASSISTANT, BOS, EOS, IMAGE, N_IMAGE_TOKENS, PAD, USER, encode
from fusevlm.embedded.questions import KINDS, Asked, derived_questions, package_questions
from fusevlm.embedded.scenes import COLORS, SHAPES, Scene, agrees

IGNORED = -100
PREFIX = (BOS, USER, *([IMAGE] * N_IMAGE_TOKENS))
Model = torch.nn.Module


@dataclass(frozen=True)
class Segment:
    """Token ids of a question, the assistant's mark, the answer and EOS."""

    ids: tuple[int, ...]
    n_prompt: int  # of them, how many are given (no loss)


def segment(prompt: str, answer: str) -> Segment:
    """``prompt`` as the chat template has it after the image, and what should follow."""
    given = (*encode(prompt), ASSISTANT)
    return Segment((*given, *encode(answer), EOS), len(given))


def pack(rows: Sequence[Sequence[Segment]]) -> tuple[Tensor, Tensor]:
    """Ids and labels [B, K, S] of B rows of K segments, padded on the right."""
    longest = max(len(s.ids) for row in rows for s in row)
    ids = torch.full((len(rows), len(rows[0]), longest), PAD)
    labels = torch.full_like(ids, IGNORED)
    for b, row in enumerate(rows):
        for k, part in enumerate(row):
            ids[b, k, : len(part.ids)] = torch.tensor(part.ids)
            labels[b, k, part.n_prompt : len(part.ids)] = torch.tensor(part.ids[part.n_prompt :])
    return ids, labels


def layout(n_segments: int, length: int) -> tuple[Tensor, Tensor]:
    """Additive mask [1, 1, L, L] and positions [1, L] of packed rows."""
    P = len(PREFIX)
    group = torch.cat([torch.zeros(P), torch.arange(1, n_segments + 1).repeat_interleave(length)])
    order = torch.arange(len(group))
    sees = (order[:, None] >= order) & ((group == 0) | (group[:, None] == group))
    mask = torch.where(sees, 0.0, torch.finfo(torch.float32).min)[None, None]
    own = (order - P) % length + P
    return mask, torch.where(group == 0, order, own)[None]


def image_features(model: Model, pixels: Tensor) -> Tensor:
    """Projected class token and patches [B, 65, width], as LLaVA takes them."""
    tower, projector = model.get_submodule("model.vision_tower"), "model.multi_modal_projector"
    patches = tower(pixel_values=pixels).last_hidden_state
    features: Tensor = model.get_submodule(projector)(patches)
    return features


def packed_logits(model: Model, features: Tensor, ids: Tensor) -> Tensor:
    """Next-token logits [B, K, S, V] of packed segments (ids [B, K, S])."""
    B, K, S = ids.shape
    decoder = model.get_submodule("model.language_model")
    words = decoder.get_submodule("embed_tokens")
    start = words(torch.tensor(PREFIX[:2])).expand(B, -1, -1)
    mask, positions = layout(K, S)
    hidden = decoder(
        inputs_embeds=torch.cat([start, features, words(ids.reshape(B, K * S))], dim=1),
        attention_mask=mask.expand(B, -1, -1, -1),
        position_ids=positions,
        use_cache=False,
    ).last_hidden_state[:, len(PREFIX) :]
    logits: Tensor = model.get_submodule("lm_head")(hidden)
    return logits.reshape(B, K, S, -1)


def answer_loss(model: Model, pixels: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
    """Mean over answers of the mean cross-entropy of their tokens."""
    logits = packed_logits(model, image_features(model, pixels), ids)[:, :, :-1]
    target = labels[:, :, 1:]
    each = F.cross_entropy(logits.flatten(0, 2), target.flatten(), reduction="none")
    each = each.reshape(target.shape)
    return (each.sum(dim=2) / (target != IGNORED).sum(dim=2)).mean()


@dataclass(frozen=True)
class Caption:
    """A text for the dual encoder and the training images that it fits."""

    text: str
    fits: npt.NDArray[np.bool_]


class Captions:
    """Draws texts for scenes: captions, and questions with or without their answer."""

    def __init__(self, scenes: Sequence[Scene]) -> None:
        self.scenes = scenes
        self.known: dict[tuple[str, ...], Caption] = {}
        self.asked = [[*package_questions(s), *derived_questions(s)] for s in scenes]

    def draw(self, index: int, rng: np.random.Generator) -> Caption:
        """60 % captions, 40 % questions."""
        if rng.random() < 0.6:
            return self.caption(index, rng)
        asked = self.asked[index][int(rng.integers(len(self.asked[index])))]
        return self._answered(asked) if rng.random() < 0.5 else self._open(asked)

    def caption(self, index: int, rng: np.random.Generator) -> Caption:
        """Such as ``small red circle at top left``, or less of it."""
        scene = self.scenes[index]
        size, place = rng.random() < 0.5, rng.random() < 0.4
        key = ("caption", scene.color, scene.shape, scene.size * size, scene.position * place)
        if key not in self.known:
            text = f"{scene.size if size else ''} {scene.color} {scene.shape}".strip()
            fits = [
                (s.color, s.shape) == key[1:3]
                and (not size or s.size == key[3])
                and (not place or s.position == key[4])
                for s in self.scenes
            ]
            self.known[key] = Caption(text + f" at {key[4]}" * place, np.array(fits))
        return self.known[key]

    def _answered(self, asked: Asked) -> Caption:
        key = (asked.question, asked.answer)
        if key not in self.known:
            if asked.kind in KINDS and asked.source != "easy_vqa":
                fits = [KINDS[asked.kind].answer(s) == asked.answer for s in self.scenes]
            else:
                fits = [agrees(*key, s.color, s.shape) for s in self.scenes]
            self.known[key] = Caption(f"{asked.question} {asked.answer}", np.array(fits))
        return self.known[key]

    def _open(self, asked: Asked) -> Caption:
        """A question alone fits every image it could be asked about."""
        key = (asked.question,)
        if key not in self.known:
            words = asked.question.rstrip("?").split() if asked.kind != "yes_no" else []
            said = [w for w in words if w in COLORS or w in SHAPES]
            fits = [all(w in (s.color, s.shape) for w in said) for s in self.scenes]
            self.known[key] = Caption(asked.question, np.array(fits))
        return self.known[key]


def text_ids(texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Ids and mask of texts as the dual encoder's processor gives them."""
    out = models.towers_processor().tokenizer(list(texts), padding=True, return_tensors="pt")
    return out["input_ids"], out["attention_mask"]


def contrastive_loss(image: Tensor, text: Tensor, scale: Tensor, fits: Tensor) -> Tensor:
    """Multi-positive InfoNCE, both directions; unit vectors [B, D] and [T, D], fits [T, B].

    Texts that fit every image tell nothing apart and are left out.
    """
    telling = ~fits.all(dim=1)
    logits = scale.exp() * text[telling] @ image.T
    target = fits[telling].float()
    rows = -(target * logits.log_softmax(dim=1)).sum(dim=1) / target.sum(dim=1)
    columns = -(target * logits.log_softmax(dim=0)).sum(dim=0) / target.sum(dim=0).clamp(min=1.0)
    return 0.5 * (rows.mean() + columns.mean())
