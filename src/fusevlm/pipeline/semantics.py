"""Stage semantics: which samples mean the same, and what the model says when asked otherwise.

All that scores need beyond the samples and that takes a model to make, and of that only what the
baselines of the config need; the complement wherever it is asked for, since FUSE takes it as
evidence. What a setting leaves at "none" is left out, and the scores that need it say so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np

from fusevlm.errors import InputError
from fusevlm.models.protocol import Model, Paid
from fusevlm.models.registry import local_input, model_folder, split_source
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.engine import Job, open_parts
from fusevlm.pipeline.parts import Piece, part_size
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.sample import (
    SERVER_TOLD,
    load_sampler,
    read_server,
    refuse_halted,
    spent,
    told_of,
)
from fusevlm.scores import SCORES, needs_of
from fusevlm.semantics.find import PARTS, Tools, find_semantics
from fusevlm.settings import Config
from fusevlm.store.cache import BESIDE, gather_pairs
from fusevlm.store.files import save_sealed
from fusevlm.store.generations import KIND as GENERATIONS
from fusevlm.store.generations import generations_between
from fusevlm.store.journal import Journal, gather
from fusevlm.store.parts import Part, Stored, read_parts
from fusevlm.store.runs import SERVER, require
from fusevlm.types import Query, Samples, Semantics

KIND, GENERATOR = "fusevlm.semantics", "question_generator"
# of the run, so that --redo semantics judges nothing and pays for nothing twice
CACHE, PAID = Path("cache") / "pairs.sqlite", Path("cache") / "semantics.calls.jsonl"
BATCH = 100  # queries a part
STORED: dict[str, Any] = {  # columns; also complement, which older runs have not
    "query_id": str, "meanings": list[int] | None, "rephrasings": list[bool] | None,
    "p_true": float | None,
}  # fmt: skip
CLOSED = ("openai", "vllm")  # models whose prompts and logits are not at hand


def inputs(config: Config) -> dict[str, Path]:
    """The folders of the question generator and of the inference model, where they are used."""
    found: dict[str, Path] = {}
    wanted = config.semantics
    if wanted.rephrase == "generator":
        found |= local_input("semantics.generator", wanted.generator, GENERATOR)
    if "nli" in (wanted.meanings, wanted.similarity) and Path(wanted.nli).is_dir():
        found["semantics.nli"] = Path(wanted.nli)
    return found


def check(config: Config) -> None:
    """Refuse what needs a model's own logits of one that does not show them."""
    name, _ = split_source(config.sample.model)
    wanted = config.semantics
    keys = {"semantics.p_true": wanted.p_true, "semantics.rephrase": wanted.rephrase == "prompt"}
    for key, asked in keys.items():
        if asked and name in CLOSED:
            raise InputError(
                f"{key} needs a Hugging Face model, and sample.model is {config.sample.model!r}. "
                f"Leave it out."
            )


def make(work: Work) -> dict[str, int]:
    """Go through the sampled queries, ``BATCH`` at a time, going on where it stopped."""
    found, parts = items(work), open_parts(work, "semantics", KIND)
    job = Job(
        "semantics", parts, found, part_size(len(found), BATCH), noted=partial(_note, parts.folder)
    )
    _gather(work.run)  # of an earlier session
    work.engine.fill(job, work)
    _gather(work.run)
    return {"queries": len(found), **spent(read_server(work.run, "semantics"))}


class Answered(Sequence[tuple[Query, Samples]]):
    """The queries to which something was said, with that; read when they are looked at."""

    def __init__(self, run: Path) -> None:
        self._asked = read_asked(run)
        self._stored = Stored(require(run, "sample"), GENERATIONS)

    def __len__(self) -> int:
        return self._stored.good[-1]

    @overload
    def __getitem__(self, index: int) -> tuple[Query, Samples]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[Query, Samples]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return self._read(start, max(start, stop))[::step]
        place = range(len(self))[index]
        return self._read(place, place + 1)[0]

    def _read(self, start: int, stop: int) -> list[tuple[Query, Samples]]:
        """From ``start`` to ``stop``, counted without those that failed."""
        good, found = self._stored.good, []
        number = max(0, bisect_right(good, start) - 1)
        while number < len(good) - 1 and good[number] < stop:
            first = self._stored.start_of(number)
            end = self._stored.start_of(number + 1)
            here = [
                (query, said.samples)
                for query, said in zip(
                    self._asked[first:end],
                    generations_between(self._stored, first, end),
                    strict=True,
                )
                if said.samples is not None
            ]
            found += here[max(0, start - good[number]) : stop - good[number]]
            number += 1
        return found


def items(work: Work) -> Answered:
    """The sampled queries with their samples."""
    return Answered(work.run)


def open_maker(work: Work) -> Finder:
    """The models that the run asks for, each loaded when it is needed."""
    return Finder(work)


class Finder:
    """Makes parts of sampled queries."""

    def __init__(self, work: Work) -> None:
        self.work, self.opened = work, list[Model]()
        config = work.config
        self.needed = needs_of(config.score.baselines or SCORES) & set(PARTS)
        if config.semantics.complement != "none":
            self.needed |= {"complement"}
        self.tools = Tools(
            config.semantics,
            load_vlm=self._open,
            generator=lambda name: model_folder(name, GENERATOR),
            cache=_own(work.run / CACHE, work.worker),
        )

    def make(self, piece: Piece) -> Part:
        some = list(piece.items)
        known = find_semantics(self.tools, some, self.needed)
        refuse_halted("semantics", self.told())  # else what was not answered would be missing
        rows, arrays = _packed([query.id for query, _ in some], known)
        return Part(rows, arrays, {"queries": len(some)})

    def told(self) -> dict[str, Any]:
        return told_of(self.opened[0]) if self.opened else {}

    def close(self) -> None:
        self.tools.close()

    def _open(self) -> Model:
        """The model of the run; answers that are paid for are kept in the run."""
        work, journal = self.work, self.work.run / PAID
        given: dict[str, Any] = {} if work.shared is None else {"shared": work.shared}
        noted = read_server(work.run, "sample", "semantics")
        model = load_sampler(work.config, before=noted, **given)
        if isinstance(model, Paid):
            others = [journal, *_of_workers(journal)] if work.worker else []
            model.journal = Journal(_own(journal, work.worker), others)
        self.opened.append(model)
        return model


def _own(path: Path, worker: str) -> Path:
    """The file that a worker has beside those of others."""
    return path.with_name(f"{path.name}.{worker}") if worker else path


def _of_workers(path: Path) -> list[Path]:
    return sorted(p for p in path.parent.glob(f"{path.name}.*") if not p.name.endswith(BESIDE[1:]))


def _gather(run: Path) -> None:
    """Put together what workers kept, each for itself."""
    gather_pairs(run / CACHE, _of_workers(run / CACHE))
    gather(run / PAID, _of_workers(run / PAID))


def _note(folder: Path, index: int | None, told: Mapping[str, Any]) -> str:
    if SERVER_TOLD in told:
        save_sealed(folder / SERVER, told[SERVER_TOLD])
    return ""


def _packed(
    ids: Sequence[str], found: Sequence[Semantics]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    def plain(value: Any) -> Any:
        return None if value is None else value.tolist()

    rows: dict[str, list[Any]] = {
        "query_id": list(ids),
        "meanings": [plain(m.meanings) for m in found],
        "rephrasings": [plain(m.rephrasings) for m in found],
        "p_true": [m.p_true for m in found],
        "complement": [m.complement for m in found],
    }
    arrays = {
        f"{k}": m.between.astype(np.float32) for k, m in enumerate(found) if m.between is not None
    }
    return rows, arrays


def read_semantics(run: Path) -> dict[str, Semantics]:
    """What the stage found, by query id."""
    found: dict[str, Semantics] = {}
    for rows, arrays in read_parts(require(run, "semantics"), KIND, columns=STORED):
        found |= unpack_semantics(rows, arrays, range(len(rows["query_id"])))
    return found


def unpack_semantics(
    rows: Mapping[str, Sequence[Any]], arrays: Mapping[str, Any], places: Iterable[int]
) -> dict[str, Semantics]:
    """What was found of the queries in some rows of a part, by query id."""

    def array(value: Any, dtype: Any) -> Any:
        return None if value is None else np.array(value, dtype=dtype)

    return {
        rows["query_id"][k]: Semantics(
            array(rows["meanings"][k], np.int64),
            array(arrays.get(f"{k}"), np.float64),
            array(rows["rephrasings"][k], np.bool_),
            rows["p_true"][k],
            rows["complement"][k] if "complement" in rows else None,  # older runs have none
        )
        for k in places
    }
