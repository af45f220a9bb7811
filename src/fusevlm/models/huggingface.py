"""The reference model: any ``AutoModelForImageTextToText`` of transformers.

The image is encoded and the prompt prefilled once per query; the n samples and the judged answer
continue from that one prefill (:mod:`fusevlm.models.decode`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.data.images import load_image
from fusevlm.errors import FuseError, InputError
from fusevlm.models import shared_prefix
from fusevlm.models.decode import Decoded, Prompt, decode
from fusevlm.models.devices import need_device
from fusevlm.models.layers import LayerTap
from fusevlm.models.processors import load_processor
from fusevlm.models.protocol import Capabilities, Decoding
from fusevlm.types import Generation, Query, Samples

logger = logging.getLogger(__name__)

# what a broken query can raise inside a processor or a model; anything else is a bug and surfaces
QUERY_ERRORS = (FuseError, ValueError, TypeError, IndexError, KeyError, RuntimeError, OSError)


class HuggingFace:
    """A vision-language model with its processor, ready to sample."""

    def __init__(
        self, model: Any, processor: Any, *, decoding: Decoding | None = None, name: str = ""
    ) -> None:
        self.model = model.eval()
        self.processor = processor
        self.decoding = decoding or Decoding()
        self._name = name or str(getattr(model.config, "model_type", type(model).__name__))
        self.decoder = model.get_decoder()
        self.head = model.get_output_embeddings()
        self.tap = LayerTap(self.decoder, self.decoding.layers)
        self.eos = _eos_ids(model, self.tokenizer)
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
        from transformers import AutoModelForImageTextToText

        need_device(device)
        if device_map is not None:
            checks.extra("accelerate", f"device_map = {device_map!r}", "gpu")
        try:
            processor = load_processor(source, revision=revision)
            model: Any = AutoModelForImageTextToText.from_pretrained(
                source, revision=revision, dtype=dtype, device_map=device_map, **options
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"cannot load {source!r} as an image-text-to-text model: {error} Give a folder "
                f"with config, weights and processor, or a hub name that this machine can reach."
            ) from error
        if device_map is None and device != "cpu":
            model = model.to(device)
        return cls(model, processor, decoding=decoding, name=source)

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(logprobs=True, hidden_states=True, images=True, deterministic=True)

    @property
    def tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """Sample all queries of one batch together; yields one Generation per query, in order."""
        n = checks.count(n, "n")
        checks.vector(temperatures, "temperatures", length=n)
        if len({q.id for q in queries}) < len(queries):
            raise InputError("two queries of a batch have the same id; ids must be unique.")
        prompts = {q.id: self._prefill(q) for q in queries}
        ready = [p for p in prompts.values() if isinstance(p, Prompt)]
        found = self._decode(ready, temperatures, seed)
        for query in queries:
            prompt = prompts[query.id]
            outcome = found[query.id] if isinstance(prompt, Prompt) else prompt
            yield self._generation(query, outcome, temperatures)

    def prepare(self, query: Query) -> dict[str, torch.Tensor]:
        """The model's inputs for one query, checked against what the model can take."""
        if not query.question.strip():
            raise InputError("the question is empty.")
        images = [load_image(image) for image in query.images]
        content = [{"type": "image"} for _ in images]
        turns = [
            {"role": role, "content": [{"type": "text", "text": text}]}
            for role, text in query.history
        ]
        text = self.decoding.prompt.format(question=query.question)
        turns.append({"role": "user", "content": [*content, {"type": "text", "text": text}]})
        prompt = _chat(self.processor, turns)
        # a template that writes the BOS token itself must not get a second one
        bos = self.tokenizer.bos_token
        special = not (bos and prompt.startswith(bos))
        inputs = self.processor(
            images=images or None, text=[prompt], add_special_tokens=special, return_tensors="pt"
        )
        inputs.pop("labels", None)
        length = inputs["input_ids"].shape[1]
        limit = getattr(self.decoder.config, "max_position_embeddings", None)
        if limit is not None and length + self.decoding.max_new_tokens > limit:
            raise InputError(
                f"the prompt has {length} tokens and {self.decoding.max_new_tokens} more are "
                f"wanted; the model takes {limit}. Shorten the question."
            )
        device = self.head.weight.device
        return {
            key: value.to(device=device, dtype=self.model.dtype)
            if value.is_floating_point()
            else value.to(device)
            for key, value in inputs.items()
        }

    def _prefill(self, query: Query) -> Prompt | str:
        """The prompt's cache, next-token logits and position, or what went wrong."""
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
            return _say(error)
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
        self, prompts: list[Prompt], temperatures: FloatArray, seed: int
    ) -> dict[str, Decoded | str]:
        """Decode together; if that fails as a whole, one by one, so that one cannot spoil all."""
        together: list[list[Prompt]] = [prompts] if self.shares else [[p] for p in prompts]
        found: dict[str, Decoded | str] = {}
        while together:
            group = together.pop(0)
            if not group:
                continue
            try:
                found |= decode(self, group, temperatures, seed)
            except QUERY_ERRORS as error:
                if len(group) == 1:
                    found[group[0].query_id] = _say(error)
                else:
                    logger.warning("decoding %d queries together failed: %s", len(group), error)
                    together = [[p] for p in group] + together
        return found

    def _generation(
        self, query: Query, outcome: Decoded | str, temperatures: FloatArray
    ) -> Generation:
        if isinstance(outcome, str):
            return Generation(query.id, error=outcome)
        *sampled, judged = outcome.rows
        if all(not row.tokens for row in outcome.rows):
            return Generation(query.id, error="the model emitted only end-of-sequence tokens.")
        layers = {
            name: torch.stack([row.states[name] for row in sampled]).float().cpu().numpy()
            for name in self.tap.names
        }
        samples = Samples(
            texts=[row.text for row in sampled],
            token_logprobs=[row.logprobs for row in sampled],
            embeddings=layers[self.tap.names[0]],
            answer=judged.text,
            answer_logprobs=judged.logprobs,
            answer_margins=judged.margins,
        )
        return Generation(
            query.id,
            samples,
            token_ids=[row.tokens for row in sampled],
            warped_logprobs=[row.warped for row in sampled],
            temperatures=[float(t) for t in temperatures],
            truncated=[row.truncated for row in sampled],
            answer_token_ids=judged.tokens,
            layers=layers,
            answer_layers={k: judged.states[k].float().cpu().numpy() for k in self.tap.names},
            prompt_layers={
                k: outcome.prompt_states[k].float().cpu().numpy() for k in self.tap.names
            },
            prompt_tokens=outcome.prompt_tokens,
            path="shared_prefix" if self.shares else "repeated_cache",
            n_near_boundary=outcome.n_near_boundary,
        )


def _chat(processor: Any, turns: list[dict[str, Any]]) -> str:
    """The prompt text; through the tokenizer where a processor insists on a video processor."""
    template = processor.chat_template or getattr(processor.tokenizer, "chat_template", None)
    if template is None:
        raise InputError(
            "this model's processor has no chat template. Set processor.chat_template, for "
            "example the one on its model card."
        )
    return str(
        processor.tokenizer.apply_chat_template(
            turns, chat_template=template, add_generation_prompt=True, tokenize=False
        )
    )


def _eos_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """All ids that end an answer: the generation config's, the text config's, the tokenizer's."""
    found: set[int] = set()
    sources = (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config.get_text_config(), "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    for value in sources:
        if value is not None:
            found |= set(value) if isinstance(value, list | tuple | set) else {int(value)}
    return frozenset(found)


def _share_prefix(model: Any, decoder: Any) -> bool:
    """Switch the decoder to shared-prefix attention; False (and said) where it does not apply."""
    kinds = getattr(decoder.config, "layer_types", None)
    window = getattr(decoder.config, "sliding_window", None)
    if set(kinds) != {"full_attention"} if kinds else window is not None:
        logger.warning("not all layers attend to the whole prompt: using the repeated cache.")
        return False
    shared_prefix.register()
    try:
        model.set_attn_implementation({"text_config": shared_prefix.NAME})
    except (ValueError, AttributeError, KeyError) as error:
        logger.warning("shared-prefix attention is refused (%s): using the repeated cache.", error)
        return False
    if decoder.config._attn_implementation != shared_prefix.NAME:
        logger.warning("shared-prefix attention did not take: using the repeated cache.")
        return False
    return True


def _say(error: BaseException) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return f"out of memory: {error}"
    text = str(error) or repr(error)
    return text if isinstance(error, FuseError) else f"{type(error).__name__}: {text}"
