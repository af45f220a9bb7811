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
        self._ready: tuple[Maker, Any, Place] | None = None

    def _opened(self) -> tuple[Maker, Any, Place]:
        if self._ready is None:
            task = self.task
            run = Path(task.run)
            if task.mirror:
                from fusevlm.pipeline.cluster.mirror import fetch

                run = fetch(task.mirror)
            work = Work(
                run,
                make_config(task.config, "the run"),
                lambda *_: None,
                self.said.append,
                worker=f"{socket.gethostname()}-{os.getpid()}",
                shared=shared_by(self.call) if task.paid else None,
            )
            place = place_of(work.folder(task.stage))
            items = stage_module(task.stage).items(work)
            self._ready = (open_maker(task.stage, work), items, place)
        return self._ready

    def make(self, text: str) -> str:
        """One piece, told and answered as JSON: what was made, or why not."""
        given = json.loads(text)
        index = int(given["index"])
        try:
            tried = self.call("begin", index)
            if tried > MOST_ATTEMPTS:
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
        maker, items, place = self._opened()
        if again and self._done(place, index, given):
            return maker.told()
        start, stop, places = given["start"], given["stop"], given["places"]
        some = range(start, stop) if places is None else [start + k for k in places]
        piece = Piece(index, Span(items, some), places, start)
        keep_piece(place, self.task.kind, piece, maker.make(piece), self.task.size)
        return maker.told()

    def _done(self, place: Place, index: int, given: Mapping[str, Any]) -> bool:
        """Whether a worker that died had finished the piece."""
        if not place.has(f"part-{index:05d}.json"):
            return False
        version = read_note(place, self.task.kind, index).get("version", 0)
        return bool(given["version"] is None or version != given["version"])
