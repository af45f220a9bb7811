"""Stage sample: n samples and the judged answer of the model to every query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.config import Config, SampleConfig, used_devices
from fusevlm.errors import InputError
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.evidence import response_rows
from fusevlm.models.devices import CPU, need_device
from fusevlm.models.protocol import SHORT_ANSWER, Decoding, Model
from fusevlm.models.registry import load_model, local_input
from fusevlm.models.temperatures import parse
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.run import Progress, Work
from fusevlm.store.files import read_json, save_json
from fusevlm.store.generations import KIND, Whiten, write_generations
from fusevlm.store.parts import Parts
from fusevlm.types import Query, Samples

PART = "vlm"
SERVER = "server.json"  # what a server gave, and what was used of it


def inputs(config: Config) -> dict[str, Path]:
    """The model's folder, if it is one."""
    found = local_input("sample.model", config.sample.model, PART)
    if config.sample.gram:
        found["sample.gram"] = Path(config.sample.gram)
    return found


def make(work: Work) -> dict[str, int]:
    """Sample, or go on sampling."""
    sample = work.config.sample
    for key, device in used_devices(work.config).items():
        need_device(device, key)  # also of later stages: a model that cannot load is found out now
    queries = read_asked(work.run)
    parts = Parts(work.folder("sample"), KIND)
    model = load_sampler(sample)
    try:
        sample_parts(
            parts,
            model,
            queries,
            parse(sample.temperature, sample.n, sample.seed),
            seed=sample.seed,
            batch=sample.batch,
            half=sample.half,
            gram=_whitened_gram(Fuse.load(sample.gram)) if sample.gram else None,
            progress=work.progress,
        )
    finally:
        spent = _note_server(work.folder("sample") / SERVER, model)
    return {
        "queries": parts.total("queries"),
        "failed": parts.total("failed"),
        "samples": parts.total("queries") * sample.n,
        "near_boundary": parts.total("near_boundary"),
        **spent,
    }


def _note_server(path: Path, model: Model) -> dict[str, int]:
    """Add what a server gave this time to what it gave before; calls and tokens of all times.

    Only models behind a server describe themselves.
    """
    describe = getattr(model, "describe", None)
    if describe is None:
        return {}
    before = read_json(path, "Make it again: --redo sample.") if path.exists() else {}
    sessions = [*before.get("sessions", ()), describe()]
    save_json(path, {"sessions": sessions})
    return {what: sum(int(s[what]) for s in sessions) for what in ("calls", "tokens")}


def sample_parts(
    parts: Parts,
    model: Model,
    queries: Sequence[Query],
    temperatures: FloatArray,
    *,
    seed: int = 0,
    batch: int = 8,
    half: bool = False,
    gram: Whiten | None = None,
    progress: Progress = lambda done, total: None,
) -> None:
    """Sample what is missing, ``batch`` queries a part.

    Parts are cut by position, so a resumed run has the batch layout of an uninterrupted one and
    gives the same bytes.
    """
    for index, some in missing_parts(parts, queries, batch, progress):
        found = list(model.sample(some, len(temperatures), temperatures, seed))
        write_generations(parts, index, found, half=half, gram=gram)


def missing_parts(parts: Parts, queries: Sequence[Any], batch: int, progress: Progress) -> Any:
    """(number, queries) of each part that is not there yet; progress counts queries."""
    done = parts.total("queries")
    progress(done, len(queries))
    for index, start in enumerate(range(0, len(queries), batch)):
        if index not in parts:
            some = queries[start : start + batch]
            yield index, some
            done += len(some)
            progress(done, len(queries))


def _whitened_gram(fuse: Fuse) -> Whiten:
    whitener = fuse.model.whitener
    if whitener is None:
        raise InputError("this fit has no whitening to make Grams with; fit it on embeddings.")

    def gram(samples: Samples) -> tuple[FloatArray, int]:
        return whitener.gram(response_rows(samples, fuse.options)), whitener.d

    return gram


def load_sampler(sample: SampleConfig) -> Model:
    """The model of a config, ready to sample."""
    decoding = Decoding(
        prompt=sample.prompt or SHORT_ANSWER,
        max_new_tokens=sample.max_new_tokens,
        top_p=None if sample.top_p == 1.0 else sample.top_p,
        top_k=sample.top_k or None,
        stop=sample.stop,
        answer_temperature=sample.answer_temperature,
        layers=tuple(int(x) if x.lstrip("-").isdigit() else x for x in sample.layers),
        path=sample.path,
    )
    options: dict[str, Any] = {
        "dtype": sample.dtype,
        "device_map": sample.device_map or None,
        "device": None if sample.device == CPU else sample.device,
        "revision": sample.revision or None,
    }
    if sample.quantize:
        transformers = checks.extra("transformers", "quantized weights", "torch")
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=sample.quantize == "4bit", load_in_8bit=sample.quantize == "8bit"
        )
    return load_model(sample.model, decoding, **options)
