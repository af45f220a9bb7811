"""Who makes the parts of a stage: this process, or workers elsewhere (:mod:`.cluster`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from fusevlm.pipeline.parts import NEVER, Maker, Piece, fill, open_pieces
from fusevlm.store.parts import Parts
from fusevlm.store.places import point_to

if TYPE_CHECKING:
    from fusevlm.pipeline.run import Work

STAGES = ("sample", "embed", "semantics", "score")  # those that are made of parts


@dataclass(frozen=True, eq=False)
class Job:
    """The parts of a stage that are to be there.

    items   all that the stage goes through
    size    of them in a part
    breaks  places among them that no part goes across
    again   which failed rows are tried again
    noted   is told the number of each part that was written (before the first: None) with what its
            maker tells, may raise to stop, and answers with words for the progress
    until   items at most, of those that come first
    settled items that come first of which none is tried again
    """

    stage: str
    parts: Parts
    items: Sequence[Any]
    size: int
    breaks: tuple[int, ...] = ()
    again: str = NEVER
    noted: Callable[[int | None, dict[str, Any]], str] = lambda index, told: ""
    until: int | None = None
    settled: int = 0

    def pieces(self) -> list[Piece]:
        """What is left to do."""
        found = open_pieces(
            self.parts, self.items, self.size, self.again, self.breaks, self.settled
        )
        return [piece for piece in found if self.until is None or piece.start < self.until]


class Engine(Protocol):
    """Makes parts; ``here`` says whether in this process."""

    here: bool

    def fill(self, job: Job, work: Work) -> None:
        """Make what is left to do of a job, and nothing where nothing is."""
        ...


class InProcess:
    """Parts are made one after the other, by a model that is loaded for them."""

    here = True

    def fill(self, job: Job, work: Work) -> None:
        pieces = job.pieces()
        if not pieces:
            return
        with closing(open_maker(job.stage, work)) as maker:
            fill(
                job.parts, pieces, len(job.items), job.size, maker,
                progress=work.progress, noted=job.noted,
            )  # fmt: skip


def open_parts(work: Work, stage: str, kind: str) -> Parts:
    """The parts of a stage, in the run folder or in the bucket that the config names."""
    folder = work.folder(stage)
    if work.config.storage.parts:
        point_to(folder, work.config.storage.parts)
    return Parts(folder, kind)


def open_maker(stage: str, work: Work) -> Maker:
    """What makes parts of a stage, ready."""
    found: Maker = stage_module(stage).open_maker(work)
    return found


def stage_module(stage: str) -> Any:
    """The module of a stage."""
    return import_module(f"fusevlm.pipeline.{stage}")
