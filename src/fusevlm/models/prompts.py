"""From a query to its prompt, through the model's own template; and what ends an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusevlm.data.images import load_image
from fusevlm.errors import InputError
from fusevlm.models.protocol import Decoding
from fusevlm.types import Query


@dataclass(frozen=True)
class Said:
    """A prompt's text and pictures; ``special``: the tokenizer is to add marks of its own."""

    text: str
    images: list[Any]
    special: bool


class Speaker:
    """Writes prompts for a model with this processor; a mere tokenizer takes no pictures."""

    def __init__(self, processor: Any, decoding: Decoding, name: str) -> None:
        self.processor, self.decoding, self.name = processor, decoding, name
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.sees = hasattr(processor, "image_processor")
        self.special = _special_tokens(processor)

    def say(self, query: Query) -> Said:
        """The prompt of a query, or InputError if the model cannot be asked it."""
        if not query.question.strip():
            raise InputError("the question is empty.")
        if query.images and not self.sees:
            raise InputError(f"{self.name} is a language model: it takes no pictures.")
        images = [load_image(image) for image in query.images]
        for said in (query.question, *(text for _, text in query.history)):
            _refuse_special(said, self.special)
        prompt = self.decoding.prompt.replace("{question}", query.question)
        text = _chat(self.processor, [*query.history, ("user", prompt)], len(images))
        # a template that writes the BOS token itself must not get a second one
        bos = self.tokenizer.bos_token
        return Said(text, images, special=not (bos and text.startswith(bos)))

    def refuse_length(self, length: int, limit: int | None) -> None:
        """Refuse a prompt that leaves no room for an answer."""
        wanted = self.decoding.max_new_tokens
        if limit is not None and length + wanted > limit:
            raise InputError(
                f"the prompt has {length} tokens and {wanted} more are wanted; the model takes "
                f"{limit}. Shorten the question."
            )


def _special_tokens(processor: Any) -> tuple[str, ...]:
    """Texts that the tokenizer takes for marks of its own, such as the place of a picture."""
    inner = getattr(processor, "tokenizer", processor)
    named = [getattr(processor, name, None) for name in ("image_token", "video_token", "boi_token")]
    return tuple({str(token) for token in (*inner.all_special_tokens, *named) if token})


def _refuse_special(text: str, tokens: Sequence[str]) -> None:
    """Refuse a text that would be read as more than text."""
    for token in tokens:
        if token in text:
            raise InputError(
                f"the question holds {token!r}, which this model reads as a mark of its own and "
                f"not as text. Write it in another way."
            )


def _chat(processor: Any, turns: Sequence[tuple[str, str]], images: int) -> str:
    """The prompt: (role, text) of each turn as the model's template writes them.

    Through the tokenizer, for some processors insist on a video processor. A language model
    without a template continues plain text.
    """
    inner = getattr(processor, "tokenizer", None)
    template = processor.chat_template or getattr(inner, "chat_template", None)
    if inner is None:
        if template is None:
            return "\n".join(text for _, text in turns)
        content: Any = [text for _, text in turns]
    else:
        content = [[{"type": "text", "text": text}] for _, text in turns]
        content[-1] = [{"type": "image"} for _ in range(images)] + content[-1]
    if template is None:
        raise InputError(
            "this model's processor has no chat template. Set processor.chat_template, for "
            "example the one on its model card."
        )
    said = [{"role": role, "content": c} for (role, _), c in zip(turns, content, strict=True)]
    return str(
        (inner or processor).apply_chat_template(
            said, chat_template=template, add_generation_prompt=True, tokenize=False
        )
    )


def eos_ids(config: Any, generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """All ids that end an answer: the generation config's, the text config's, the tokenizer's."""
    found: set[int] = set()
    sources = (
        getattr(generation_config, "eos_token_id", None),
        getattr(config.get_text_config(), "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    for value in sources:
        if value is not None:
            found |= set(value) if isinstance(value, list | tuple | set) else {int(value)}
    return frozenset(found)
