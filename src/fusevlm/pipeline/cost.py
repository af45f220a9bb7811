"""What a run or benchmark would need before anything is loaded: files, memory, disk, hours.

Every figure is an estimate by a formula that is printed with it. A name that can be no model's, and
a folder that is not there, are refused; a hub name that is not known here is said to be unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fusevlm import checks
from fusevlm.data.questions import N_QUERIES
from fusevlm.data.training import CAPTIONS, TABLE, parse_source, source_files
from fusevlm.data.vqa import official_split
from fusevlm.embedded import EMBEDDED, weights_folder
from fusevlm.errors import FuseError, InputError
from fusevlm.models.registry import HUGGINGFACE, registered, split_source
from fusevlm.pipeline.train import options_of
from fusevlm.settings import NONE, OFFICIAL, TRAIN, Config, DataConfig
from fusevlm.store import read_table

IMAGE_TOKENS, PROMPT_TOKENS = 576, 40  # of a prompt: LLaVA-1.5's image, a question with its chat
ANSWER_TOKENS = 3.0  # of a short answer, its end included; the token limit is the worst case
REPHRASED_TOKENS = 32  # of a question that a generator makes, at most
PAIR_TOKENS, DISTINCT = 40, 10  # of an inference pair; different texts among the samples, about
TOWER_TOKENS = 577 + 77  # of an image and a text
PICTURES = 100.0  # read, decoded and resized per second: what bounds the towers
TFLOPS = 100.0  # what a large GPU keeps up in 16-bit prefill: about a third of an A100's peak
BANDWIDTH = 1000.0  # GB/s that it keeps up in reading weights: about two thirds of an A100's peak
FORMULAS = {
    "prefill": "2 × parameters × tokens / (TFLOP/s × 10¹²)",
    "decoding": "steps × the larger of (bytes of weights + batch × prompt tokens × bytes of cache "
    "per token) / (GB/s × 10⁹) and 2 × parameters × batch × samples / (TFLOP/s × 10¹²)",
    "inference": "2 × parameters × tokens × pairs / (TFLOP/s × 10¹²)",
    "towers": f"pictures / {PICTURES:g} per second",
}


@dataclass(frozen=True)
class Weights:
    """Published size of a model: parameters, bytes to download, decoder's layers and width."""

    parameters: float
    gigabytes: float
    layers: int = 0
    width: int = 0


KNOWN: dict[str, Weights] = {
    "llava-hf/llava-1.5-13b-hf": Weights(13.35e9, 26.7, 40, 5120),
    "llava-hf/llava-1.5-7b-hf": Weights(7.06e9, 14.1, 32, 4096),
    "openai/clip-vit-large-patch14-336": Weights(0.428e9, 1.71),
    "openai/clip-vit-large-patch14": Weights(0.428e9, 1.71),
    "microsoft/deberta-large-mnli": Weights(0.406e9, 1.62),
    "Salesforce/blip-image-captioning-base": Weights(0.247e9, 0.99),
    "Salesforce/blip-image-captioning-large": Weights(0.470e9, 1.88),
    "minilm": Weights(0.0227e9, 0.09),
}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
SIZE_IN_NAME = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", re.IGNORECASE)

# questions of the official splits, captions, and bytes a record takes in their JSON (about)
QUESTIONS = {
    ("vqav2", "val"): 214_354, ("okvqa", "val"): 5_046, ("advqa", "val"): 10_000,
    ("vqav2", "train"): 443_757, ("okvqa", "train"): 9_009,
}  # fmt: skip
PAIRS = {
    ("coco", "train"): 414_113, ("coco", "val"): 202_654, ("coco2017", "train"): 591_753,
    ("coco-karpathy", "train"): 414_113, ("flickr30k", "all"): 158_915,
    ("flickr30k-karpathy", "train"): 145_000, ("flickr8k", "train"): 30_000,
    ("flickr8k-karpathy", "train"): 30_000, **QUESTIONS,
}  # fmt: skip
RECORD_BYTES = {"questions": 95, "annotations": 640, "captions": 160}
IMAGE_GIGABYTES = {"val2014": 6.65, "val2017": 0.82, "train2014": 13.5}  # of the archives


@dataclass(frozen=True)
class Need:
    """A file, folder or model that a run reads."""

    what: str
    source: str
    there: bool
    gigabytes: float | None  # None: not known
    about: bool = False
    note: str = ""


@dataclass(frozen=True)
class Work:
    """Something that takes hours: with typical and with the longest answers, and the sum in words.

    None: the size of the model is not known.
    """

    what: str
    hours: float | None
    most_hours: float | None
    words: str


@dataclass(frozen=True)
class Estimate:
    """Of one place: hours by kind of work, gigabytes on disk, of RAM and of the GPU's memory."""

    queries: int
    work: tuple[Work, ...]
    disk: float | None
    ram: float | None
    vram: dict[str, float | None]  # by stage

    @property
    def hours(self) -> float | None:
        """Of all work that is known; None if sampling is not."""
        return _sum(work.hours for work in self.work) if self.work[0].hours is not None else None

    @property
    def most_hours(self) -> float | None:
        known = self.work[0].most_hours is not None
        return _sum(work.most_hours for work in self.work) if known else None


def _sum(values: object) -> float:
    return float(sum(v for v in values if v is not None))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Gpu:
    """What the GPU keeps up: TFLOP/s in 16-bit arithmetic, GB/s of memory."""

    tflops: float = TFLOPS
    bandwidth: float = BANDWIDTH

    def __post_init__(self) -> None:
        checks.positive(self.tflops, "--tflops")
        checks.positive(self.bandwidth, "--bandwidth")

    def prefill(self, parameters: float, tokens: float) -> float:
        """Hours."""
        return 2.0 * parameters * tokens / (self.tflops * 1e12) / 3600

    def step(self, weights: Weights, dtype: str, batch: int, samples: int) -> tuple[float, float]:
        """Seconds of one step of a batch of queries: by memory, and by arithmetic.

        Each step reads the weights once, and the cache of every prompt, which its samples share.
        """
        cache = batch * (IMAGE_TOKENS + PROMPT_TOKENS) * _cache(weights)
        memory = (_bytes(weights, dtype) + cache) / (self.bandwidth * 1e9)
        return memory, 2.0 * weights.parameters * batch * samples / (self.tflops * 1e12)


def needs(config: Config) -> list[Need]:
    """All that the run of one place reads, each once; a malformed name is refused."""
    found = []
    if config.data.source in OFFICIAL:
        found += _official(config.data)
    for name in ("calibration", "test"):
        path = getattr(config.data, name)
        if path:
            found.append(_file(f"data.{name}", path))
    found += [_train_source(text) for text in config.data.train]
    return found + [model_need(key, *found_at) for key, found_at in model_sources(config).items()]


def model_sources(config: Config) -> dict[str, tuple[str, str]]:
    """Every model that the run loads, with the embedded part it may name, by key."""
    semantics = config.semantics
    found = {"sample.model": (config.sample.model, "vlm")}
    if config.embed.towers != NONE:
        found["embed.towers"] = (config.embed.towers, "dual_encoder")
    if config.adapter.source not in (TRAIN, NONE):
        found["adapter.source"] = (config.adapter.source, "adapter")
    if "nli" in (semantics.meanings, semantics.similarity):
        found["semantics.nli"] = (semantics.nli, "")
    if "sentences" in (semantics.meanings, semantics.similarity):
        found["semantics.encoder"] = (semantics.encoder, "")
    if semantics.rephrase == "generator":
        found["semantics.generator"] = (semantics.generator, "question_generator")
    return found


def _official(data: DataConfig) -> list[Need]:
    """The question and annotation files and the first image folder of a split."""
    files = official_split(data.source, data.split)
    found = []
    for what in ("questions", "annotations"):
        name = getattr(files, what)
        if name is None:
            raise InputError(
                f"data.split is {data.split!r}, whose answers are not public. Use 'val'."
            )
        need = _file(f"data.{what}", str(Path(data.folder) / name))
        if not need.there:
            size = QUESTIONS.get((data.source, data.split), 0) * RECORD_BYTES[what] / 1e9
            need = replace(need, gigabytes=size or None, about=True)
        found.append(need)
    images = Path(data.images or data.folder) / files.folders[0]
    archive = IMAGE_GIGABYTES.get(files.folders[0])
    return [*found, Need("data.images", str(images), images.is_dir(), archive, about=True)]


def _train_source(text: str) -> Need:
    """A source of the adapter's pairs; an unknown kind is refused."""
    source = parse_source(text)
    try:
        files = source_files(source)
        size = sum(path.stat().st_size for path in files) / 1e9
        return Need("data.train", text, True, size)
    except FuseError:
        if source.kind == TABLE:
            return Need("data.train", text, False, None)
        pairs = PAIRS.get((source.kind, source.split), 0)
        record = RECORD_BYTES["captions" if source.kind in CAPTIONS else "questions"]
        size = pairs * record / 1e9
        return Need("data.train", text, False, size or None, about=True, note="without its images")


def _file(what: str, path: str) -> Need:
    place = Path(path)
    size = place.stat().st_size / 1e9 if place.is_file() else None
    return Need(what, path, place.exists(), size)


def model_need(what: str, source: str, part: str = "") -> Need:
    """A model, or InputError where the name can be none: no folder, not well-formed, unregistered.

    Whether a hub name exists cannot be known without the network; one that resembles a known name
    is pointed out.
    """
    name, source = split_source(source)
    if name != HUGGINGFACE:
        checks.known(name, registered(), f"{what}: the registered model")
        return Need(what, f"{name}:{source}", True, None, note="a registered model")
    if source in KNOWN:
        there = source == "minilm" or cached(source)
        return Need(what, source, there, KNOWN[source].gigabytes)
    folder = weights_folder() / part if source == EMBEDDED and part else Path(source)
    if folder.is_dir():
        if part != "adapter" and not (folder / "config.json").is_file():
            raise InputError(f"{what} is {source!r}, a folder without config.json: no model's.")
        size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        return Need(what, source, True, size / 1e9)
    if part == "adapter" or source.startswith(("/", ".", "~")) or source.count("/") > 1:
        raise InputError(f"{what} is {source!r}, which is no folder here. Correct the path.")
    if not HUB_NAME.fullmatch(source):
        raise InputError(
            f"{what} is {source!r}: neither a folder nor a hub name (OWNER/NAME). Correct it."
        )
    near = checks.hint(source, KNOWN)
    note = "not known here" + (near if "Did you mean" in near else "; check the name on the hub")
    if cached(source):
        return Need(what, source, True, None)
    return Need(what, source, False, None, note=note)


def cached(source: str) -> bool:
    """Whether the hub's cache on this machine holds the model's config."""
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return False
    try:
        return isinstance(try_to_load_from_cache(source, "config.json"), str)
    except HFValidationError:
        return False


def size_of(source: str, part: str = "") -> Weights | None:
    """Published size, what the name says (``…-7b``), or what lies in the folder; None: unknown."""
    if source in KNOWN:
        return KNOWN[source]
    folder = weights_folder() / part if source == EMBEDDED and part else Path(source)
    if folder.is_dir():
        size = sum(f.stat().st_size for f in folder.rglob("*.safetensors"))
        return Weights(size / 2, size / 1e9) if size else None
    named = SIZE_IN_NAME.search(source)
    return Weights(float(named[1]) * 1e9, float(named[1]) * 2) if named else None


def n_queries(config: Config) -> int:
    """Judged queries; 0 where they are not known before the tables are there."""
    data = config.data
    limits = {"calibration": data.n_calibration, "test": data.n_test}
    if data.source == EMBEDDED:
        return sum(min(N_QUERIES[s], limit or N_QUERIES[s]) for s, limit in limits.items())
    if data.source in OFFICIAL:
        return sum(limits.values())
    paths = {split: getattr(data, split) for split in limits if getattr(data, split)}
    if not all(Path(path).is_file() for path in paths.values()):
        return sum(limits.values()) if all(limits.values()) else 0
    sizes = {split: len(read_table(path)["question"]) for split, path in paths.items()}
    return sum(min(size, limits[split] or size) for split, size in sizes.items())


def n_pairs(config: Config) -> int | None:
    """The adapter's training pairs, if they are known."""
    if config.data.n_train or not config.data.train:
        return config.data.n_train
    sources = [parse_source(text) for text in config.data.train]
    counts = [PAIRS.get((s.kind, s.split)) for s in sources]
    return None if None in counts else sum(c for c in counts if c is not None)


def estimate(config: Config, gpu: Gpu | None = None) -> Estimate:
    """Hours, disk and memory of one place; its adapter apart (:func:`training`)."""
    gpu = gpu or Gpu()
    queries = n_queries(config)
    work = [_sampling(config, queries, gpu), _towers("towers", queries)]
    semantics = config.semantics
    if "nli" in (semantics.meanings, semantics.similarity):
        work.append(_inference(config, queries, gpu))
    if semantics.rephrase != "none":
        work.append(_rephrasing(config, queries, gpu))
    if semantics.p_true:
        work.append(_p_true(config, queries, gpu))
    if semantics.complement != "none":
        work.append(_complement(config, queries, gpu))
    disk, ram = _disk(config, queries), _ram(config, queries)
    return Estimate(queries, tuple(work), disk, ram, _vram(config))


def _vlm(config: Config) -> Weights | None:
    return size_of(config.sample.model, "vlm")


def _bytes(weights: Weights, dtype: str) -> float:
    return weights.parameters * (4 if dtype == "float32" else 2)


def _cache(weights: Weights) -> float:
    """Bytes that a token takes in the cache: keys and values of every layer, 16 bit."""
    return 2.0 * weights.layers * weights.width * 2


def _sampling(config: Config, queries: int, gpu: Gpu) -> Work:
    weights = _vlm(config)
    if weights is None or not queries:
        what = "number of queries" if weights is not None else "size of the model"
        return Work("sampling", None, None, f"{what} unknown")
    sample, tokens = config.sample, IMAGE_TOKENS + PROMPT_TOKENS
    prefill = gpu.prefill(weights.parameters, queries * tokens)
    batches = -(-queries // sample.batch)
    memory, arithmetic = gpu.step(weights, sample.dtype, sample.batch, sample.n + 1)

    def hours(steps: float) -> float:
        return prefill + batches * steps * max(memory, arithmetic) / 3600

    words = (
        f"{queries} × 2 × {weights.parameters:.4g} × {tokens} / {gpu.tflops:g}e12 s = "
        f"{prefill:.2f} h; {batches} batches × {ANSWER_TOKENS:g} steps of {memory:.3f} s by "
        f"memory, {arithmetic:.3f} s by arithmetic = {hours(ANSWER_TOKENS) - prefill:.2f} h"
    )
    return Work("sampling", hours(ANSWER_TOKENS), hours(sample.max_new_tokens), words)


def _towers(what: str, pictures: int | None) -> Work:
    if pictures is None:
        return Work(what, None, None, "number of pairs unknown")
    hours = pictures / PICTURES / 3600
    return Work(what, hours, hours, f"{pictures} / {PICTURES:g} s")


def _inference(config: Config, queries: int, gpu: Gpu) -> Work:
    weights = size_of(config.semantics.nli)
    if weights is None:
        return Work("inference", None, None, "size of the model unknown")

    def hours(different: int) -> float:
        pairs = queries * different * (different + 1)
        return gpu.prefill(weights.parameters, pairs * PAIR_TOKENS)

    few = min(DISTINCT, config.sample.n)
    words = (
        f"{queries} × {few}·{few + 1} pairs ({few} different texts a query; at most "
        f"{config.sample.n}) × 2 × {weights.parameters:.3g} × {PAIR_TOKENS} / {gpu.tflops:g}e12 s"
    )
    return Work("inference", hours(few), hours(config.sample.n), words)


def _rephrasing(config: Config, queries: int, gpu: Gpu) -> Work:
    vlm, k = _vlm(config), config.semantics.rephrasings
    kind = config.semantics.rephrase
    asks = size_of(config.semantics.generator, "question_generator")
    maker = asks if kind == "generator" else vlm
    if vlm is None or maker is None:
        return Work("rephrasing", None, None, "size of the model unknown")
    tokens = IMAGE_TOKENS + PROMPT_TOKENS
    made = 0.0
    if kind != "templates":
        step = max(gpu.step(maker, config.semantics.dtype, 8, k + 1))
        made = gpu.prefill(maker.parameters, queries * tokens)
        made += -(-queries // 8) * REPHRASED_TOKENS * step / 3600
    step = max(gpu.step(vlm, config.sample.dtype, 16, 2))

    def hours(steps: float) -> float:
        prefill = gpu.prefill(vlm.parameters, queries * k * tokens)
        return made + prefill + -(-queries * k // 16) * steps * step / 3600

    words = f"{queries} questions made ({made:.2f} h), {queries} × {k} answered"
    return Work("rephrasing", hours(ANSWER_TOKENS), hours(config.sample.max_new_tokens), words)


def _p_true(config: Config, queries: int, gpu: Gpu) -> Work:
    weights = _vlm(config)
    if weights is None:
        return Work("P(True)", None, None, "size of the model unknown")
    tokens = IMAGE_TOKENS + 2 * PROMPT_TOKENS
    hours = gpu.prefill(weights.parameters, queries * tokens)
    words = f"{queries} × 2 × {weights.parameters:.4g} × {tokens} / {gpu.tflops:g}e12 s"
    return Work("P(True)", hours, hours, words)


def _complement(config: Config, queries: int, gpu: Gpu) -> Work:
    """As if every question were yes/no; one forward pass each, and one to negate by the model."""
    weights = _vlm(config)
    if weights is None:
        return Work("complement", None, None, "size of the model unknown")
    tokens = IMAGE_TOKENS + PROMPT_TOKENS
    hours = gpu.prefill(weights.parameters, queries * tokens)
    made = 0.0
    if config.semantics.complement == "model":
        step = max(gpu.step(weights, config.sample.dtype, 1, 2))
        made = gpu.prefill(weights.parameters, queries * 2 * PROMPT_TOKENS)
        made += queries * REPHRASED_TOKENS * step / 3600
    words = (
        f"{queries} × 2 × {weights.parameters:.4g} × {tokens} / {gpu.tflops:g}e12 s, negations "
        f"made ({made:.2f} h)"
    )
    return Work("complement", made + hours, made + hours, words)


def _disk(config: Config, queries: int) -> float | None:
    """Hidden states of samples, answer and prompt in every layer kept, and similarities."""
    weights = _vlm(config)
    if weights is None or not weights.width or not queries:
        return None
    sample = config.sample
    states = queries * (sample.n + 2) * weights.width * len(sample.layers)
    between = queries * (sample.n + 1) ** 2 * 4 * (config.semantics.similarity != "none")
    return (states * (2 if sample.half else 4) + between) / 1e9


def _ram(config: Config, queries: int) -> float | None:
    """The last and the middle layer of all samples, as they were stored, beside 2 GB.

    And the prompts' states, which are inputs, in double precision.
    """
    weights = _vlm(config)
    if weights is None or not weights.width or not queries:
        return None
    layers = 1 + ("middle" in config.sample.layers and config.score.layer != "middle")
    states = queries * config.sample.n * weights.width * layers
    prompts = queries * weights.width * 8
    return 2.0 + (states * (2 if config.sample.half else 4) + prompts) / 1e9


def _vram(config: Config) -> dict[str, float | None]:
    """Weights, and the cache of a batch; in the stage semantics all its models at once."""
    vlm, sample, semantics = _vlm(config), config.sample, config.semantics
    found: dict[str, float | None] = {"sample": None, "semantics": 0.0}
    if vlm is not None:
        answers = (sample.n + 1) * sample.max_new_tokens
        tokens = sample.batch * (IMAGE_TOKENS + PROMPT_TOKENS + answers)
        found["sample"] = (_bytes(vlm, sample.dtype) + tokens * _cache(vlm)) / 1e9
    found["embed"] = 0.0
    if config.embed.towers != NONE:
        towers = size_of(config.embed.towers, "dual_encoder")
        found["embed"] = None if towers is None else _bytes(towers, config.embed.dtype) / 1e9 + 1.0
    parts: list[float | None] = []
    if semantics.p_true or {semantics.rephrase, semantics.complement} != {"none"}:
        parts.append(None if vlm is None else _bytes(vlm, sample.dtype) / 1e9 + 1.0)
    named = model_sources(config)
    for key in ("semantics.nli", "semantics.encoder", "semantics.generator"):
        if key in named:
            own = size_of(*named[key])
            parts.append(None if own is None else _bytes(own, semantics.dtype) / 1e9 + 0.5)
    found["semantics"] = None if None in parts else _sum(parts)
    return found


def training(config: Config) -> tuple[Work, float | None, str] | None:
    """Embedding the adapter's pairs: hours, gigabytes of vectors; and what training does."""
    if config.adapter.source != TRAIN:
        return None
    options, pairs = options_of(config.adapter), n_pairs(config)
    width = 768  # of CLIP ViT-L/14; half precision on disk
    disk = None if pairs is None else pairs * 2 * width * 2 / 1e9
    steps = f"{options.steps} steps" if options.objective == "collapsed" else (
        f"{options.epochs} epochs of batches of {options.batch_size}"
    )  # fmt: skip
    words = (
        f"{options.objective} objective, at most {steps}, {options.n_inducing} inducing points, "
        f"{options.n_latent} latent dimensions; its price is measured and said before it starts"
    )
    return _towers("adapter's pairs", pairs), disk, words


def report(places: Mapping[str, Config], gpu: Gpu | None = None) -> str:
    """The dry run as text: every need once, the formulas, then each place and the sum."""
    gpu = gpu or Gpu()
    lines = ["files and weights:"]
    found = {(n.what, n.source): n for config in places.values() for n in needs(config)}
    lines += [_need_line(need) for need in found.values()]
    lines += ["", "hours are estimates:"]
    lines += [f"  {what}: {formula}" for what, formula in FORMULAS.items()]
    total = worst = 0.0
    kept: list[float] = []
    for config in {str(c.data.train) + str(c.adapter): c for c in places.values()}.values():
        own = training(config)
        if own is not None:
            work, disk, words = own
            lines.append(f"\nadapter: {words}")
            lines.append(_work_line(work))
            total, worst = total + (work.hours or 0.0), worst + (work.most_hours or 0.0)
            if disk is not None:
                lines.append(f"  vectors {disk:.1f} GB on disk")
                kept.append(disk)
    for place, config in places.items():
        one = estimate(config, gpu)
        lines += ["", f"{place}: {one.queries or 'all'} queries × {config.sample.n} samples"]
        lines += [_work_line(work) for work in one.work]
        lines.append(_memory_line(one))
        total, worst = total + (one.hours or 0.0), worst + (one.most_hours or 0.0)
        kept += [] if one.disk is None else [one.disk]
    if total:
        lines.append(
            f"\ntogether {total:.2f} h, at most {worst:.2f} h at {gpu.tflops:g} TFLOP/s and "
            f"{gpu.bandwidth:g} GB/s; {sum(kept):.1f} GB on disk beside the files and weights"
        )
    return "\n".join(lines)


def _need_line(need: Need) -> str:
    size = "size unknown" if need.gigabytes is None else f"{need.gigabytes:.3g} GB"
    size = f"about {size}" if need.about and need.gigabytes is not None else size
    state = "there" if need.there else "missing: to be fetched or named"
    note = f"; {need.note}" if need.note else ""
    return f"  {need.what:20} {need.source}  ({size}, {state}{note})"


def _work_line(work: Work) -> str:
    if work.hours is None:
        return f"  {work.what}: {work.words}"
    most = work.most_hours or 0.0
    worst = f", at most {most:.2f} h" if most > 1.005 * work.hours else ""
    return f"  {work.what}: {work.hours:.2f} h{worst} ({work.words})"


def _memory_line(one: Estimate) -> str:
    def shown(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.1f} GB"

    gpu = ", ".join(f"{stage} {shown(value)}" for stage, value in one.vram.items() if value != 0.0)
    return f"  disk {shown(one.disk)}; RAM {shown(one.ram)}; GPU memory: {gpu}"
