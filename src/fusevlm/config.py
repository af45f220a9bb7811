"""One TOML file per run: a section per stage, unknown keys refused, every value declared."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fusevlm import checks
from fusevlm.checks import FRACTION, POSITIVE, SHARE, Device, Number, OneOf, Whole
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import InputError

TRAIN = "train"  # an adapter trained in the run itself
PAPER = "paper"  # the adapter's preset with the paper's objective
# of [adapter]: what one objective has and the other has not
DEFAULT_ONLY, PAPER_ONLY = ("steps",), ("epochs", "batch", "lambda1", "lambda2", "mixed")
OFFICIAL = ("vqav2", "okvqa", "advqa")
NONE = "none"
# prior statistics of the adapter, and of the towers' activations (embed.activations)
OF_ADAPTER = ("s_image", "s_text", "disagreement", "reconstruction", "latent_distance")
OF_ACTIVATIONS = ("mahalanobis_image", "mahalanobis_text", "laplace_image", "laplace_text")
READOUTS = ("u", "prior", "mean", "logistic", "global", "quantile", "box")
SEED = Whole(0)
DTYPE = OneOf("auto", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class DataConfig:
    """Queries. ``source`` is embedded; files, where each split names a table of queries; or an
    official dataset (vqav2, okvqa, advqa), of which calibration and test images are drawn.
    """

    source: Annotated[str, OneOf(EMBEDDED, "files", *OFFICIAL)] = EMBEDDED
    calibration: str = ""
    test: str = ""  # source embedded: test if empty, or another of its splits, dev or reserved
    # pairs for adapter.source = "train": tables of queries, or KIND:FOLDER of official files
    train: tuple[str, ...] = ()
    n_train: Annotated[int, Whole(0)] = 0  # drawn by the seed from all sources; 0 for all
    images: str = ""  # folder of the images; beside each table if empty
    n_calibration: Annotated[int, Whole(0)] = 0  # the first so many; 0 for all
    n_test: Annotated[int, Whole(0)] = 0
    folder: str = ""  # of an official dataset's files
    split: str = "val"  # of an official dataset
    unit: str = ""  # column whose equal values are resampled together; the image if empty
    seed: Annotated[int, SEED] = 0  # of the draw from an official dataset


@dataclass(frozen=True)
class SampleConfig:
    """Samples of a vision-language model, and the answer to be judged."""

    model: str = EMBEDDED  # or a folder, a hub name, or NAME:SOURCE of a registered model
    n: Annotated[int, Whole(1)] = 20
    temperature: str = "mct"  # mct, uniform, or a number as text
    max_new_tokens: Annotated[int, Whole(1)] = 16
    answer_temperature: Annotated[float, Number(0.0)] = 0.0  # of the judged answer; 0 is greedy
    top_p: Annotated[float, Number(0.0, 1.0, open_low=True)] = 1.0  # 1 for all tokens
    top_k: Annotated[int, Whole(0)] = 0  # 0 for all tokens
    stop: tuple[str, ...] = ()
    prompt: str = ""  # with {question} in it; a short answer is asked for if empty
    layers: tuple[str, ...] = ("last", "middle")
    batch: Annotated[int, Whole(1)] = 16
    seed: Annotated[int, SEED] = 0
    half: bool = False  # hidden states as float16
    gram: str = ""  # folder of a saved Fuse: its whitened Grams are kept instead of hidden states
    dtype: Annotated[str, DTYPE] = "auto"
    device: Annotated[str, Device()] = "cpu"
    device_map: str = ""  # instead of one device: spread over several, such as auto
    quantize: Annotated[str, OneOf("", "4bit", "8bit")] = ""
    revision: str = ""  # of a hub model
    path: Annotated[str, OneOf("auto", "repeated_cache")] = "auto"  # how the prompt's cache is used

    @property
    def prompt_layer(self) -> str:
        """The layer whose state of the last prompt token is an input: middle, else the last one."""
        return "middle" if "middle" in self.layers else self.layers[-1]


@dataclass(frozen=True)
class EmbedConfig:
    """CLIP-like towers."""

    towers: str = EMBEDDED
    batch: Annotated[int, Whole(1)] = 64
    device: Annotated[str, Device()] = "cpu"
    dtype: Annotated[str, DTYPE] = "auto"
    revision: str = ""  # of a hub model
    activations: bool = True  # also keep what enters the towers' projections


@dataclass(frozen=True)
class AdapterConfig:
    """The prior: embedded, the folder of a trained adapter, or train.

    What is not given is the preset's. Settings of training count only where source is train.
    """

    source: str = EMBEDDED
    device: Annotated[str, Device()] = "cpu"  # of training, and of the statistics
    # the prior statistic "s", all that the scalar fusion is given
    statistic: Annotated[str, OneOf("s", *OF_ADAPTER, *OF_ACTIVATIONS)] = "s"
    statistics: tuple[str, ...] = OF_ADAPTER  # beside it, for the vector fusion
    preset: Annotated[str, OneOf("default", PAPER)] = "default"
    latent: Annotated[int | None, Whole(1)] = None  # dimensions
    inducing: Annotated[int | None, Whole(1)] = None  # points per modality
    lr: Annotated[float | None, POSITIVE] = None  # learning rate, the latents' too
    steps: Annotated[int | None, Whole(1)] = None  # at most; preset default only
    epochs: Annotated[int | None, Whole(1)] = None  # from here on preset paper only
    batch: Annotated[int | None, Whole(1)] = None
    lambda1: Annotated[float | None, Number(0.0)] = None
    lambda2: Annotated[float | None, Number(0.0)] = None
    mixed: bool = False  # bfloat16 in the largest product
    seed: Annotated[int, SEED] = 0


@dataclass(frozen=True)
class SemanticsConfig:
    """What scores need beyond the samples; "none" leaves it out, and the scores that need it."""

    meanings: Annotated[str, OneOf("string", "nli", "sentences", NONE)] = "string"
    similarity: Annotated[str, OneOf(NONE, "sentences", "nli", "string")] = NONE
    rephrase: Annotated[str, OneOf(NONE, "generator", "prompt", "templates")] = NONE
    rephrasings: Annotated[int, Whole(1)] = 5
    p_true: bool = False
    # the negated question too, of yes/no questions, by templates or by the model
    complement: Annotated[str, OneOf(NONE, "templates", "model")] = NONE
    complement_samples: Annotated[int, Whole(0)] = 0  # beside its greedy answer, without logits
    generator: str = EMBEDDED  # the model that asks, for rephrase = "generator"
    wording: str = ""  # what it is told, with {answer} and perhaps {question}; its usual if empty
    nli: str = "microsoft/deberta-large-mnli"
    encoder: str = "minilm"
    # of the inference model, the encoder and the generator
    device: Annotated[str, Device()] = "cpu"
    dtype: Annotated[str, DTYPE] = "auto"  # of their weights
    threshold: Annotated[float, Number(0.0, 1.0)] = 0.9  # similarity of one meaning, for sentences
    seed: Annotated[int, SEED] = 0


@dataclass(frozen=True)
class ScoreConfig:
    """Scores of every query, and which answers count as wrong."""

    layer: str = "last"  # whose hidden states are the samples' embeddings
    criterion: Annotated[
        str, OneOf("exact_match", "exact_match_majority", "vqa_accuracy", "rouge_l")
    ] = "exact_match"  # equal to any reference, or to the most frequent one
    baselines: tuple[str, ...] = ()  # scores to compute; all that the settings allow if empty


@dataclass(frozen=True)
class RowConfig:
    """A method of one's own: a form of FUSE with other options. [[calibrate.row]]"""

    name: str
    preset: str = "practical"
    options: dict[str, Any] = field(default_factory=dict)  # of Fuse; they win over [calibrate]
    title: str = ""  # the name if empty
    uses: Annotated[str, OneOf("both", "evidence")] = "both"
    readout: Annotated[str, OneOf(*READOUTS)] = "u"  # what is read off the fit
    layer: str = ""  # whose hidden states; score.layer if empty
    quantile: Annotated[float, SHARE] = 0.0  # of readout = "quantile"; 0 for calibrate.quantile


ROW_KEYS = ("layer", "quantile")  # what a sweep can vary beside options of Fuse


@dataclass(frozen=True)
class SweepConfig:
    """One row for each value of an option. [[calibrate.sweep]]"""

    option: str  # of Fuse, such as alpha or z; or layer, quantile
    values: tuple[Any, ...]
    name: str = ""  # rows are NAME_OPTION_VALUE; the preset if empty
    preset: str = "practical"
    options: dict[str, Any] = field(default_factory=dict)  # that stay as they are
    uses: Annotated[str, OneOf("both", "evidence")] = "both"
    readout: Annotated[str, OneOf(*READOUTS)] = "u"

    def rows(self) -> tuple[RowConfig, ...]:
        """The rows of all values, in order."""
        return tuple(self._row(value) for value in self.values)

    def _row(self, value: Any) -> RowConfig:
        word = f"{value:g}" if type(value) in (int, float) else str(value)
        first = self.name or self.preset
        own = self.option in ROW_KEYS
        options = self.options if own else {**self.options, self.option: value}
        return RowConfig(
            name=f"{first}_{self.option}_{word}",
            preset=self.preset,
            options=options,
            title=f"{self.option} {word} ({first})",
            uses=self.uses,
            readout=self.readout,
            **({self.option: value} if own else {}),
        )


@dataclass(frozen=True)
class CalibrateConfig:
    """The methods compared: forms of FUSE by name, baselines, and rows of one's own."""

    methods: tuple[str, ...] = ("practical", "paper", "evidence-only", "prior-only", "g_nll")
    # u → P(wrong), for every method; auto is beta, or Platt with few labels
    probability: Annotated[str, OneOf("auto", "platt", "beta", "isotonic", "min_max")] = "auto"
    # more evidence for the vector fusion: complement, rephrasing, margin, or any score's column
    evidence: tuple[str, ...] = ()
    threshold_share: Annotated[float, FRACTION] = 0.5  # of calibration, kept apart for thresholds
    quantile: Annotated[float, FRACTION] = 0.8  # ρ: the share that the rows Quantile θ* answer
    seed: Annotated[int, SEED] = 0
    row: tuple[RowConfig, ...] = ()
    sweep: tuple[SweepConfig, ...] = ()

    def own_rows(self) -> tuple[RowConfig, ...]:
        """Rows of one's own, those of sweeps after the others."""
        return (*self.row, *(row for sweep in self.sweep for row in sweep.rows()))

    def names(self) -> tuple[str, ...]:
        """All methods compared, each once."""
        return tuple(dict.fromkeys([*self.methods, *(row.name for row in self.own_rows())]))


@dataclass(frozen=True)
class EvaluateConfig:
    """Risk, intervals, and the columns by which tables are cut."""

    risk: Annotated[float, FRACTION] = 0.05
    risks: tuple[float, ...] = (0.05, 0.1)  # at which the table tells the certified coverage
    delta: Annotated[float, FRACTION] = 0.1
    bootstrap: Annotated[int, Whole(1)] = 1000
    level: Annotated[float, FRACTION] = 0.95
    seed: Annotated[int, SEED] = 0
    slices: tuple[str, ...] = ()
    out_of_distribution: tuple[str, ...] = ()  # true/false columns; any true is out
    severity: str = ""
    corruption: str = ""

    def __post_init__(self) -> None:
        for risk in self.risks:
            checks.fraction(risk, "evaluate.risks")


@dataclass(frozen=True)
class ReportConfig:
    """The figures and the page."""

    method: str = ""  # of choice, among calibrate.methods; the first form of FUSE if empty
    beside: tuple[str, ...] = ()  # methods drawn beside it; if empty FUSE, G-NLL and the best
    examples: Annotated[int, Whole(0)] = 20  # queries on the page, in successes and failures
    figures: tuple[str, ...] = ()  # to draw, by name; all if empty
    pdf: bool = True  # beside each SVG


@dataclass(frozen=True)
class Config:
    """Everything a run depends on; ``name`` is the file's unless it says otherwise."""

    name: str = "run"
    data: DataConfig = field(default_factory=DataConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    semantics: SemanticsConfig = field(default_factory=SemanticsConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    calibrate: CalibrateConfig = field(default_factory=CalibrateConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    report: ReportConfig = field(default_factory=ReportConfig)


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "sample": SampleConfig,
    "embed": EmbedConfig,
    "adapter": AdapterConfig,
    "semantics": SemanticsConfig,
    "score": ScoreConfig,
    "calibrate": CalibrateConfig,
    "evaluate": EvaluateConfig,
    "report": ReportConfig,
}


def read_config(path: str | os.PathLike[str], changes: Sequence[str] = ()) -> Config:
    """The config of a TOML file with ``section.key=value`` changes on top.

    Paths in the file are relative to the file.
    """
    source = Path(path)
    config = make_config({"name": source.stem, **read_toml(source)}, str(source))
    return change_config(anchor(config, source.parent), changes)


def read_toml(source: Path) -> dict[str, Any]:
    """The tables of a TOML file, or why it cannot be read."""
    try:
        with source.open("rb") as handle:
            return tomllib.load(handle)
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source} is not TOML: {error}.") from error


# of the demo: the strongest on development images; "stacked" combines them and two more
DEMO_BASELINES = ("g_nll", "umpire", "clm_max", "ntl", "ln_entropy", "huq")
DEMO_QUERIES = 3000


def demo_config(limit: int = DEMO_QUERIES, seed: int = 0) -> Config:
    """configs/demo.toml: half of ``limit`` queries to calibrate, the rest to test."""
    half = checks.count(limit, "limit", least=40) // 2
    forms = ("practical", "paper", "evidence-only", "prior-only", "stacked")
    tree = {
        "name": "demo",
        "data": {"n_calibration": half, "n_test": limit - half, "unit": "image_id"},
        "sample": {"seed": seed},
        "score": {"baselines": [*DEMO_BASELINES, "semantic_entropy_rao", "eigenscore"]},
        "calibrate": {"seed": seed, "methods": [*forms, *DEMO_BASELINES]},
        "evaluate": {
            "seed": seed,
            "slices": ["severity", "answer_type", "source"],
            "out_of_distribution": ["held_out_pair", "unseen_phrasing"],
            "severity": "severity",
            "corruption": "corruption",
        },
    }
    return make_config(tree, "demo")


def make_config(tree: Mapping[str, Any], where: str) -> Config:
    """A checked Config from nested mappings; ``where`` opens every complaint."""
    given: dict[str, Any] = {}
    for name, value in tree.items():
        if name == "name":
            given[name] = _typed(value, str, f"{where}: name")
        elif name not in SECTIONS:
            raise InputError(f"{where}: unknown section {name!r}.{checks.hint(name, SECTIONS)}")
        elif not isinstance(value, Mapping):
            raise InputError(f"{where}: {name} is {value!r}; expected a section [{name}].")
        else:
            given[name] = _section(name, value, where)
    config = Config(**given)
    _check(config, where)
    return config


def change_config(config: Config, changes: Sequence[str]) -> Config:
    """``section.key=value`` on top: TOML, or a bare word; paths are relative to this folder."""
    tree = as_tree(config)
    for change in changes:
        path, equals, text = change.partition("=")
        section, dot, key = path.strip().partition(".")
        if not (equals and dot and section and key):
            raise InputError(f"--set {change!r}: expected section.key=value.")
        if section not in SECTIONS:
            raise InputError(f"--set {change!r}: unknown section.{checks.hint(section, SECTIONS)}")
        tree[section][key] = _value(text.strip())
    return anchor(make_config(tree, "--set"), Path()) if changes else config


def as_tree(config: Config) -> dict[str, Any]:
    """The config as nested plain data: lists instead of tuples, without what is not given."""
    found: dict[str, Any] = _plain(asdict(config))
    for section in SECTIONS:
        found[section] = {k: v for k, v in found[section].items() if v is not None}
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _section(name: str, given: Mapping[str, Any], where: str) -> Any:
    if name == "data" and isinstance(given.get("train"), str):  # one source without brackets
        given = {**given, "train": [given["train"]] if given["train"] else []}
    return _filled(SECTIONS[name], given, name, where)


def _filled(kind: Any, given: Mapping[str, Any], name: str, where: str, head: str = "") -> Any:
    """A dataclass from a table of TOML, whose name is ``name`` and whose heading ``head``."""
    types, head = get_type_hints(kind), head or f"[{name}]"
    for key in given:
        if key not in types:
            raise InputError(f"{where}: {head} has no key {key!r}.{checks.hint(key, types)}")
    for field_ in fields(kind):
        needed = field_.default is MISSING and field_.default_factory is MISSING
        if needed and field_.name not in given:
            raise InputError(f"{where}: {head} has no {field_.name}; name one.")
    return kind(**{k: _typed(v, types[k], f"{where}: {name}.{k}") for k, v in given.items()})


def tables(value: Any, kind: Any, where: str) -> tuple[Any, ...]:
    """A list of tables, each a ``kind``; ``where`` ends in the key, such as calibrate.row."""
    if not isinstance(value, list | tuple) or not all(isinstance(t, Mapping) for t in value):
        raise InputError(f"{where} is {value!r}; expected tables [[{where.rpartition(' ')[2]}]].")
    file, _, name = where.rpartition(": ")
    return tuple(_filled(kind, table, name, file, f"[[{name}]]") for table in value)


def _typed(value: Any, kind: Any, where: str) -> Any:
    """``value`` as ``kind``: str, int, float, bool, a tuple of strings or tables, or options.

    A kind that may be None is taken as what it is otherwise.
    """
    if NoneType in get_args(kind):
        kind = next(inner for inner in get_args(kind) if inner is not NoneType)
    if get_origin(kind) is tuple and is_dataclass(get_args(kind)[0]):
        return tables(value, get_args(kind)[0], where)
    if kind == dict[str, Any]:
        if isinstance(value, Mapping):
            return dict(value)
        raise InputError(f"{where} is {value!r}; expected a table, such as {{jitter = 1e-4}}.")
    if kind == tuple[Any, ...]:
        if isinstance(value, list | tuple) and value:
            return tuple(value)
        raise InputError(f"{where} is {value!r}; expected a list with at least one value.")
    if kind == tuple[str, ...]:
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
        raise InputError(f"{where} is {value!r}; expected a list of strings.")
    if kind == tuple[float, ...]:
        numbers = isinstance(value, list | tuple) and all(type(x) in (int, float) for x in value)
        if numbers:
            return tuple(float(item) for item in value)
        raise InputError(f"{where} is {value!r}; expected a list of numbers.")
    if kind is float and type(value) is int:
        return float(value)
    if kind is str and type(value) in (int, float):
        return str(value)
    if type(value) is not kind:
        words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
        raise InputError(f"{where} is {value!r}; expected {words[kind]}.")
    return value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text  # a bare string


def anchor(config: Config, home: Path) -> Config:
    """Relative paths of files that stand beside the config, made to work from anywhere."""
    tree = as_tree(config)
    places = [("data", k) for k in ("calibration", "test", "images", "folder")]
    places += [("sample", "model"), ("embed", "towers"), ("adapter", "source")]
    places += [("semantics", "generator"), ("semantics", "nli"), ("sample", "gram")]
    for section, key in places:
        tree[section][key] = _anchored(tree[section][key], home)
    tree["data"]["train"] = [_anchored(source, home) for source in tree["data"]["train"]]
    return make_config(tree, config.name)


def _anchored(text: str, home: Path) -> str:
    name, colon, value = text.rpartition(":")  # a registered model's NAME:SOURCE
    if value and value not in (EMBEDDED, TRAIN) and (home / value).exists():
        return f"{name}{colon}{(home / value).resolve()}"
    return text


def limited(config: Config, limit: int | None) -> Config:
    """At most ``limit`` queries of each split."""
    if limit is None:
        return config
    limit = checks.count(limit, "--limit")
    tree = as_tree(config)
    for key in ("n_calibration", "n_test"):
        tree["data"][key] = min(tree["data"][key] or limit, limit)
    return make_config(tree, config.name)


def used_devices(config: Config) -> dict[str, str]:
    """The device of every model that the run loads, by its key."""
    found = {
        "sample.device": config.sample.device,
        "embed.device": config.embed.device,
        "adapter.device": config.adapter.device,
    }
    wanted = config.semantics
    models = {"nli", "sentences", "generator"}
    if models & {wanted.meanings, wanted.similarity, wanted.rephrase}:
        found["semantics.device"] = wanted.device
    return found


def _check_adapter(adapter: AdapterConfig) -> None:
    """A setting that the objective does not have is refused, not ignored."""
    idle = DEFAULT_ONLY if adapter.preset == PAPER else PAPER_ONLY
    given = [name for name in idle if getattr(adapter, name) not in (None, False)]
    if given:
        other = "default" if adapter.preset == PAPER else PAPER
        raise InputError(
            f"adapter.{given[0]} belongs to adapter.preset = {other!r}; it is {adapter.preset!r}. "
            f"Leave it out, or name the preset."
        )
    if adapter.lambda1 == adapter.lambda2 == 0.0:
        raise InputError(
            "adapter.lambda1 and adapter.lambda2 are both 0: nothing would be minimised."
        )


def activation_statistics(adapter: AdapterConfig) -> tuple[str, ...]:
    """The statistics a config names that are of the towers' activations."""
    named = dict.fromkeys([adapter.statistic, *adapter.statistics])
    return tuple(name for name in named if name in OF_ACTIVATIONS)


def _check_statistics(config: Config) -> None:
    """Statistics are known, and have what they are computed from."""
    for name in config.adapter.statistics:
        checks.known(name, (*OF_ADAPTER, *OF_ACTIVATIONS), "adapter.statistics:")
    named = activation_statistics(config.adapter)
    if named and not config.embed.activations:
        raise InputError(
            f"the prior statistic {named[0]!r} is of the towers' activations, which "
            f"embed.activations = false does not keep."
        )


def _check(config: Config, where: str) -> None:
    """What declarations cannot say; each complaint names its key."""
    data, semantics = config.data, config.semantics
    try:
        for section in SECTIONS:
            checks.options(getattr(config, section), f"{section}.")
        _check_rows(config)
        if semantics.meanings == "sentences" and semantics.similarity == NONE:
            raise InputError("semantics.meanings = 'sentences' needs semantics.similarity too.")
        if data.source in OFFICIAL and not (data.folder and data.n_calibration and data.n_test):
            raise InputError(
                f"data.source is {data.source!r}: name data.folder, data.n_calibration and "
                f"data.n_test."
            )
        if data.source == "files" and not (data.calibration or data.test):
            raise InputError("data.source is 'files': name data.calibration and data.test.")
        if (config.adapter.source == TRAIN) != bool(data.train):
            raise InputError(
                "data.train and adapter.source = 'train' belong together: the adapter is trained "
                "on those pairs. Give both, or neither."
            )
        _check_adapter(config.adapter)
        _check_statistics(config)
        if config.sample.device_map and config.sample.device != "cpu":
            raise InputError(
                f"sample.device is {config.sample.device!r} and sample.device_map "
                f"{config.sample.device_map!r}; give one of them."
            )
        if semantics.wording and "{answer}" not in semantics.wording:
            raise InputError(
                f"semantics.wording is {semantics.wording!r}; it must hold {{answer}}."
            )
        if not config.sample.layers:
            raise InputError("sample.layers is empty; name at least one, such as 'last'.")
        if config.score.layer not in config.sample.layers:
            raise InputError(
                f"score.layer is {config.score.layer!r}, which sample.layers does not keep: "
                f"{', '.join(config.sample.layers)}."
            )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _check_rows(config: Config) -> None:
    """Methods are named, names of rows can be folders and differ, their layers are kept."""
    if not config.calibrate.names():
        raise InputError("calibrate.methods is empty; name at least one.")
    for sweep in config.calibrate.sweep:
        bad = [v for v in sweep.values if sweep.option == "quantile" and not FRACTION.accepts(v)]
        if bad:
            raise InputError(f"sweep of quantile: {bad[0]!r} is not {FRACTION}.")
    seen: set[str] = set()
    for row in config.calibrate.own_rows():
        what = f"row {row.name!r}"
        if not re.fullmatch(r"[\w+-][\w.+-]*", row.name):
            raise InputError(
                f"{what}: a name is letters, digits, '_', '-', '+' and '.', which does not come "
                f"first; title can be anything."
            )
        if row.name in seen:
            raise InputError(f"two rows are called {row.name!r}.")
        seen.add(row.name)
        checks.options(row, f"{what}: ")
        if row.layer and row.layer not in config.sample.layers:
            raise InputError(
                f"{what}: layer is {row.layer!r}, which sample.layers does not keep: "
                f"{', '.join(config.sample.layers)}."
            )
        if row.quantile and row.readout != "quantile":
            raise InputError(f"{what}: quantile belongs to readout = 'quantile'.")
