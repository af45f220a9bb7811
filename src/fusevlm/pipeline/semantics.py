"""Stage semantics: which samples mean the same, and what the model says when asked otherwise.

All that scores need beyond the samples and that takes a model to make, and of that only what the
baselines of the config need; the complement wherever it is asked for, since FUSE takes it as
evidence. What a setting leaves at "none" is left out, and the scores that need it say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm.errors import InputError
from fusevlm.models.protocol import Model, Paid
from fusevlm.models.registry import local_input, model_folder, split_source
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.parts import Piece, fill
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.sample import (
    load_sampler,
    note_server,
    read_server,
    spent,
    stop_if_halted,
)
from fusevlm.scores import SCORES, needs_of
from fusevlm.semantics.find import PARTS, Tools, find_semantics
from fusevlm.settings import Config
from fusevlm.store.generations import read_generations
from fusevlm.store.journal import Journal
from fusevlm.store.parts import Part, Parts, read_parts
from fusevlm.store.runs import require
from fusevlm.types import Semantics

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
    config = work.config
    queries = {q.id: q for q in read_asked(work.run)}
    found = [
        (queries[g.query_id], g.samples)
        for g in read_generations(require(work.run, "sample"))
        if g.samples is not None
    ]
    needed = needs_of(config.score.baselines or SCORES) & set(PARTS)
    if config.semantics.complement != "none":
        needed |= {"complement"}
    parts = Parts(work.folder("semantics"), KIND)
    opened: list[Model] = []
    tools = Tools(
        config.semantics,
        load_vlm=lambda: _opened(work, opened),
        generator=lambda name: model_folder(name, GENERATOR),
        cache=work.run / CACHE,
    )

    def make(piece: Piece) -> Part:
        known = find_semantics(tools, piece.items, needed)
        for model in opened:
            note_server(parts.folder, model)
            stop_if_halted(model, parts)  # else what was not answered would be missing for ever
        rows, arrays = _packed([q.id for q, _ in piece.items], known)
        return Part(rows, arrays, {"queries": len(piece.items)})

    with closing(tools):
        fill(parts, found, BATCH, make, progress=work.progress)
    return {"queries": len(found), **spent(read_server(work.run, "semantics"))}


def _opened(work: Work, opened: list[Model]) -> Model:
    """The model of the run, added to ``opened``; answers that are paid for are kept in the run."""
    noted = read_server(work.run, "sample", "semantics")
    model = load_sampler(work.config, before=noted)
    if isinstance(model, Paid):
        model.journal = Journal(work.run / PAID)
    opened.append(model)
    return model


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

    def array(value: Any, dtype: Any) -> Any:
        return None if value is None else np.array(value, dtype=dtype)

    found: dict[str, Semantics] = {}
    for rows, arrays in read_parts(require(run, "semantics"), KIND, columns=STORED):
        for k, query_id in enumerate(rows["query_id"]):
            found[query_id] = Semantics(
                array(rows["meanings"][k], np.int64),
                array(arrays.get(f"{k}"), np.float64),
                array(rows["rephrasings"][k], np.bool_),
                rows["p_true"][k],
                rows["complement"][k] if "complement" in rows else None,  # older runs have none
            )
    return found
