"""Stage train: the adapter, fitted on the run's training pairs; and one for several runs alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusevlm import checks
from fusevlm.config import as_tree, make_config
from fusevlm.pipeline.run import Work, settings_of
from fusevlm.priors.gp.options import Options, resolve
from fusevlm.settings import TRAIN, AdapterConfig, Config
from fusevlm.store.checkpoints import remove_numbered
from fusevlm.store.pairs import open_pairs
from fusevlm.store.runs import require

if TYPE_CHECKING:
    from fusevlm.priors.gp.adapter import GpAdapter

MODEL = "model"  # folder of the adapter in the stage's
OPTIONS = {  # key of [adapter]: options of the adapter
    "latent": ("n_latent",), "inducing": ("n_inducing",), "lr": ("lr", "latent_lr"),
    "steps": ("steps",), "epochs": ("epochs",), "batch": ("batch_size",),
    "lambda1": ("lambda1",), "lambda2": ("lambda2",), "seed": ("seed",),
}  # fmt: skip


def make(work: Work) -> dict[str, int]:
    """Train, or go on training."""
    from fusevlm.priors.gp.train import CHECKPOINTS

    pairs = open_pairs(require(work.run, "pairs"))
    folder = work.folder("train") / MODEL
    adapter = new_adapter(work.config.adapter).fit(
        pairs["image"],
        pairs["text"],
        folder=folder,
        progress=lambda p: work.progress(p.step, p.n_steps),
        say=work.say,
    )
    adapter.save(folder)
    remove_numbered(folder / CHECKPOINTS)  # as large as the adapter, several times
    record = adapter.fitted.record
    return {"pairs": record.n_pairs, "held out": record.n_held_out, "steps": record.steps}


def changes_of(adapter: AdapterConfig) -> dict[str, Any]:
    """What a config changes of its preset."""
    given = {key: getattr(adapter, key) for key in OPTIONS}
    found = {o: v for key, v in given.items() if v is not None for o in OPTIONS[key]}
    return {**found, "precision": "mixed"} if adapter.mixed else found


def options_of(adapter: AdapterConfig) -> Options:
    """The options that a config trains with."""
    return resolve(adapter.preset, **changes_of(adapter))


def new_adapter(adapter: AdapterConfig) -> GpAdapter:
    """An untrained adapter; a device that is not there is refused."""
    checks.extra("torch", "the GP adapter", "adapter")
    from fusevlm.priors.gp.adapter import GpAdapter

    return GpAdapter(adapter.preset, device=adapter.device, **changes_of(adapter))


def share_adapters(
    places: Mapping[str, Config], out: Path, bring: Callable[[Path, Config], object]
) -> dict[str, Config]:
    """Train each adapter once: places with equal towers, pairs and options get the same one.

    ``bring(folder, config)`` makes the stages pairs and train in ``out/adapter-KEY``; the places
    then load what is there.
    """
    found, done = {}, set()
    for name, config in places.items():
        if config.adapter.source != TRAIN:
            found[name] = config
            continue
        facts = {**settings_of("pairs", config), **settings_of("train", config)}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
        folder = out / f"adapter-{key}"
        if folder not in done:
            bring(folder, config)
            done.add(folder)
        tree = as_tree(config)
        tree["data"]["train"] = []
        tree["adapter"]["source"] = str((folder / "train" / MODEL).resolve())
        found[name] = make_config(tree, name)
    return found
