"""Stage adapter: the prior's statistics of every judged query, from a loaded or trained adapter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fusevlm import checks
from fusevlm.config import TRAIN, Config
from fusevlm.errors import InputError
from fusevlm.models.registry import local_input, model_folder
from fusevlm.pipeline.run import Work
from fusevlm.store import read_parquet, save_parquet
from fusevlm.store.generations import read_embeddings
from fusevlm.store.runs import require

if TYPE_CHECKING:
    from fusevlm.priors.gp.adapter import GpAdapter

PART, MODEL, STATISTICS = "adapter", "model", "statistics.parquet"


def inputs(config: Config) -> dict[str, Path]:
    """The adapter's folder, unless it is trained here."""
    source = config.adapter.source
    return {} if source == TRAIN else local_input("adapter.source", source, PART)


def make(work: Work) -> dict[str, int]:
    """Load or train, then compute the statistics."""
    checks.extra("torch", "the GP adapter", "adapter")
    ids, pairs = read_embeddings(require(work.run, "embed"))
    training = np.array([i.startswith("train/") for i in ids])
    if work.config.adapter.source == TRAIN:
        _train(work, pairs["image"][training], pairs["text"][training])
    adapter = load_adapter(work.run, work.config)
    judged = ~training
    found = adapter.statistics(pairs["image"][judged], pairs["text"][judged])
    wanted = work.config.adapter.statistic
    if wanted not in found:
        raise InputError(f"adapter.statistic is {wanted!r}; it gives {', '.join(found)}.")
    chosen = [i for i, own in zip(ids, judged, strict=True) if own]
    save_parquet(work.folder("adapter") / STATISTICS, {"query_id": chosen, **found})
    return {"queries": len(chosen), "trained_on": int(training.sum())}


def _train(work: Work, image: object, text: object) -> None:
    from fusevlm.priors.gp.adapter import GpAdapter

    options = work.config.adapter
    adapter = GpAdapter(n_inducing=options.inducing, steps=options.steps, seed=options.seed)
    folder = work.folder("adapter") / MODEL
    adapter.fit(
        image, text, folder=folder, progress=lambda p: work.progress(int(p.step), int(p.n_steps))
    )
    adapter.save(folder)


def load_adapter(run: Path, config: Config) -> GpAdapter:
    """The adapter of a run: the config's, or the one the run trained."""
    from fusevlm.priors.gp.adapter import GpAdapter

    source = config.adapter.source
    trained = run / "adapter" / MODEL
    return GpAdapter.load(trained if source == TRAIN else model_folder(source, PART))


def read_statistics(run: Path) -> dict[str, dict[str, float]]:
    """The prior statistics of every query that could be embedded, by query id."""
    path = require(run, "adapter") / STATISTICS
    table = read_parquet(path, "Make it again: --redo adapter.")
    ids = table.pop("query_id")
    return {i: {name: table[name][k] for name in table} for k, i in enumerate(ids)}
