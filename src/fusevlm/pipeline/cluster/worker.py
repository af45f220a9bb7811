"""What a worker of a cluster does: it makes pieces, each into the part that is its own.

A piece that another worker finished before it died is not made again; one whose workers keep dying
is given up with the reason.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fusevlm.config import make_config
from fusevlm.errors import ArtefactError, FuseError
from fusevlm.pipeline.cluster.ledger import MOST_ATTEMPTS, shared_by
from fusevlm.pipeline.engine import open_maker, stage_module
from fusevlm.pipeline.parts import Maker, Piece, Span, keep_piece
from fusevlm.pipeline.run import Work
from fusevlm.store.parts import read_note
from fusevlm.store.places import Place, place_of

Call = Callable[..., Any]


@dataclass(frozen=True)
class Task:
    """What a worker is told when it starts; all of it in JSON's types."""

    stage: str
    run: str
    config: dict[str, Any]
    kind: str  # of the parts
    size: int  # items a part
    paid: bool = False  # whether the model is a service, with a budget for all workers
    mirror: str = ""  # where the small files of the run are, if its folder is not here


class Worker:
    """Makes pieces; what it needs for that is loaded when the first one comes, and kept."""

    def __init__(self, task: Mapping[str, Any], call: Call) -> None:
        self.task, self.call = Task(**task), call
        self.said: list[str] = []

    @cached_property
    def _work(self) -> Work:
        """The run, or what is mirrored of it."""
        task = self.task
        run = Path(task.run)
        if task.mirror:
            from fusevlm.pipeline.cluster.mirror import fetch

            run = fetch(task.mirror)
        return Work(
            run,
            make_config(task.config, "the run"),
            lambda *_: None,
            self.said.append,
            worker=f"{socket.gethostname()}-{os.getpid()}",
            shared=shared_by(self.call) if task.paid else None,
        )

    @cached_property
    def _place(self) -> Place:
        return place_of(self._work.folder(self.task.stage))

    @cached_property
    def _opened(self) -> tuple[Maker, Any]:
        """What makes parts, and what they are made of."""
        items = stage_module(self.task.stage).items(self._work)
        return open_maker(self.task.stage, self._work), items

    def make(self, text: str) -> str:
        """One piece, told and answered as JSON: what was made, or why not."""
        given = json.loads(text)
        index = int(given["index"])
        try:
            tried = self.call("begin", index)
            if tried > MOST_ATTEMPTS and not self._done(index, given):
                raise ArtefactError(
                    f"part {index} of {self.task.stage} was begun {tried - 1} times, and each time "
                    f"its worker died: most likely memory ran out. Make batches smaller, or give "
                    f"workers more memory (cluster.memory_gb); then give the same command again."
                )
            told = self._make(index, given, again=tried > 1)
        except FuseError as error:
            return json.dumps({"error": str(error), "index": index})
        said, self.said[:] = list(self.said), []
        return json.dumps(
            {
                "index": index,
                "items": given["n_items"],
                "told": told,
                "said": said,
                "pid": os.getpid(),
                "node": socket.gethostname(),
            }
        )

    def _make(self, index: int, given: Mapping[str, Any], *, again: bool) -> dict[str, Any]:
        maker, items = self._opened
        if again and self._done(index, given):
            return maker.told()
        start, stop, places = given["start"], given["stop"], given["places"]
        some = range(start, stop) if places is None else [start + k for k in places]
        piece = Piece(index, Span(items, some), places, start)
        keep_piece(self._place, self.task.kind, piece, maker.make(piece), self.task.size)
        return maker.told()

    def _done(self, index: int, given: Mapping[str, Any]) -> bool:
        """Whether a worker that died had finished the piece, and died in a later one with it."""
        if not self._place.has(f"part-{index:05d}.json"):
            return False
        version = read_note(self._place, self.task.kind, index).get("version", 0)
        return bool(given["version"] is None or version != given["version"])
