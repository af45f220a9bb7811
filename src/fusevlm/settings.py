"""The sections of a run's config: every key, its type, its bounds and its default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

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
MINILM = "minilm"  # all-MiniLM-L6-v2, of the extra sentences
# prior statistics of the adapter, and of the towers' activations (embed.activations)
OF_ADAPTER = ("s_image", "s_text", "disagreement", "reconstruction", "latent_distance")
OF_ACTIVATIONS = ("mahalanobis_image", "mahalanobis_text", "laplace_image", "laplace_text")
OF_PICTURES = ("s_image", "disagreement", "mahalanobis_image", "laplace_image")  # none without
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
    outside: bool = False  # whether a table may name pictures outside of that folder
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
    n: Annotated[int, Whole(0)] = 20  # 0: the judged answer alone
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
    # hidden states of test queries: all; or Gram matrices and single states; auto: by their number
    states: Annotated[str, OneOf("auto", "full", "reduced")] = "auto"
    gram: str = ""  # folder of a saved Fuse: its whitened Grams are kept instead of hidden states
    dtype: Annotated[str, DTYPE] = "auto"
    device: Annotated[str, Device()] = "cpu"
    device_map: str = ""  # instead of one device: spread over several, such as auto
    quantize: Annotated[str, OneOf("", "4bit", "8bit")] = ""
    revision: str = ""  # of a hub model
    path: Annotated[str, OneOf("auto", "repeated_cache", "second_pass")] = "auto"  # see Decoding

    @property
    def prompt_layer(self) -> str:
        """The layer whose state of the last prompt token is an input: middle, else the last one."""
        return "middle" if "middle" in self.layers else self.layers[-1]


@dataclass(frozen=True)
class ServerConfig:
    """How patiently, how fast and how much a model behind a server is called.

    Nothing here changes an answer, so that any of it can change while a run goes on.
    """

    timeout: Annotated[float, POSITIVE] = 120.0  # seconds without a byte
    retries: Annotated[int, Whole(0)] = 5  # of a call that failed for a passing reason
    backoff: Annotated[float, POSITIVE] = 1.0  # seconds before the first retry; then twice as many
    max_wait: Annotated[float, Number(0.0)] = 60.0  # seconds before one retry
    per_minute: Annotated[float | None, POSITIVE] = None  # calls begun
    concurrency: Annotated[int, Whole(1)] = 8  # calls at a time
    # the budget of a whole run, all its sessions together; retries and the probe count
    max_calls: Annotated[int | None, Whole(1)] = None
    max_tokens: Annotated[int | None, Whole(1)] = None  # of prompts and answers
    max_cost: Annotated[float | None, POSITIVE] = None  # in the unit of the prices
    price_prompt: Annotated[float, Number(0.0)] = 0.0  # of a million tokens
    price_answer: Annotated[float, Number(0.0)] = 0.0

    def __post_init__(self) -> None:
        checks.options(self)
        if self.max_cost is not None and not self.price_prompt + self.price_answer:
            raise InputError(
                "max_cost needs prices: set price_prompt and price_answer, per million tokens."
            )


@dataclass(frozen=True)
class VllmConfig:
    """vLLM's engine, for models ``vllm:NAME``; what is not given is its own default.

    Nothing here changes an answer, but a prompt longer than ``max_model_len`` has none.
    """

    max_model_len: Annotated[int | None, Whole(1)] = None  # tokens of prompt and answer
    max_num_seqs: Annotated[int | None, Whole(1)] = None  # rows at a time
    gpu_memory_utilization: Annotated[float | None, FRACTION] = None  # weights and cache
    cache_gb: Annotated[float | None, POSITIVE] = None  # of the cache instead; on a CPU 2


@dataclass(frozen=True)
class EmbedConfig:
    """CLIP-like towers; of questions alone the sentence encoder minilm; or none."""

    towers: str = EMBEDDED
    batch: Annotated[int, Whole(1)] = 64
    device: Annotated[str, Device()] = "cpu"
    dtype: Annotated[str, DTYPE] = "auto"
    revision: str = ""  # of a hub model
    activations: bool = True  # also keep what enters the towers' projections


@dataclass(frozen=True)
class AdapterConfig:
    """The prior: embedded, the folder of a trained adapter, train, or none.

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
        word = f"{value:g}" if Number().accepts(value) else str(value)
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
class RoundsConfig:
    """As few samples as each decision needs: the tiers after which a query may stop."""

    use: bool = True  # whether such a rule is fitted; it needs labels
    tiers: tuple[int, ...] = ()  # numbers of samples; 4, 8, 16, … up to sample.n if empty
    samples: Annotated[float | None, Number(0.0)] = None  # on average; as many as help if None
    # numbers of samples for which cost and coverage of every method are told; none if empty
    counts: tuple[int, ...] = ()


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
    examples: Annotated[int, Whole(0)] = 20  # of the figure of successes and failures
    gallery: Annotated[int, Whole(0)] = 1500  # queries on the page, those that surprise most
    figures: tuple[str, ...] = ()  # to draw, by name; all if empty
    pdf: bool = True  # beside each SVG


@dataclass(frozen=True)
class ClusterConfig:
    """Workers of a Ray cluster, for ``--engine ray``. Nothing here changes a result."""

    address: str = ""  # of a cluster that runs; if empty one is started on this machine
    workers: Annotated[int, Whole(0)] = 0  # 0: one for each GPU, or for each CPU
    cpus: Annotated[float | None, POSITIVE] = None  # of a worker; its part of all but one if None
    gpus: Annotated[float | None, Number(0.0)] = None  # of a worker; one where its device is one
    memory_gb: Annotated[float | None, POSITIVE] = None  # kept free for a worker; none if None


@dataclass(frozen=True)
class StorageConfig:
    """Where the parts of a run lie. Nothing here changes a result."""

    parts: str = ""  # s3://BUCKET/WHERE or gs://…; the run folder if empty


@dataclass(frozen=True)
class Config:
    """Everything a run depends on; ``name`` is the file's unless it says otherwise."""

    name: str = "run"
    data: DataConfig = field(default_factory=DataConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    vllm: VllmConfig = field(default_factory=VllmConfig)
    embed: EmbedConfig = field(default_factory=EmbedConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    semantics: SemanticsConfig = field(default_factory=SemanticsConfig)
    score: ScoreConfig = field(default_factory=ScoreConfig)
    calibrate: CalibrateConfig = field(default_factory=CalibrateConfig)
    rounds: RoundsConfig = field(default_factory=RoundsConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)


SECTIONS: dict[str, type] = {
    "data": DataConfig,
    "sample": SampleConfig,
    "server": ServerConfig,
    "vllm": VllmConfig,
    "embed": EmbedConfig,
    "adapter": AdapterConfig,
    "semantics": SemanticsConfig,
    "score": ScoreConfig,
    "calibrate": CalibrateConfig,
    "rounds": RoundsConfig,
    "evaluate": EvaluateConfig,
    "report": ReportConfig,
    "cluster": ClusterConfig,
    "storage": StorageConfig,
}
