"""Stage adapter: the prior's statistics of every judged query, from a loaded or trained adapter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fusevlm import checks
from fusevlm.config import TRAIN, Config
from fusevlm.errors import InputError
from fusevlm.models.registry import local_input, model_folder
from fusevlm.pipeline.embed import PART as TOWERS
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.train import MODEL
from fusevlm.priors.gp.pairs import saved_widths
from fusevlm.store import read_json, read_parquet, save_parquet
from fusevlm.store.generations import read_embeddings
from fusevlm.store.runs import require

if TYPE_CHECKING:
    from fusevlm.priors.gp.adapter import GpAdapter

PART, STATISTICS = "adapter", "statistics.parquet"


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
    wanted = work.config.adapter.statistic
    if wanted not in found:
        raise InputError(f"adapter.statistic is {wanted!r}; it gives {', '.join(found)}.")
    save_parquet(work.folder("adapter") / STATISTICS, {"query_id": ids, **found})
    return {"queries": len(ids)}


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
