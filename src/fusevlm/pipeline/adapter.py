"""Stage adapter: the prior's statistics of every judged query, from a loaded or trained adapter.

Statistics of the towers' activations, where the config names some, are measured against the
calibration queries: theirs are of a reference without their own unit, and no label is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.config import activation_statistics, prior_statistics
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models.registry import config_number, local_input, model_folder
from fusevlm.pipeline.data import CALIBRATION, read_asked
from fusevlm.pipeline.embed import PART as TOWERS
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.train import MODEL
from fusevlm.priors.activations import ActivationPrior
from fusevlm.priors.gp.pairs import saved_widths
from fusevlm.settings import MINILM, NONE, TRAIN, AdapterConfig, Config
from fusevlm.store import read_json, read_parquet
from fusevlm.store.declared import OTHERS
from fusevlm.store.generations import embedding_blocks, no_activations, nothing_embedded
from fusevlm.store.runs import require, require_whole
from fusevlm.store.tables import TableWriter

if TYPE_CHECKING:
    from fusevlm.priors.gp.adapter import GpAdapter

PART, STATISTICS, REFERENCES = "adapter", "statistics.parquet", "references"
MINILM_WIDTH = 384
STORED: dict[str, Any] = {"query_id": str, OTHERS: float}  # columns of the statistics
REDO = "Make it again: --redo adapter."
BLOCK = 2048  # queries in memory at a time; the adapter takes half as many in one step


def inputs(config: Config) -> dict[str, Path]:
    """The adapter's folder, unless it is trained here."""
    source = config.adapter.source
    return {} if source in (TRAIN, NONE) else local_input("adapter.source", source, PART)


def check(config: Config) -> None:
    """Refuse towers of another width than the adapter's, where both are at hand."""
    source, towers = config.adapter.source, config.embed.towers
    if source in (TRAIN, NONE):
        return
    width = _width(towers)
    for name, wanted in saved_widths(model_folder(source, PART)).items():
        if width is not None and width != wanted:
            raise InputError(
                f"embed.towers {towers!r} gives {name} vectors of width {width}; the adapter "
                f"{source!r} was fitted on {wanted}. Use the towers it was trained with, train "
                f"another one, or go without: adapter.source = 'none'."
            )


def _width(towers: str) -> int | None:
    """Of the towers' vectors, where that can be known before they are loaded."""
    if towers == MINILM:
        return MINILM_WIDTH
    path = Path(model_folder(towers, TOWERS)) / "config.json"
    if not os.path.isfile(path):
        return None
    facts = read_json(path, "Is this a model's folder?")
    found = config_number(facts, "projection_dim")
    if found is None and "siglip" in str(facts.get("model_type")):  # which has no projection
        found = config_number(facts, "text_config", "hidden_size")
    return found


def make(work: Work) -> dict[str, int]:
    """Load the adapter and compute the statistics, of some queries at a time."""
    wanted, folder = work.config.adapter, require(work.run, "embed")
    adapter = load_adapter(work.run, work.config)
    further: Activations | None = None
    size, names = 0, dict[str, str]()
    with ExitStack() as open_files:
        writer: TableWriter | None = None
        for ids, pairs in embedding_blocks(folder, BLOCK):
            pictures = "image" in pairs
            if writer is None:
                named = activation_statistics(wanted, pictures=pictures)
                further = Activations(work, named) if named else None
            found = {} if adapter is None else adapter.statistics(pairs.get("image"), pairs["text"])
            if further is not None:
                found |= further.of(ids)
            if writer is None:
                check_statistics(wanted, found, pictures=pictures)
                _tell_of_missing(work, found)
                names = {"query_id": "string", **dict.fromkeys(found, "double")}
                path = work.folder("adapter") / STATISTICS
                writer = open_files.enter_context(TableWriter(path, names))
            writer.write({"query_id": ids, **found})
            size += len(ids)
    if not size:
        raise nothing_embedded(folder)
    return {"queries": size}


def _tell_of_missing(work: Work, found: Mapping[str, Any]) -> None:
    left = {n: s for n, s in prior_statistics(work.config.adapter).items() if s not in found}
    if left:
        work.say(f"adapter: without pictures there is no {', '.join(left)}")


def check_statistics(
    adapter: AdapterConfig, found: Mapping[str, Any], *, pictures: bool = True
) -> None:
    """Refuse a statistic that is named and not there, though it could be."""
    for name, own in prior_statistics(adapter, pictures=pictures).items():
        if own not in found:
            key = "adapter.statistic" if name == "s" else "adapter.statistics"
            raise InputError(f"{key} names {own!r}; there are {', '.join(found) or 'none'}.")


class Activations:
    """Statistics of activations of embedded queries, which come some at a time, in order.

    The references are the calibration queries; those of new queries are saved.
    """

    def __init__(self, work: Work, names: Sequence[str]) -> None:
        folder = require(work.run, "embed")
        self.units = {
            q.id: str(q.metadata["unit"])
            for q in read_asked(work.run)
            if q.metadata["split"] == CALIBRATION
        }
        own: dict[str, list[Any]] = {}
        ids: list[str] = []
        for some, rows in embedding_blocks(folder, BLOCK, activations=True):
            known = np.array([i in self.units for i in some])
            ids += [i for i, yes in zip(some, known, strict=True) if yes]
            for name, values in rows.items():
                own.setdefault(name, []).append(values[known])
            if len(ids) == len(self.units):
                break
        if not ids:
            raise InputError(
                f"the statistic {names[0]} is measured against calibration queries, and there are "
                f"none: name data.calibration, or leave it out of adapter.statistics."
            )
        if not own:
            raise no_activations(folder)
        reference = {name: np.concatenate(values) for name, values in own.items()}
        self.prior = ActivationPrior(names).fit(**reference)
        self.prior.save(work.folder("adapter") / REFERENCES)
        left_out = self.prior.left_out([self.units[i] for i in ids], **reference)
        self.own = {name: dict(zip(ids, values, strict=True)) for name, values in left_out.items()}
        self._blocks = embedding_blocks(folder, BLOCK, activations=True)

    def of(self, ids: Sequence[str]) -> dict[str, FloatArray]:
        """Of the next queries, whose ids are these."""
        own, rows = next(self._blocks, ([], {}))
        if list(own) != list(ids):
            raise ArtefactError("the activations are not of these queries. --redo embed.")
        found = self.prior.statistics(**rows)
        known = np.array([i in self.units for i in ids])
        for name, values in self.own.items():
            found[name][known] = [values[i] for i, yes in zip(ids, known, strict=True) if yes]
        return found


def load_references(run: Path, config: Config) -> ActivationPrior | None:
    """What the statistics of activations of new queries are measured against, if there are any."""
    if not activation_statistics(config.adapter):
        return None
    home = require_whole(run, "adapter") / REFERENCES
    return ActivationPrior.load(home) if home.is_dir() else None


def load_adapter(run: Path, config: Config) -> GpAdapter | None:
    """The adapter of a run: the config's, or the one the run trained; None where it wants none."""
    source, device = config.adapter.source, config.adapter.device
    if source == NONE:
        return None
    checks.extra("torch", "the GP adapter", "adapter")
    from fusevlm.priors.gp.adapter import GpAdapter

    if source == TRAIN:
        return GpAdapter.load(require_whole(run, "train") / MODEL, device=device)
    return GpAdapter.load(model_folder(source, PART), device=device)


def read_statistics(run: Path) -> dict[str, dict[str, float]]:
    """The prior statistics of every query that could be embedded, by query id."""
    path = require(run, "adapter") / STATISTICS
    table = read_parquet(path, REDO, columns=STORED)
    ids = table.pop("query_id")
    return {i: {name: table[name][k] for name in table} for k, i in enumerate(ids)}
