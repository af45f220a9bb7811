"""Stage adapter: the prior's statistics of every judged query, from a loaded or trained adapter.

Statistics of the towers' activations, where the config names some, are measured against the
calibration queries: theirs are of a reference without their own unit, and no label is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.config import activation_statistics, prior_statistics
from fusevlm.errors import InputError
from fusevlm.models.registry import config_number, local_input, model_folder
from fusevlm.pipeline.data import CALIBRATION, read_asked
from fusevlm.pipeline.embed import PART as TOWERS
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.train import MODEL
from fusevlm.priors.activations import ActivationPrior
from fusevlm.priors.gp.pairs import saved_widths
from fusevlm.settings import MINILM, NONE, TRAIN, AdapterConfig, Config
from fusevlm.store import read_json, read_parquet, save_parquet
from fusevlm.store.declared import OTHERS
from fusevlm.store.generations import read_embeddings
from fusevlm.store.runs import require, require_whole

if TYPE_CHECKING:
    from fusevlm.priors.gp.adapter import GpAdapter

PART, STATISTICS, REFERENCES = "adapter", "statistics.parquet", "references"
MINILM_WIDTH = 384
REDO = "Make it again: --redo adapter."


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
    """Load the adapter and compute the statistics."""
    wanted = work.config.adapter
    ids, pairs = read_embeddings(require(work.run, "embed"))
    pictures = "image" in pairs
    adapter = load_adapter(work.run, work.config)
    found = {} if adapter is None else adapter.statistics(pairs.get("image"), pairs["text"])
    named = activation_statistics(wanted, pictures=pictures)
    if named:
        found |= _of_activations(work, named)
    check_statistics(wanted, found, pictures=pictures)
    left = {n: s for n, s in prior_statistics(wanted).items() if s not in found}
    if left:
        work.say(f"adapter: without pictures there is no {', '.join(left)}")
    save_parquet(work.folder("adapter") / STATISTICS, {"query_id": ids, **found})
    return {"queries": len(ids)}


def check_statistics(
    adapter: AdapterConfig, found: Mapping[str, Any], *, pictures: bool = True
) -> None:
    """Refuse a statistic that is named and not there, though it could be."""
    for name, own in prior_statistics(adapter, pictures=pictures).items():
        if own not in found:
            key = "adapter.statistic" if name == "s" else "adapter.statistics"
            raise InputError(f"{key} names {own!r}; there are {', '.join(found) or 'none'}.")


def _of_activations(work: Work, names: Sequence[str]) -> dict[str, FloatArray]:
    """Statistics of every embedded query; the references of new ones are saved."""
    ids, rows = read_embeddings(require(work.run, "embed"), activations=True)
    asked = {q.id: q for q in read_asked(work.run)}
    known = np.array([asked[i].metadata["split"] == CALIBRATION for i in ids])
    if not known.any():
        raise InputError(
            f"the statistic {names[0]} is measured against calibration queries, and there are "
            f"none: name data.calibration, or leave it out of adapter.statistics."
        )
    own = {name: vectors[known] for name, vectors in rows.items()}
    prior = ActivationPrior(names).fit(**own)
    prior.save(work.folder("adapter") / REFERENCES)
    found = prior.statistics(**rows)
    units = [str(asked[i].metadata["unit"]) for i, yes in zip(ids, known, strict=True) if yes]
    for name, values in prior.left_out(units, **own).items():
        found[name][known] = values
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
    table = read_parquet(path, REDO, columns={"query_id": str, OTHERS: float})
    ids = table.pop("query_id")
    return {i: {name: table[name][k] for name in table} for k, i in enumerate(ids)}
