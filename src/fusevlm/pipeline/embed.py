"""Stage embed: image and question vectors of every query, the adapter's training pairs too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fusevlm.config import Config, EmbedConfig
from fusevlm.models.registry import local_input, model_folder, need_models
from fusevlm.pipeline.data import read_queries_of
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.stages import embed_stage

if TYPE_CHECKING:
    from fusevlm.models.towers import Towers

PART = "dual_encoder"


def inputs(config: Config) -> dict[str, Path]:
    """The towers' folder, if it is one."""
    return local_input("embed.towers", config.embed.towers, PART)


def make(work: Work) -> dict[str, int]:
    """Embed, or go on embedding."""
    embed = work.config.embed
    outcome = embed_stage(
        load_towers(embed),
        read_queries_of(work.run, ("calibration", "test", "train")),
        work.folder("embed"),
        name=embed.towers,
        batch=embed.batch,
        progress=work.progress,
    )
    return {"queries": outcome.done, "failed": outcome.failed}


def load_towers(embed: EmbedConfig) -> Towers:
    """The towers of a config."""
    need_models("embedding")
    from fusevlm.models.towers import Towers

    return Towers.load(model_folder(embed.towers, PART), device=embed.device)
