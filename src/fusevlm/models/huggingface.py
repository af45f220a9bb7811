"""The reference model: an image-text-to-text model of transformers, or a language model of it.

The image is encoded and the prompt prefilled once per query; the n samples and the judged answer
continue from that one prefill (:mod:`fusevlm.models.decode`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.models import shared_prefix
from fusevlm.models.decode import Prompt, Wish, decode
from fusevlm.models.devices import need_device, out_of_memory
from fusevlm.models.layers import LayerTap
from fusevlm.models.processors import load_processor
from fusevlm.models.prompts import Speaker, eos_ids
from fusevlm.models.protocol import Capabilities, Decoding, asked
from fusevlm.models.rows import QUERY_ERRORS, Drawn, Failure, failure_of
from fusevlm.models.sessions import Drawing, drawing
from fusevlm.models.turns import turn
from fusevlm.types import Generation, Query

logger = logging.getLogger(__name__)


class HuggingFace:
    """A vision-language model with its processor, ready to sample.

    Or a language model with its tokenizer, which takes no pictures.
    """

    def __init__(
        self, model: Any, processor: Any, *, decoding: Decoding | None = None, name: str = ""
    ) -> None:
        self.model = model.eval()
        self.processor = processor
        self.decoding = decoding or Decoding()
        self._name = name or str(getattr(model.config, "model_type", type(model).__name__))
        self.decoder = model.get_decoder()
        self.head = model.get_output_embeddings()
        self.speaker = Speaker(processor, self.decoding, self._name)
        self._most: int | None = None  # queries at a time, once memory ran out
        self._lock = turn(model)
        self.tap = LayerTap(self.decoder, self.decoding.layers)
        self.eos = eos_ids(model.config, model.generation_config, self.tokenizer)
        with self._lock:  # another one may be using the same model
            self.shares = self.decoding.path == "auto" and _share_prefix(model, self.decoder)

    @classmethod
    def load(
        cls,
        source: str,
        *,
        decoding: Decoding | None = None,
        revision: str | None = None,
        dtype: str = "auto",
        device_map: Any = None,
        device: str = "cpu",
        **options: Any,
    ) -> HuggingFace:
        """A local folder or hub name; ``options`` (quantization_config, …) go to transformers.

        All of it goes to ``device``, unless ``device_map`` spreads it.
        """
        need_device(device)
        if (decoding or Decoding()).path == "second_pass":
            raise InputError("path is 'second_pass', which is vLLM's. Say 'auto'.")
        if device_map is not None:
            checks.extra("accelerate", f"device_map = {device_map!r}", "gpu")
        try:
            kind, processor = _kind(source, revision)
            model: Any = kind.from_pretrained(
                source, revision=revision, dtype=dtype, device_map=device_map, **options
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"cannot load {source!r} as an image-text-to-text model or a language model: "
                f"{error} Give a folder with config, weights and processor, or a hub name that "
                f"this machine can reach."
            ) from error
        if device_map is None and device != "cpu":
            model = model.to(device)
        return cls(model, processor, decoding=decoding, name=source)

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            logprobs=True, hidden_states=True, images=self.speaker.sees, deterministic=True
        )

    @property
    def tokenizer(self) -> Any:
        return self.speaker.tokenizer

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """Sample all queries of one batch together; yields one Generation per query, in order."""
        with self.begin(queries, asked(queries, n, temperatures), seed) as session:
            found = list(session.draw([query.id for query in queries], n))
        yield from found

    @contextmanager
    def begin(
        self, queries: Sequence[Query], temperatures: FloatArray, seed: int
    ) -> Iterator[Drawing]:
        """Queries of which samples are drawn in rounds; their prompts are kept meanwhile."""
        path = "shared_prefix" if self.shares else "repeated_cache"
        session = drawing(
            queries, temperatures, seed, extend=self._extend, layers=self.tap.names, path=path
        )
        try:
            yield session
        finally:
            session.prompts.clear()

    def _extend(self, session: Drawing, ids: Sequence[str], n: int) -> None:
        """Draw what these queries lack of n samples, as many at a time as memory holds."""
        left = [i for i in ids if session.missing(i, n)]
        while left:
            some = left[: self._most or len(left)]
            try:
                with self._lock:
                    self._draw(session, some, n)
            except QUERY_ERRORS as error:
                if len(some) == 1 or not out_of_memory(error):
                    raise
                self._most = len(some) // 2
                logger.warning(
                    "out of memory with %d queries at a time: going on with %d.",
                    len(some),
                    self._most,
                )
                session.prompts.clear()
                self._free()
                continue
            left = left[len(some) :]

    def _draw(self, session: Drawing, ids: Sequence[str], n: int) -> None:
        wishes = []
        for i in ids:
            prompt = session.prompts.get(i)
            if prompt is None:
                prompt = self._prefill(session.queries[i], alone=len(ids) == 1)
            if isinstance(prompt, Failure):
                session.found[i] = prompt
                continue
            session.prompts[i] = prompt
            wishes.append(Wish(prompt, session.missing(i, n)))
        session.keep(self._decode(wishes, session.temperatures, session.seed))

    def _free(self) -> None:
        """Give back what the device keeps for later."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def prepare(self, query: Query) -> dict[str, torch.Tensor]:
        """The model's inputs for one query, checked against what the model can take."""
        said = self.speaker.say(query)
        shown = {"images": said.images or None} if self.speaker.sees else {}
        inputs = self.processor(
            text=[said.text], add_special_tokens=said.special, return_tensors="pt", **shown
        )
        inputs.pop("labels", None)
        length = inputs["input_ids"].shape[1]
        limit = getattr(self.decoder.config, "max_position_embeddings", None)
        self.speaker.refuse_length(length, limit)
        device = self.head.weight.device
        return {
            key: value.to(device=device, dtype=self.model.dtype)
            if value.is_floating_point()
            else value.to(device)
            for key, value in inputs.items()
        }

    def _prefill(self, query: Query, *, alone: bool = True) -> Prompt | Failure:
        """The prompt's cache, next-token logits and position, or what went wrong.

        Memory that ran out is raised, unless the query is ``alone``: others hold some of it.
        """
        positions: list[Any] = []

        def note(_: Any, __: Any, kwargs: dict[str, Any]) -> None:
            positions.append(kwargs.get("position_ids"))

        hook = self.decoder.register_forward_pre_hook(note, with_kwargs=True)
        try:
            inputs = self.prepare(query)
            with torch.inference_mode(), self.tap:
                out = self.model(**inputs, use_cache=True, logits_to_keep=1)
                states = self.tap.states()
        except QUERY_ERRORS as error:
            if out_of_memory(error) and not alone:
                raise
            return failure_of(error)
        finally:
            hook.remove()
        length = inputs["input_ids"].shape[1]
        last = positions[-1]
        position = length if last is None else int(last[..., -1].max()) + 1
        return Prompt(
            query_id=query.id,
            logits=out.logits[0, -1].float(),
            cache=out.past_key_values,
            position=position,
            length=length,
            states={name: state[0] for name, state in states.items()},
        )

    def _decode(
        self, wishes: list[Wish], temperatures: FloatArray, seed: int
    ) -> dict[str, Drawn | Failure]:
        """Decode together; if that fails as a whole, one by one, so that one cannot spoil all."""
        together: list[list[Wish]] = [wishes] if self.shares else [[w] for w in wishes]
        found: dict[str, Drawn | Failure] = {}
        while together:
            group = together.pop(0)
            if not group:
                continue
            try:
                found |= decode(self, group, temperatures, seed)
            except QUERY_ERRORS as error:
                if out_of_memory(error) and len(wishes) > 1:
                    raise
                if len(group) == 1:
                    found[group[0].query_id] = failure_of(error)
                else:
                    logger.warning("decoding %d queries together failed: %s", len(group), error)
                    together = [[w] for w in group] + together
        return found


def _kind(source: str, revision: str | None) -> tuple[Any, Any]:
    """The class of a model, and its processor: with pictures, or the tokenizer of one without."""
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoTokenizer,
    )

    config = AutoConfig.from_pretrained(source, revision=revision)
    if type(config) in AutoModelForImageTextToText._model_mapping:
        return AutoModelForImageTextToText, load_processor(source, revision=revision)
    return AutoModelForCausalLM, AutoTokenizer.from_pretrained(source, revision=revision)


def _share_prefix(model: Any, decoder: Any) -> bool:
    """Switch the decoder to shared-prefix attention; False (and said) where it does not apply."""
    kinds = getattr(decoder.config, "layer_types", None)
    window = getattr(decoder.config, "sliding_window", None)
    if set(kinds) != {"full_attention"} if kinds else window is not None:
        logger.warning("not all layers attend to the whole prompt: using the repeated cache.")
        return False
    shared_prefix.register()
    try:
        alone = decoder.config is model.config  # of a language model
        model.set_attn_implementation(
            shared_prefix.NAME if alone else {"text_config": shared_prefix.NAME}
        )
    except (ValueError, AttributeError, KeyError) as error:
        logger.warning("shared-prefix attention is refused (%s): using the repeated cache.", error)
        return False
    if decoder.config._attn_implementation != shared_prefix.NAME:
        logger.warning("shared-prefix attention did not take: using the repeated cache.")
        return False
    return True
