"""What a back-end is: something that samples answers to queries, and says what it can give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.types import Generation, Query

# the paper's setting (section 5.5)
PAPER_SAMPLING = {
    "model": "llava-hf/llava-1.5-13b-hf",
    "n": 50,
    "temperature": "mct",
    "max_new_tokens": 16,
}
PAPER_TOWERS = "openai/clip-vit-large-patch14-336"

SHORT_ANSWER = "{question}\nAnswer the question using a single word or phrase."


@dataclass(frozen=True)
class Capabilities:
    """What a back-end's samples carry."""

    logprobs: bool
    hidden_states: bool
    images: bool
    deterministic: bool  # the same seed gives the same samples


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded; the defaults are the paper's short-answer setting."""

    prompt: str = SHORT_ANSWER  # must hold {question}
    max_new_tokens: int = 16
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    answer_temperature: float = 0.0  # of the judged answer; 0 is greedy
    layers: tuple[str | int, ...] = ("last", "middle")  # or the index of a hidden state
    path: str = "auto"  # or repeated_cache, to compare

    def __post_init__(self) -> None:
        if "{question}" not in self.prompt:
            raise InputError(f"prompt is {self.prompt!r}; it must hold {{question}}.")
        checks.count(self.max_new_tokens, "max_new_tokens")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p is {self.top_p:g}; expected above 0 and at most 1.")
        if self.top_k is not None:
            checks.count(self.top_k, "top_k")
        if self.answer_temperature < 0:
            raise InputError(f"answer_temperature is {self.answer_temperature:g}; expected ≥ 0.")
        if not self.layers:
            raise InputError("layers is empty; name at least one, such as 'last'.")
        checks.choice(self.path, "path", ("auto", "repeated_cache"))


class Backend(Protocol):
    """A source of sampled answers."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """One Generation per query, in order; a query that fails carries its error."""
        ...
