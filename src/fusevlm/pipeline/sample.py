"""Stage sample: n samples and the judged answer of the model to every query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.config import used_devices
from fusevlm.errors import ArtefactError, InputError
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.evidence import response_rows
from fusevlm.models.devices import CPU, need_device
from fusevlm.models.protocol import SHORT_ANSWER, Decoding, Model, Paid
from fusevlm.models.registry import load_model, local_input, split_source
from fusevlm.models.temperatures import parse
from fusevlm.pipeline.data import read_asked
from fusevlm.pipeline.parts import NEVER, Piece, Progress, fill, open_pieces
from fusevlm.pipeline.run import Work
from fusevlm.settings import Config, SampleConfig
from fusevlm.store.declared import need_fields
from fusevlm.store.files import read_sealed, save_sealed
from fusevlm.store.generations import KIND, Whiten, pack_generations
from fusevlm.store.journal import Journal
from fusevlm.store.parts import Part, Parts
from fusevlm.store.runs import SERVER
from fusevlm.types import Generation, Query, Samples

PART = "vlm"
CALLS = "calls.jsonl"  # ends the name of a journal of answers that were paid for
USED = ("calls", "prompt_tokens", "answer_tokens")  # what is noted of a service, in numbers


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
    if open_pieces(parts, queries, sample.batch, work.again):
        model = load_sampler(work.config, before=read_server(work.run, "sample"))
        sample_parts(
            parts,
            model,
            queries,
            parse(sample.temperature, sample.n, sample.seed),
            seed=sample.seed,
            batch=sample.batch,
            half=sample.half,
            gram=_whitened_gram(Fuse.load(sample.gram)) if sample.gram else None,
            again=work.again,
            progress=work.progress,
        )
    return {
        "queries": parts.total("queries"),
        "failed": parts.total("failed"),
        "passing": parts.total("passing"),
        "samples": parts.total("queries") * sample.n,
        "near_boundary": parts.total("near_boundary"),
        **spent(read_server(work.run, "sample")),
    }


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
    again: str = NEVER,
    progress: Progress = lambda *_: None,
) -> None:
    """Sample what is missing, ``batch`` queries at a time, and ``again`` what failed.

    Answers that are paid for go to a journal beside their part, which stays while the part has
    failed queries.
    """

    def journal(index: int) -> Path:
        return parts.folder / f"part-{index:05d}.{CALLS}"

    def make(piece: Piece) -> Part:
        found: list[Generation] = []
        with remembering(model, journal(piece.index)):
            for start in range(0, len(piece.items), batch):
                some = piece.items[start : start + batch]
                found += model.sample(some, len(temperatures), temperatures, seed)
        return pack_generations(found, half=half, gram=gram)

    def kept(index: int) -> None:
        note_server(parts.folder, model)
        if not parts.fact(index, "failed"):
            journal(index).unlink(missing_ok=True)
        stop_if_halted(model, parts)

    note_server(parts.folder, model)
    fill(
        parts, queries, batch, make, again=again, progress=progress, kept=kept,
        note=lambda: running_cost(model),
    )  # fmt: skip


@contextmanager
def remembering(model: Model, path: Path) -> Iterator[None]:
    """While open, answers that are paid for are kept in a journal, and found again there."""
    if not isinstance(model, Paid):
        yield
        return
    model.journal = Journal(path)
    try:
        yield
    finally:
        model.journal = None


def stop_if_halted(model: Model, parts: Parts) -> None:
    """Stop the stage where asking on would only bring failed queries."""
    why = model.halted if isinstance(model, Paid) else ""
    if why:
        failed = parts.total("failed") if parts.facts else 0
        raise ArtefactError(
            f"{parts.folder.name} stopped: {why} What was answered is kept ({failed} queries are "
            f"still to be answered in the parts that were begun); then give the same command again."
        )


def running_cost(model: Model) -> str:
    """Calls, tokens and money used so far, in words; nothing of a model that costs nothing."""
    if not isinstance(model, Paid):
        return ""
    used = model.describe()
    tokens = used["prompt_tokens"] + used["answer_tokens"]
    money = f", {used['cost']:.2f} spent" if used["cost"] else ""
    return f"{used['calls']} calls, {tokens} tokens{money}"


def note_server(folder: Path, model: Model) -> None:
    """Write down what a service gives and what was used of it so far, all sessions together."""
    if isinstance(model, Paid):
        save_sealed(folder / SERVER, model.describe())


def read_server(run: Path, *stages: str) -> dict[str, Any]:
    """What is noted of the service in the last of the ``stages`` that used one."""
    for stage in reversed(stages):
        path = run / stage / SERVER
        if path.exists():
            found = read_sealed(path, f"Make it again: --redo {stage}.")
            need_fields(found, dict.fromkeys(USED, int), path, f"Make it again: --redo {stage}.")
            return found
    return {}


def spent(noted: Mapping[str, Any]) -> dict[str, int]:
    """Calls and tokens, where a service was used."""
    if not noted:
        return {}
    calls, *tokens = (int(noted[name]) for name in USED)
    return {"calls": calls, "tokens": sum(tokens)}


def _whitened_gram(fuse: Fuse) -> Whiten:
    whitener = fuse.model.whitener
    if whitener is None:
        raise InputError("this fit has no whitening to make Grams with; fit it on embeddings.")

    def gram(samples: Samples) -> tuple[FloatArray, int]:
        return whitener.gram(response_rows(samples, fuse.options)), whitener.d

    return gram


def check_sampling(config: Config) -> None:
    """Refuse how samples would be drawn, where that can never be: before any model is loaded."""
    sample = config.sample
    decoding_of(sample)
    parse(sample.temperature, sample.n, sample.seed)
    if sample.path == "second_pass" and split_source(sample.model)[0] != "vllm":
        raise InputError("sample.path is 'second_pass', which is vLLM's. Say 'auto'.")
    if sample.gram:
        _whitened_gram(Fuse.load(sample.gram))


def decoding_of(sample: SampleConfig) -> Decoding:
    """How answers are decoded."""
    return Decoding(
        prompt=sample.prompt or SHORT_ANSWER,
        max_new_tokens=sample.max_new_tokens,
        top_p=None if sample.top_p == 1.0 else sample.top_p,
        top_k=sample.top_k or None,
        stop=sample.stop,
        answer_temperature=sample.answer_temperature,
        layers=tuple(int(x) if x.lstrip("-").isdigit() else x for x in sample.layers),
        path=sample.path,
    )


def load_sampler(config: Config, *, before: Mapping[str, Any] | None = None) -> Model:
    """The model of a config, ready to sample; ``before`` is what is noted of its server."""
    sample, decoding = config.sample, decoding_of(config.sample)
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
    offered = {"server": config.server, "before": before or None, "vllm": config.vllm}
    return load_model(sample.model, decoding, offered=offered, **options)
