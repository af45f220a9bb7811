"""Stage adapter: the prior's statistics of every judged query, from a loaded or trained adapter.

Statistics of the towers' activations, where the config names some, are measured against the
calibration queries: theirs are of a reference without their own unit, and no label is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.config import TRAIN, AdapterConfig, Config, activation_statistics
from fusevlm.errors import InputError
from fusevlm.models.registry import local_input, model_folder
from fusevlm.pipeline.data import CALIBRATION, read_asked
from fusevlm.pipeline.embed import PART as TOWERS
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.train import MODEL
from fusevlm.priors.activations import ActivationPrior
from fusevlm.priors.gp.pairs import saved_widths
from fusevlm.store import read_json, read_parquet, save_parquet
from fusevlm.store.generations import read_embeddings
from fusevlm.store.runs import require

if TYPE_CHECKING:
    from fusevlm.priors.gp.adapter import GpAdapter

PART, STATISTICS, REFERENCES = "adapter", "statistics.parquet", "references"


def inputs(config: Config) -> dict[str, Path]:
    """The adapter's folder, unless it is trained here."""
    source = config.adapter.source
    return {} if source == TRAIN else local_input("adapter.source", source, PART)


def check(config: Config) -> None:
    """Refuse towers of another width than the adapter's, where both are at hand."""
    path = Path(model_folder(config.embed.towers, TOWERS)) / "config.json"
    if not path.is_file():
        return
    facts = read_json(path, "Is this a model's folder?")
    inner = facts.get("text_config", {}).get("hidden_size")  # SigLIP has no projection
    width = facts.get("projection_dim", inner if "siglip" in facts.get("model_type", "") else None)
    source = config.adapter.source
    fitted = {} if source == TRAIN else saved_widths(model_folder(source, PART))
    for name, wanted in fitted.items():
        if width is not None and int(width) != wanted:
            raise InputError(
                f"embed.towers {config.embed.towers!r} gives {name} vectors of width {width}; the "
                f"adapter {source!r} was fitted on {wanted}. Use the towers it was trained with, "
                f"or train another one."
            )


def make(work: Work) -> dict[str, int]:
    """Load the adapter and compute the statistics."""
    checks.extra("torch", "the GP adapter", "adapter")
    ids, pairs = read_embeddings(require(work.run, "embed"))
    adapter = load_adapter(work.run, work.config)
    found = adapter.statistics(pairs["image"], pairs["text"])
    named = activation_statistics(work.config.adapter)
    if named:
        found |= _of_activations(work, named)
    check_statistics(work.config.adapter, found)
    save_parquet(work.folder("adapter") / STATISTICS, {"query_id": ids, **found})
    return {"queries": len(ids)}


def check_statistics(adapter: AdapterConfig, found: Mapping[str, Any]) -> None:
    """Refuse a statistic that is named and not there."""
    named = {"adapter.statistic": (adapter.statistic,), "adapter.statistics": adapter.statistics}
    for key, names in named.items():
        for name in names:
            if name not in found:
                raise InputError(f"{key} names {name!r}; there are {', '.join(found)}.")


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
    image, text = rows["image"], rows["text"]
    prior = ActivationPrior(names).fit(image[known], text[known])
    prior.save(work.folder("adapter") / REFERENCES)
    found = prior.statistics(image, text)
    units = [str(asked[i].metadata["unit"]) for i, own in zip(ids, known, strict=True) if own]
    for name, values in prior.left_out(units, image[known], text[known]).items():
        found[name][known] = values
    return found


def load_references(run: Path, config: Config) -> ActivationPrior | None:
    """What the statistics of activations of new queries are measured against, if there are any."""
    if not activation_statistics(config.adapter):
        return None
    return ActivationPrior.load(require(run, "adapter") / REFERENCES)


def load_adapter(run: Path, config: Config) -> GpAdapter:
    """The adapter of a run: the config's, or the one the run trained."""
    from fusevlm.priors.gp.adapter import GpAdapter

    source, device = config.adapter.source, config.adapter.device
    if source == TRAIN:
        return GpAdapter.load(require(run, "train") / MODEL, device=device)
    return GpAdapter.load(model_folder(source, PART), device=device)


def read_statistics(run: Path) -> dict[str, dict[str, float]]:
    """The prior statistics of every query that could be embedded, by query id."""
    path = require(run, "adapter") / STATISTICS
    table = read_parquet(path, "Make it again: --redo adapter.")
    ids = table.pop("query_id")
    return {i: {name: table[name][k] for name in table} for k, i in enumerate(ids)}
