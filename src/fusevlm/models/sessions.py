"""Samples drawn in rounds: what was drawn of each query so far, and the prompts that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fusevlm.checks import FloatArray
from fusevlm.models.protocol import asked
from fusevlm.models.rows import JUDGED, Drawn, Failure, generation_of
from fusevlm.types import Generation, Query


@dataclass(frozen=True, eq=False)
class Drawing:
    """A session of a model whose forward passes are made here.

    queries, temperatures, seed  as it was begun
    extend   draws what some queries lack of n samples, and hands it to :meth:`keep`
    layers   names of the layers whose states are kept
    path     how the prompts' caches are used
    prompts  what the model keeps of each prompt between rounds
    found    what was drawn so far
    """

    queries: Mapping[str, Query]
    temperatures: FloatArray
    seed: int
    extend: Callable[[Drawing, Sequence[str], int], None]
    layers: Sequence[str]
    path: str
    prompts: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Drawn | Failure] = field(default_factory=dict)

    def draw(self, ids: Sequence[str], n: int) -> Iterator[Generation]:
        """One Generation for each of these queries, in order, with its first n samples."""
        self.extend(self, ids, n)
        for i in ids:
            yield generation_of(i, self.found[i], n, self.layers, self.temperatures, self.path)

    def missing(self, query_id: str, n: int) -> list[int]:
        """The places still to be drawn of a query: of n samples and of the judged answer."""
        drawn = self.found.get(query_id)
        if isinstance(drawn, Failure):
            return []
        rows = {} if drawn is None else drawn.rows
        return [place for place in (*range(n), JUDGED) if place not in rows]

    def keep(self, drawn: Mapping[str, Drawn | Failure]) -> None:
        """Add what a round brought to what there was."""
        for i, more in drawn.items():
            before = self.found.get(i)
            if isinstance(before, Drawn) and isinstance(more, Drawn):
                more = replace(before, rows={**before.rows, **more.rows})
            self.found[i] = more


def drawing(queries: Sequence[Query], temperatures: Any, seed: int, **facts: Any) -> Drawing:
    """A session that begins; what cannot be asked is refused."""
    heat = asked(queries, len(temperatures), temperatures)
    return Drawing({query.id: query for query in queries}, heat, seed, **facts)
