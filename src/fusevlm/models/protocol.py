"""What a model is: something that samples answers to queries, and says what it can give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from fusevlm import checks
from fusevlm.checks import FloatArray, Number, OneOf, Whole
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
    """What a model's samples carry."""

    logprobs: bool
    hidden_states: bool
    images: bool
    deterministic: bool  # the same seed gives the same samples


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded; the defaults are the paper's short-answer setting."""

    prompt: str = SHORT_ANSWER  # must hold {question}
    max_new_tokens: Annotated[int, Whole(1)] = 16
    top_p: Annotated[float | None, Number(0.0, 1.0, open_low=True)] = None
    top_k: Annotated[int | None, Whole(1)] = None
    stop: tuple[str, ...] = ()
    answer_temperature: Annotated[float, Number(0.0)] = 0.0  # of the judged answer; 0 is greedy
    layers: tuple[str | int, ...] = ("last", "middle")  # or the index of a hidden state
    path: Annotated[str, OneOf("auto", "repeated_cache")] = "auto"  # the other to compare

    def __post_init__(self) -> None:
        checks.options(self)
        if "{question}" not in self.prompt:
            raise InputError(f"prompt is {self.prompt!r}; it must hold {{question}}.")
        if not self.layers:
            raise InputError("layers is empty; name at least one, such as 'last'.")


class Model(Protocol):
    """A source of sampled answers; ``python -m fusevlm.testing`` checks that it is one."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """One Generation per query, in order; a query that fails carries its error.

        Each of the n samples has its own temperature, 0 for greedy. The judged answer comes beside
        them. Equal ids, and temperatures that are not n, are refused with an InputError.
        """
        ...
