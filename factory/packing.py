"""Training batches: many questions about one picture share its encoding; captions share a batch.

For the LLaVA-shaped models a row is ``prefix | segment | segment | …``: the prefix holds the image,
a segment one question with its answer. A segment sees the prefix and itself and starts at the
position after the prefix, so that its loss is exactly that of a prompt of its own – at the cost of
one image for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from factory import models
from factory.models import ASSISTANT, BOS, EOS, IMAGE, N_IMAGE_TOKENS, PAD, USER, encode
from fusevlm.data.questions import (
    DERIVED,
    KINDS,
    Asked,
    derived_questions,
    package_questions,
)
from fusevlm.data.scenes import COLORS, SHAPES, Scene, agrees

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
    return see(model, pixels)[0]


def see(model: Model, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Projected class token and patches [B, 65, width], and the tower's summary [B, 128]."""
    tower, projector = model.get_submodule("model.vision_tower"), "model.multi_modal_projector"
    out = tower(pixel_values=pixels)
    features: Tensor = model.get_submodule(projector)(out.last_hidden_state)
    return features, out.pooler_output


def packed_logits(model: Model, features: Tensor, ids: Tensor) -> Tensor:
    """Next-token logits [B, K, S, V] of packed segments (ids [B, K, S])."""
    logits: Tensor = model.get_submodule("lm_head")(packed_states(model, features, ids)[0])
    return logits


def packed_states(model: Model, features: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The decoder's states of packed segments, after the last layer and before it, [B, K, S, H]."""
    B, K, S = ids.shape
    decoder = model.get_submodule("model.language_model")
    words = decoder.get_submodule("embed_tokens")
    start = words(torch.tensor(PREFIX[:2])).expand(B, -1, -1)
    mask, positions = layout(K, S)
    out = decoder(
        inputs_embeds=torch.cat([start, features, words(ids.reshape(B, K * S))], dim=1),
        attention_mask=mask.expand(B, -1, -1, -1),
        position_ids=positions,
        use_cache=False,
        output_hidden_states=True,
    )
    last, before = (
        states[:, len(PREFIX) :].reshape(B, K, S, -1)
        for states in (out.last_hidden_state, out.hidden_states[-2])
    )
    return last, before


def answer_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over answers of the mean cross-entropy of their tokens."""
    target = labels[:, :, 1:]
    each = F.cross_entropy(logits[:, :, :-1].flatten(0, 2), target.flatten(), reduction="none")
    each = each.reshape(target.shape)
    return (each.sum(dim=2) / (target != IGNORED).sum(dim=2)).mean()


@dataclass(frozen=True)
class Caption:
    """A text for the dual encoder, and which scenes it fits."""

    text: str
    fits: Callable[[Scene], bool]


def draw_caption(scene: Scene, rng: np.random.Generator) -> Caption:
    """60 % captions, 40 % questions with or without their answer."""
    if rng.random() < 0.6:
        return _caption(scene, size=rng.random() < 0.5, place=rng.random() < 0.4)
    known = [*package_questions(scene), *derived_questions(scene)]
    asked = known[int(rng.integers(len(known)))]
    return _answered(asked) if rng.random() < 0.5 else _open(asked)


def _caption(scene: Scene, *, size: bool, place: bool) -> Caption:
    """Such as ``small red circle at top left``, or less of it."""
    text = f"{scene.size if size else ''} {scene.color} {scene.shape}".strip()
    return Caption(
        text + f" at {scene.position}" * place,
        lambda s: (
            (s.color, s.shape) == (scene.color, scene.shape)
            and (not size or s.size == scene.size)
            and (not place or s.position == scene.position)
        ),
    )


def _answered(asked: Asked) -> Caption:
    text = f"{asked.question} {asked.answer}"
    if asked.source == DERIVED:
        return Caption(text, lambda s: KINDS[asked.kind].answer(s) == asked.answer)
    return Caption(text, lambda s: agrees(asked.question, asked.answer, s.color, s.shape))


def _open(asked: Asked) -> Caption:
    """A question alone fits every scene it could be asked about."""
    words = asked.question.rstrip("?").split() if asked.kind != "yes_no" else []
    said = [w for w in words if w in COLORS or w in SHAPES]
    return Caption(asked.question, lambda s: all(w in (s.color, s.shape) for w in said))


def text_ids(texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Ids and mask of texts as the dual encoder's processor gives them."""
    out = models.towers_processor().tokenizer(list(texts), padding=True, return_tensors="pt")
    return out["input_ids"], out["attention_mask"]


def contrastive_loss(image: Tensor, text: Tensor, scale: Tensor, fits: Tensor) -> Tensor:
    """Multi-positive InfoNCE, both directions; unit vectors [B, D] and [T, D], fits [T, B].

    Texts that fit every image tell nothing apart and are left out.
    """
    telling = ~fits.all(dim=1)
    if not telling.any():
        return 0.0 * (image.sum() + text.sum() + scale)
    logits = scale.exp() * text[telling] @ image.T
    target = fits[telling].float()
    rows = -(target * logits.log_softmax(dim=1)).sum(dim=1) / target.sum(dim=1)
    columns = -(target * logits.log_softmax(dim=0)).sum(dim=0) / target.sum(dim=0).clamp(min=1.0)
    return 0.5 * (rows.mean() + columns.mean())
