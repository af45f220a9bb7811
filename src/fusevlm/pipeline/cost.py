"""What a benchmark would need before anything is loaded: files, weights, disk and GPU time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fusevlm import checks
from fusevlm.config import OFFICIAL, TRAIN, Config, DataConfig
from fusevlm.data.training import parse_source
from fusevlm.data.vqa import official_split
from fusevlm.embedded import EMBEDDED, weights_folder

IMAGE_TOKENS, PROMPT_TOKENS = 576, 40  # of a prompt: LLaVA-1.5's image, a question with its chat
ANSWER_TOKENS = 3.0  # of a short answer, its end included; the token limit is the worst case
TFLOPS = 100.0  # what a large GPU keeps up in 16-bit prefill: about a third of an A100's peak
FORMULA = (
    "hours = queries × 2 × parameters × (prompt tokens + n × answer tokens) "
    "/ (TFLOP/s × 10¹² × 3600)"
)


@dataclass(frozen=True)
class Weights:
    """Published size of a model: parameters, and bytes to download."""

    parameters: float
    gigabytes: float


KNOWN: dict[str, Weights] = {
    "llava-hf/llava-1.5-13b-hf": Weights(13.35e9, 26.7),
    "llava-hf/llava-1.5-7b-hf": Weights(7.06e9, 14.1),
    "openai/clip-vit-large-patch14-336": Weights(0.428e9, 1.71),
    "microsoft/deberta-large-mnli": Weights(0.406e9, 1.62),
    "minilm": Weights(0.0227e9, 0.09),
}


# questions of the official validation splits, and bytes a record takes in their JSON (about)
QUESTIONS = {"vqav2": 214_354, "okvqa": 5_046, "advqa": 10_000}
RECORD_BYTES = {"questions": 95, "annotations": 640}
IMAGE_GIGABYTES = {"val2014": 6.65, "val2017": 0.82, "train2014": 13.5}  # of the archives


@dataclass(frozen=True)
class Need:
    """A file, folder or model that a run reads."""

    what: str
    source: str
    there: bool
    gigabytes: float | None  # None: not known
    about: bool = False


@dataclass(frozen=True)
class Estimate:
    """GPU hours of sampling one place, with typical and with the longest answers."""

    queries: int
    parameters: float | None
    hours: float | None
    most_hours: float | None
    gigabytes: float | None  # hidden states kept


def needs(config: Config) -> list[Need]:
    """All that the run of one place reads, each once."""
    found = []
    if config.data.source in OFFICIAL:
        found += _official(config.data)
    for name in ("calibration", "test"):
        path = getattr(config.data, name)
        if path:
            found.append(_file(f"data.{name}", path))
    found += [_file("data.train", str(parse_source(text).folder)) for text in config.data.train]
    models = [
        ("sample.model", config.sample.model, "vlm"),
        ("embed.towers", config.embed.towers, "dual_encoder"),
    ]
    if config.adapter.source != TRAIN:
        models.append(("adapter.source", config.adapter.source, "adapter"))
    found += [_model(what, source, part) for what, source, part in models]
    if config.semantics.meanings == "nli" or config.semantics.similarity == "nli":
        found.append(_model("semantics.nli", config.semantics.nli, ""))
    return found


def _official(data: DataConfig) -> list[Need]:
    """The question and annotation files and the first image folder of a split."""
    files = official_split(data.source, data.split)
    found = []
    for what in ("questions", "annotations"):
        name = getattr(files, what)
        need = _file(f"data.{what}", str(Path(data.folder) / name))
        if not need.there:
            size = QUESTIONS[data.source] * RECORD_BYTES[what] / 1e9
            need = replace(need, gigabytes=size, about=True)
        found.append(need)
    images = Path(data.images or data.folder) / files.folders[0]
    archive = IMAGE_GIGABYTES.get(files.folders[0])
    return [*found, Need("data.images", str(images), images.is_dir(), archive, about=True)]


def _file(what: str, path: str) -> Need:
    place = Path(path)
    size = place.stat().st_size / 1e9 if place.is_file() else None
    return Need(what, path, place.exists(), size)


def _model(what: str, source: str, part: str) -> Need:
    if source in KNOWN:
        return Need(what, source, source == "minilm", KNOWN[source].gigabytes)
    folder = weights_folder() / part if source == EMBEDDED else Path(source)
    if not folder.is_dir():
        return Need(what, source, False, None)
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    return Need(what, source, True, size / 1e9)


def estimate(config: Config, tflops: float = TFLOPS) -> Estimate:
    """GPU time and disk of sampling, by :data:`FORMULA`."""
    rate = checks.positive(tflops, "tflops") * 1e12
    queries = config.data.n_calibration + config.data.n_test
    known = KNOWN.get(config.sample.model)
    if known is None or queries == 0:
        return Estimate(queries, None if known is None else known.parameters, None, None, None)

    def hours(answer_tokens: float) -> float:
        tokens = IMAGE_TOKENS + PROMPT_TOKENS + config.sample.n * answer_tokens
        return queries * 2 * known.parameters * tokens / rate / 3600

    width = 5120 if known.parameters > 1e10 else 4096
    kept = queries * config.sample.n * width * len(config.sample.layers)
    return Estimate(
        queries,
        known.parameters,
        hours(ANSWER_TOKENS),
        hours(config.sample.max_new_tokens),
        kept * (2 if config.sample.half else 4) / 1e9,
    )


def report(places: Mapping[str, Config], tflops: float = TFLOPS) -> str:
    """The dry run as text: every need once, then the estimate of each place and the sum."""
    lines, seen = ["files and weights:"], set()
    for config in places.values():
        for need in needs(config):
            if need.source not in seen:
                seen.add(need.source)
                size = "size unknown" if need.gigabytes is None else f"{need.gigabytes:.3g} GB"
                size = f"about {size}" if need.about else size
                state = "there" if need.there else "to be fetched or named"
                lines.append(f"  {need.what:18} {need.source}  ({size}, {state})")
    lines += ["", f"GPU time of sampling: {FORMULA}"]
    total = worst = 0.0
    for place, config in places.items():
        found = estimate(config, tflops)
        if found.hours is None or found.most_hours is None or found.parameters is None:
            lines.append(f"  {place}: {found.queries or 'all'} queries; size of the model unknown")
            continue
        tokens = IMAGE_TOKENS + PROMPT_TOKENS
        lines.append(
            f"  {place}: {found.queries} × 2 × {found.parameters:.4g} × ({tokens} + "
            f"{config.sample.n} × {ANSWER_TOKENS:g}) / ({tflops:g}e12 × 3600) = "
            f"{found.hours:.2f} h (answers of {config.sample.max_new_tokens} tokens: "
            f"{found.most_hours:.2f} h); hidden states {found.gigabytes:.1f} GB"
        )
        total, worst = total + found.hours, worst + found.most_hours
    if total:
        lines.append(f"  together {total:.2f} h, at most {worst:.2f} h at {tflops:g} TFLOP/s")
    return "\n".join(lines)
