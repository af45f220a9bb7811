"""What a model is: something that samples answers to queries, and says what it can give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray, Number, OneOf, Whole
from fusevlm.errors import InputError
from fusevlm.store.journal import Journal
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

    logprobs: bool  # token log-probabilities at temperature 1
    hidden_states: bool  # of each sample's last token
    images: bool  # whether it sees pictures
    deterministic: bool  # the same seed gives the same samples


@dataclass(frozen=True)
class Decoding:
    """How answers are decoded; the defaults are the paper's short-answer setting.

    path  ``repeated_cache`` of Hugging Face and ``second_pass`` of vLLM are slower ways to the same
          samples, to compare
    """

    prompt: str = SHORT_ANSWER  # must hold {question}
    max_new_tokens: Annotated[int, Whole(1)] = 16  # after which an answer is cut off
    top_p: Annotated[float | None, Number(0.0, 1.0, open_low=True)] = None  # None: all of them
    top_k: Annotated[int | None, Whole(1)] = None  # None: all of them
    stop: tuple[str, ...] = ()  # strings that end an answer
    answer_temperature: Annotated[float, Number(0.0)] = 0.0  # of the judged answer; 0 is greedy
    layers: tuple[str | int, ...] = ("last", "middle")  # or the index of a hidden state
    path: Annotated[str, OneOf("auto", "repeated_cache", "second_pass")] = "auto"

    def __post_init__(self) -> None:
        checks.options(self)
        if "{question}" not in self.prompt:
            raise InputError(f"prompt is {self.prompt!r}; it must hold {{question}}.")
        if not self.layers:
            raise InputError("layers is empty; name at least one, such as 'last'.")


@runtime_checkable
class Paid(Protocol):
    """What a model has besides, if its answers are paid for: a service behind an address.

    journal   where each answer is kept as soon as it has come, and found again; or None
    halted    why asking on would be in vain, such as a used-up budget; else nothing
    describe  what the service gives, and the calls, tokens and money used so far
    """

    journal: Journal | None

    @property
    def halted(self) -> str:
        """Why asking on would be in vain; else nothing."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the service gives, and what was used of it so far."""
        ...


class Session(Protocol):
    """Some queries whose samples are drawn in rounds, as many as are wanted of each."""

    def draw(self, ids: Sequence[str], n: int) -> Iterator[Generation]:
        """One Generation for each of these queries, in order, with its first n samples.

        What was drawn before is kept, and the prompt's cache with it; only what is missing is
        made. The first round brings the judged answer, also with n = 0.
        """
        ...


@runtime_checkable
class InRounds(Protocol):
    """What a model has besides, if it can draw samples in rounds."""

    def begin(
        self, queries: Sequence[Query], temperatures: FloatArray, seed: int
    ) -> AbstractContextManager[Session]:
        """Queries and the temperatures of all samples that may be drawn of each.

        Samples are those that :meth:`Model.sample` would draw, whatever the rounds.
        """
        ...


class Model(Protocol):
    """A source of sampled answers; ``python -m fusevlm.testing`` checks that it is one."""

    @property
    def name(self) -> str:
        """What it is called in results."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What its samples carry."""
        ...

    def sample(
        self, queries: Sequence[Query], n: int, temperatures: FloatArray, seed: int
    ) -> Iterator[Generation]:
        """One Generation per query, in order; a query that fails carries its error.

        Each of the n samples has its own temperature, 0 for greedy. The judged answer comes beside
        them; n = 0 asks for it alone. Equal ids, and temperatures that are not n, are refused with
        an InputError.
        """
        ...


def draw(
    model: Model,
    queries: Sequence[Query],
    temperatures: FloatArray,
    seed: int,
    steps: Sequence[int] = (),
    tell: Callable[[Sequence[Generation]], None] = lambda drawn: None,
) -> list[Generation]:
    """A Generation per query with all samples; ``tell`` hears of the first k, for k of ``steps``.

    Samples are the same with and without steps. A model that cannot draw in rounds tells nothing.
    """
    n, ids = len(temperatures), [query.id for query in queries]
    early = sorted({k for k in steps if 0 <= k < n})
    if not (early and isinstance(model, InRounds)):
        return list(model.sample(queries, n, temperatures, seed))
    with model.begin(queries, temperatures, seed) as session:
        for k in early:
            tell(list(session.draw(ids, k)))
        return list(session.draw(ids, n))


def asked(queries: Sequence[Query], n: int, temperatures: Any) -> FloatArray:
    """The temperatures of n samples; what no model can be asked is refused."""
    n = checks.count(n, "n", least=0)
    heat = checks.vector(temperatures, "temperatures", length=n) if n else np.zeros(0)
    if not n and np.size(temperatures):
        raise InputError(f"temperatures has {np.size(temperatures)} value(s); expected none.")
    if len({q.id for q in queries}) < len(queries):
        raise InputError("two queries of a batch have the same id; ids must be unique.")
    return heat
