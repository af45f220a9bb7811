"""What a model is asked to see whether it keeps its promises, and how answers are compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import FuseError, InputError
from fusevlm.models.protocol import Capabilities, Model
from fusevlm.models.temperatures import stratified
from fusevlm.types import Generation, Query, Samples

TOLERANCE = 1e-4  # of float32 results that another order of the same sums may change


class ContractError(FuseError):
    """A model broke a promise of the protocol."""


class SkippedCheck(FuseError):
    """A check does not apply to this model; the message says why."""


@dataclass(frozen=True)
class Trial:
    """A model and what it is asked; what it answered to it all together is sampled once."""

    model: Model
    queries: Sequence[Query]
    n: int = 4
    seed: int = 1
    temperatures: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        if len(self.queries) < 2 or checks.count(self.n, "n") < 2:
            raise InputError("the contract needs at least 2 queries and n of at least 2.")
        object.__setattr__(self, "temperatures", stratified(self.n))

    @cached_property
    def generations(self) -> list[Generation]:
        """One per query."""
        return self.ask()

    @cached_property
    def answered(self) -> list[tuple[Generation, Samples]]:
        """The generations with their samples, in order; without them there is nothing to check."""
        try:
            same_ids(self.generations, self.queries)
        except ContractError as error:
            raise SkippedCheck("there is not one generation per query, in order") from error
        found = [(g, g.samples) for g in self.generations if isinstance(g.samples, Samples)]
        if len(found) < len(self.queries):
            raise SkippedCheck("not every query was answered")
        return found

    def ask(
        self,
        queries: Sequence[Query] | None = None,
        *,
        temperatures: FloatArray | None = None,
        seed: int | None = None,
    ) -> list[Generation]:
        """Sample anew; whatever is raised breaks the contract, for a query that fails is a row."""
        heat = self.temperatures if temperatures is None else temperatures
        asked = self.queries if queries is None else queries
        chosen = self.seed if seed is None else seed
        try:
            found = list(self.model.sample(asked, len(heat), heat, chosen))
        except Exception as error:
            raise ContractError(f"sample() raised {type(error).__name__}: {error}") from error
        need(len(found) == len(asked), f"{len(found)} generations for {len(asked)} queries.")
        return found

    @property
    def can(self) -> Capabilities:
        return self.model.capabilities

    def requires(self, what: str) -> None:
        """Skip the check unless the model says that it can do ``what``."""
        if not getattr(self.can, what):
            raise SkippedCheck(f"the model says {what}=False")


def make_queries(pictures: Iterable[Any] = ()) -> list[Query]:
    """Short questions about the given pictures, or about four generated ones."""
    shown = list(pictures) or [_picture(seed) for seed in range(4)]
    words = ("what colour is the shape", "how many", "is this a red circle", "what is in the image")
    # names that are not in the order of the alphabet, so that sorting them would be noticed
    return [
        Query(f"{len(shown) - k}-{k % 3}", words[k % len(words)], [picture])
        for k, picture in enumerate(shown)
    ]


def _picture(seed: int) -> Any:
    """A coloured rectangle on another colour."""
    draw = checks.extra("PIL.ImageDraw", "a generated picture", "torch")
    image = checks.extra("PIL.Image", "a generated picture", "torch")
    rng = np.random.default_rng(seed)
    back, front = (tuple(map(int, colour)) for colour in rng.integers(0, 255, (2, 3)))
    made = image.new("RGB", (64, 48), back)
    draw.Draw(made).rectangle([(8 + seed, 8), (40, 30 + seed)], fill=front)
    return made


def numbers(
    a: Generation, b: Generation, *, judged: bool = False
) -> Iterable[tuple[str, FloatArray, FloatArray]]:
    """The numbers and states that both have: of the judged answer alone, or of all."""
    both = ("answer_logprobs", "answer_margins")
    for what in both if judged else (*both, "token_logprobs"):
        one, two = (getattr(g.samples, what, None) for g in (a, b))
        if one is not None and two is not None:
            yield what, np.hstack(one), np.hstack(two)
    for what in ("answer_layers",) if judged else ("answer_layers", "prompt_layers", "layers"):
        for name, states in getattr(a, what).items():
            if name in getattr(b, what):
                yield f"{what} {name}", np.asarray(states), np.asarray(getattr(b, what)[name])


def all_texts(found: Iterable[Generation]) -> list[Sequence[str]]:
    """The sampled texts of each query."""
    return [() if g.samples is None else g.samples.texts for g in found]


def same_ids(found: Sequence[Generation], queries: Sequence[Query]) -> None:
    """There is one generation per query, in order."""
    ids, expected = [g.query_id for g in found], [q.id for q in queries]
    need(ids == expected, f"generations are of the queries {ids}; expected {expected}.")


def counted(values: Any, allowed: set[int], what: str) -> None:
    """There are as many values as is allowed."""
    words = " or ".join(map(str, sorted(allowed)))
    need(len(values) in allowed, f"there are {len(values)} {what}; expected {words}.")


def close(one: Any, two: Any, what: str, tolerance: float = TOLERANCE) -> None:
    """Equal up to ``tolerance`` of the largest entry (of 1 where all are smaller)."""
    a, b = np.asarray(one, dtype=np.float64), np.asarray(two, dtype=np.float64)
    need(a.shape == b.shape, f"{what} have shapes {a.shape} and {b.shape}.")
    apart = float(np.abs(a - b).max(initial=0.0))
    scale = max(1.0, float(np.abs(b).max(initial=0.0)))
    need(apart <= tolerance * scale, f"{what} are {apart:.2g} apart.")


def need(kept: bool, otherwise: str) -> None:
    """The promise is kept, or ContractError says what is wrong."""
    if not kept:
        raise ContractError(otherwise)
