"""Stage sample: n samples and the judged answer of the model to every query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.config import used_devices
from fusevlm.errors import ArtefactError, InputError
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.evidence import response_rows
from fusevlm.models.budget import Shared
from fusevlm.models.devices import CPU, need_device
from fusevlm.models.protocol import SHORT_ANSWER, Decoding, Model, Paid
from fusevlm.models.registry import load_model, local_input, split_source
from fusevlm.models.temperatures import parse
from fusevlm.pipeline.data import Asked, read_asked
from fusevlm.pipeline.engine import Job, open_parts
from fusevlm.pipeline.parts import NEVER, Piece, Progress, cut, fill, open_pieces, part_size
from fusevlm.pipeline.reduction import (
    Reduction,
    check_known,
    decide,
    fit_reduction,
    fitted,
    load_reduction,
)
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
SERVER_TOLD, HALTED = "server", "halted"  # what is told of a service, and why it is asked no more


def inputs(config: Config) -> dict[str, Path]:
    """The model's folder, if it is one."""
    found = local_input("sample.model", config.sample.model, PART)
    if config.sample.gram:
        found["sample.gram"] = Path(config.sample.gram)
    return found


def make(work: Work) -> dict[str, int]:
    """Sample, or go on sampling."""
    sample = work.config.sample
    if work.engine.here:
        for key, device in used_devices(work.config).items():
            need_device(device, key)  # also of later stages: what cannot load is found out now
    queries, parts = items(work), open_parts(work, "sample", KIND)
    known, folder = queries.n_calibration, work.folder("sample")
    reduced = decide(work.config, folder, queries)
    job = Job(
        "sample",
        parts,
        queries,
        part_size(len(queries), sample.batch),
        (known,) if reduced else (),
        again=work.again,
        noted=partial(note_part, parts),
        settled=_settled(work, parts, known) if reduced and fitted(folder) else 0,
    )
    if reduced and not work.engine.here:  # what test queries are reduced by must be there first
        work.engine.fill(replace(job, until=known), work)
        ready_reduction(work, queries)
        job = replace(job, settled=known)
    work.engine.fill(job, work)
    if reduced and (found := load_reduction(folder)) is not None:
        check_known(found, folder, queries, work.config)
    return {
        "queries": parts.total("queries"),
        "failed": parts.total("failed"),
        "passing": parts.total("passing"),
        "samples": parts.total("queries") * sample.n,
        "near_boundary": parts.total("near_boundary"),
        **spent(read_server(work.run, "sample")),
    }


def _settled(work: Work, parts: Parts, known: int) -> int:
    """The calibration queries of a run whose test queries are being reduced by them.

    An answer to one that failed would be a whitening other than theirs.
    """
    cuts = cut(known, parts.size or known)
    failed = sum(parts.fact(index, "failed") for index in range(len(cuts)) if index in parts)
    if failed and work.again != NEVER:
        work.say(
            f"sample: {failed} calibration {'query' if failed == 1 else 'queries'} failed and will "
            f"not be tried again: states of test queries were reduced without them. --redo sample "
            f"asks all queries again."
        )
    return known


def items(work: Work) -> Asked:
    """The queries of all splits."""
    return read_asked(work.run)


def ready_reduction(work: Work, queries: Asked) -> Reduction | None:
    """What states are reduced by: fitted on the calibration queries, once, and kept."""
    folder = work.folder("sample")
    found = load_reduction(folder)
    if found is None:
        work.say("sample: fitting what states are reduced by")
        found = fit_reduction(folder, queries, work.config)
        if found is not None:
            found.save(folder)
    return found


def open_maker(work: Work) -> Sampler:
    """The model of the run, ready to sample."""
    sample = work.config.sample
    noted = read_server(work.run, "sample", "semantics")  # there may be calls of both
    model = load_sampler(work.config, before=noted, shared=work.shared)
    return Sampler(
        model,
        parse(sample.temperature, sample.n, sample.seed),
        work.folder("sample"),
        seed=sample.seed,
        batch=sample.batch,
        half=sample.half,
        gram=_whitened_gram(Fuse.load(sample.gram)) if sample.gram else None,
        reduction=_Late(work) if decide(work.config, work.folder("sample"), items(work)) else None,
    )


class _Late:
    """The reduction of a run, which is there once its calibration queries are answered."""

    def __init__(self, work: Work) -> None:
        self.work, self.queries = work, items(work)

    def of(self, piece: Piece) -> Reduction | None:
        """What the states of a piece are reduced by; None of calibration queries."""
        return self._found if piece.start >= self.queries.n_calibration else None

    @cached_property
    def _found(self) -> Reduction | None:
        return ready_reduction(self.work, self.queries)


class Sampler:
    """Makes parts of queries, ``batch`` of them at a time.

    Answers that are paid for go to a journal beside their part, which stays while the part has
    failed queries.
    """

    def __init__(
        self,
        model: Model,
        temperatures: FloatArray,
        folder: Path,
        *,
        seed: int = 0,
        batch: int = 8,
        half: bool = False,
        gram: Whiten | None = None,
        reduction: _Late | None = None,
    ) -> None:
        self.model, self.temperatures, self.folder = model, temperatures, folder
        self.seed, self.batch, self.half, self.gram = seed, batch, half, gram
        self.reduction = reduction

    def make(self, piece: Piece) -> Part:
        found: list[Generation] = []
        with remembering(self.model, journal_of(self.folder, piece.index)):
            for start in range(0, len(piece.items), self.batch):
                some = piece.items[start : start + self.batch]
                n = len(self.temperatures)
                found += self.model.sample(some, n, self.temperatures, self.seed)
        reduce = None if self.reduction is None else self.reduction.of(piece)
        return pack_generations(found, half=self.half, gram=self.gram, reduce=reduce)

    def told(self) -> dict[str, Any]:
        return told_of(self.model)

    def close(self) -> None:
        return


def sample_parts(
    parts: Parts,
    model: Model,
    queries: Sequence[Query],
    temperatures: FloatArray,
    *,
    batch: int = 8,
    again: str = NEVER,
    progress: Progress = lambda *_: None,
    **options: Any,
) -> None:
    """Sample what is missing with a model that is at hand, and ``again`` what failed.

    ``options`` are those of :class:`Sampler`.
    """
    pieces = open_pieces(parts, queries, batch, again)
    maker = Sampler(model, temperatures, parts.folder, batch=batch, **options)
    fill(
        parts,
        pieces,
        len(queries),
        batch,
        maker,
        progress=progress,
        noted=partial(note_part, parts),
    )


def journal_of(folder: Path, index: int) -> Path:
    """Where the answers of a part are kept as long as it is not whole."""
    return folder / f"part-{index:05d}.{CALLS}"


def note_part(parts: Parts, index: int | None, told: Mapping[str, Any]) -> str:
    """Write down what a service gives and what was used of it so far, all sessions together.

    Stops the stage where asking on would only bring failed queries.
    """
    if SERVER_TOLD in told:
        save_sealed(parts.folder / SERVER, told[SERVER_TOLD])
    if index is not None:
        if not parts.fact(index, "failed"):
            journal_of(parts.folder, index).unlink(missing_ok=True)
        refuse_halted(parts.folder.name, told, parts.total("failed") if len(parts) else 0)
    return running_cost(told)


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


def told_of(model: Model) -> dict[str, Any]:
    """What is to be known of a model whose answers are paid for; nothing of any other."""
    if not isinstance(model, Paid):
        return {}
    return {SERVER_TOLD: model.describe(), HALTED: model.halted}


def refuse_halted(stage: str, told: Mapping[str, Any], failed: int = 0) -> None:
    """Stop a stage where asking on would only bring failed queries."""
    why = told.get(HALTED, "")
    if why:
        raise ArtefactError(
            f"{stage} stopped: {why} What was answered is kept ({failed} queries are "
            f"still to be answered in the parts that were begun); then give the same command again."
        )


def running_cost(told: Mapping[str, Any]) -> str:
    """Calls, tokens and money used so far, in words; nothing of a model that costs nothing."""
    if SERVER_TOLD not in told:
        return ""
    used = told[SERVER_TOLD]
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


def load_sampler(
    config: Config, *, before: Mapping[str, Any] | None = None, shared: Shared | None = None
) -> Model:
    """The model of a config, ready to sample.

    ``before`` is what is noted of its server, ``shared`` what other processes use of it too.
    """
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
    offered = {
        "server": config.server, "before": before or None, "vllm": config.vllm, "shared": shared,
    }  # fmt: skip
    return load_model(sample.model, decoding, offered=offered, **options)
