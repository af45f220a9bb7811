"""Any image-to-text model of transformers, also one that knows no chat (BLIP, GIT, …).

For models that turn an image and a text into a text. There are no log-probabilities and no hidden
states: enough to ask questions with, not to be judged by FUSE.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.data.images import load_image
from fusevlm.errors import InputError
from fusevlm.models.devices import need_device
from fusevlm.models.processors import load_processor
from fusevlm.models.protocol import Capabilities, Decoding
from fusevlm.models.rows import QUERY_ERRORS, failure_of
from fusevlm.models.turns import turn
from fusevlm.types import Generation, Query, Samples


class ImageToText:
    """A model sampled by transformers' own ``generate``, one query at a time."""

    def __init__(self, model: Any, processor: Any, *, decoding: Decoding, name: str = "") -> None:
        self.model, self.processor, self.decoding = model.eval(), processor, decoding
        self._name = name or str(model.config.model_type)

    @classmethod
    def load(
        cls,
        source: str,
        *,
        decoding: Decoding | None = None,
        dtype: str = "auto",
        device: str = "cpu",
    ) -> ImageToText:
        """A local folder or hub name."""
        from transformers import AutoModelForImageTextToText

        need_device(device)
        try:
            processor = load_processor(source)
            model: Any = AutoModelForImageTextToText.from_pretrained(source, dtype=dtype)
        except (OSError, ValueError) as error:
            raise InputError(
                f"cannot load {source!r} as an image-to-text model: {error} Give a folder with "
                f"config, weights and processor, or a hub name that this machine can reach."
            ) from error
        return cls(model.to(device), processor, decoding=decoding or Decoding(), name=source)

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(logprobs=False, hidden_states=False, images=True, deterministic=True)

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """One Generation per query, in order; its samples are texts alone."""
        n = checks.count(n, "n")
        wanted = checks.vector(temperatures, "temperatures", length=n)
        if len({q.id for q in queries}) < len(queries):
            raise InputError("two queries of a batch have the same id; ids must be unique.")
        for query in queries:
            try:
                with turn(torch.random), turn(self.model):  # the random state is the process's
                    inputs = self.prepare(query)
                    texts = self._samples(query, inputs, wanted, seed)
                    judged = self._generate(inputs, 1, self.decoding.answer_temperature)[0]
            except QUERY_ERRORS as error:
                yield failure_of(error).of(query.id)
                continue
            yield Generation(query.id, Samples(texts, answer=judged))

    def prepare(self, query: Query) -> dict[str, Any]:
        """The model's inputs for one query: its one image, and the prompt as it is."""
        if len(query.images) != 1:
            raise InputError(f"{self.name} takes one image; the query has {len(query.images)}.")
        text = self.decoding.prompt.replace("{question}", query.question)
        inputs = self.processor(images=load_image(query.images[0]), text=text, return_tensors="pt")
        return {
            key: value.to(device=self.model.device, dtype=self.model.dtype)
            if value.is_floating_point()
            else value.to(self.model.device)
            for key, value in inputs.items()
        }

    def _samples(
        self, query: Query, inputs: dict[str, Any], temperatures: FloatArray, seed: int
    ) -> list[str]:
        """A text per temperature; draws depend on the seed and the query's id alone."""
        texts = [""] * len(temperatures)
        digest = hashlib.sha256(f"{seed}/{query.id}".encode()).digest()
        with torch.random.fork_rng(devices=_own_rng(self.model.device)):
            torch.manual_seed(int.from_bytes(digest[:6], "big"))
            for t in np.unique(temperatures):
                rows = np.flatnonzero(temperatures == t)
                for row, text in zip(
                    rows, self._generate(inputs, len(rows), float(t)), strict=True
                ):
                    texts[row] = text
        return texts

    def _generate(self, inputs: dict[str, Any], n: int, temperature: float) -> list[str]:
        drawn: dict[str, Any] = {"do_sample": False}
        if temperature > 0.0:
            drawn = {
                "do_sample": True, "temperature": temperature, "num_return_sequences": n,
                "top_p": self.decoding.top_p or 1.0, "top_k": self.decoding.top_k or 0,
            }  # fmt: skip
        with torch.inference_mode():
            found = self.model.generate(
                **inputs, max_new_tokens=self.decoding.max_new_tokens, num_beams=1, **drawn
            )
        texts = self.processor.batch_decode(found, skip_special_tokens=True)
        asked = ""  # most models repeat what they were asked
        if "input_ids" in inputs:
            asked = self.processor.batch_decode(inputs["input_ids"], skip_special_tokens=True)[0]
        cut = [text.strip().removeprefix(asked.strip()).strip() for text in texts]
        return cut if len(cut) == n else cut * n  # greedy: the same n times


def _own_rng(device: Any) -> list[int]:
    """The CUDA device whose random state is put back afterwards."""
    return [device.index or 0] if device.type == "cuda" else []
