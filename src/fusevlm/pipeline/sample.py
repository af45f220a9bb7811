"""Stage sample: n answers of the vision-language model to every judged query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fusevlm.config import Config, SampleConfig
from fusevlm.models.registry import local_input, model_folder, need_models
from fusevlm.pipeline.data import read_queries_of
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.stages import sample_stage

if TYPE_CHECKING:
    from fusevlm.models.huggingface import HuggingFace

PART = "vlm"


def inputs(config: Config) -> dict[str, Path]:
    """The model's folder, if it is one."""
    return local_input("sample.model", config.sample.model, PART)


def make(work: Work) -> dict[str, int]:
    """Sample, or go on sampling."""
    from fusevlm.models.temperatures import parse

    sample = work.config.sample
    queries = read_queries_of(work.run)
    backend = load_backend(sample)
    outcome = sample_stage(
        backend,
        queries,
        work.folder("sample"),
        n=sample.n,
        temperatures=parse(sample.temperature, sample.n, sample.seed),
        seed=sample.seed,
        batch=sample.batch,
        decoding=backend.decoding,
        half=sample.half,
        progress=work.progress,
    )
    return {"queries": outcome.done, "failed": outcome.failed, "samples": outcome.done * sample.n}


def load_backend(sample: SampleConfig) -> HuggingFace:
    """The model of a config, ready to sample."""
    need_models("sampling")
    from fusevlm.models.huggingface import HuggingFace
    from fusevlm.models.protocol import SHORT_ANSWER, Decoding

    decoding = Decoding(
        prompt=sample.prompt or SHORT_ANSWER,
        max_new_tokens=sample.max_new_tokens,
        layers=tuple(int(x) if x.lstrip("-").isdigit() else x for x in sample.layers),
    )
    return HuggingFace.load(
        model_folder(sample.model, PART),
        decoding=decoding,
        dtype=sample.dtype,
        device_map=sample.device_map or None,
    )
