"""A benchmark: many runs (datasets × models), each compared by the one engine, in one table.

Every place is an ordinary run folder whose methods are all baselines and rows of FUSE; what is
added here are the curves over samples and criteria, and the tables over all places.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from fusevlm import __version__, checks, store
from fusevlm.config import anchor, change_config, limited, make_config, read_toml
from fusevlm.config import tables as typed_tables
from fusevlm.data.correctness import ALL_OR_NOTHING, CRITERIA
from fusevlm.errors import ArtefactError, InputError
from fusevlm.pipeline.curves import over_criteria_of, over_samples_of
from fusevlm.pipeline.evaluate import read_results
from fusevlm.pipeline.figures import write_bench
from fusevlm.pipeline.methods import (
    METHODS,
    check_methods,
    find_method,
    rows_of,
    scores_of_methods,
)
from fusevlm.pipeline.parts import Progress
from fusevlm.pipeline.report import check_report
from fusevlm.pipeline.run import STAGES, TRAINING, idle, run_stages
from fusevlm.pipeline.table import Scored
from fusevlm.pipeline.train import share_adapters
from fusevlm.render import tables
from fusevlm.render.results import Cell, Curve, Place, Results, Row
from fusevlm.scores import SCORES, needs_of
from fusevlm.settings import SECTIONS, CalibrateConfig, Config, DataConfig, RowConfig, SweepConfig
from fusevlm.store.files import AnyPath, refuse_links, slug
from fusevlm.store.runs import SECONDS, check_stage, read_manifest, require_whole
from fusevlm.store.tables import csv_bytes
from fusevlm.types import Queries

KIND, FOLDER, FILE, VERSION = "fusevlm.curves", "curves", "curves.json", 1
MEANINGS = {
    "string": "normalised-string equality",
    "nli": "bidirectional entailment",
    "sentences": "sentence-encoder similarity",
    "none": "none",
}
# key of a [[model]]: the section and key of a run's config
MODEL_KEYS: dict[str, tuple[str, str]] = {
    "model": ("sample", "model"),
    "dtype": ("sample", "dtype"),
    "device_map": ("sample", "device_map"),
    "towers": ("embed", "towers"),
    "device": ("embed", "device"),
    "adapter": ("adapter", "source"),
}
Say = Callable[[str], None]
Progresses = Callable[[str], Progress]


@dataclass(frozen=True)
class Curves:
    """What is drawn beyond the tables: over how many samples, which criteria, which methods."""

    samples: tuple[int, ...] = ()
    criteria: tuple[tuple[str, float | None], ...] = ()  # with the level of a graded one
    methods: tuple[str, ...] = ("practical", "paper")


@dataclass(frozen=True)
class Bench:
    """A benchmark: its name, a run's config by place (dataset × model), and what to draw."""

    name: str
    places: Mapping[str, Config]
    curves: Curves


def read_bench(path: AnyPath, changes: Sequence[str] = (), limit: int | None = None) -> Bench:
    """The benchmark of a TOML file; ``section.key=value`` changes what all places share."""
    source = Path(path)
    tree = read_toml(source)
    name = str(tree.pop("name", source.stem))
    asked = _mapping(tree.pop("bench", {}), "bench", str(source))
    rows, curves = _bench(asked, str(source))
    datasets = _tables(tree, "dataset", [f.name for f in fields(DataConfig)], str(source))
    models = _tables(tree, "model", list(MODEL_KEYS), str(source))
    for section, value in tree.items():
        known = [*SECTIONS, "bench", "dataset", "model", "name"]
        if section not in known:
            raise InputError(f"{source}: unknown section {section!r}.{checks.hint(section, known)}")
        _mapping(value, section, str(source))
    places = {}
    for dataset, data in datasets.items():
        for model, settings in models.items():
            own = {key: dict(value) for key, value in tree.items()}
            own["data"] = {**own.get("data", {}), **data}
            for key, value in settings.items():
                section, single = MODEL_KEYS[key]
                own.setdefault(section, {})[single] = value
            place = dataset if len(models) == 1 else f"{dataset}, {model}"
            config = make_config({"name": place, **_with_rows(own, asked)}, f"{source}, {place}")
            config = change_config(anchor(config, source.parent), changes)
            places[place] = limited(_with_methods(config, rows), limit)
            _check_methods(places[place], curves, f"{source}, {place}")
            check_report(places[place])
    folders: dict[str, str] = {}
    for place in places:
        if folders.setdefault(slug(place), place) != place:
            raise InputError(
                f"{source}: {folders[slug(place)]!r} and {place!r} would share the folder "
                f"{slug(place)}. Rename one."
            )
    return Bench(name, places, curves)


def _with_rows(own: dict[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """[[bench.row]] and [[bench.sweep]] are rows and sweeps of every place."""
    found = dict(own.get("calibrate", {}))
    for key in ("row", "sweep"):
        if key in asked:
            found[key] = [*found.get(key, []), *asked[key]]
    return {**own, "calibrate": found} if found else own


def _check_methods(config: Config, curves: Curves, where: str) -> None:
    """Refuse, before anything runs, a method or row that is none, in the table or the curves."""
    try:
        check_methods(config.calibrate)
        for name in curves.methods:
            layer = find_method(name, config.calibrate).layer
            if layer and layer != config.score.layer:
                raise InputError(
                    f"bench.curves: {name!r} reads the layer {layer!r}; curves are drawn from "
                    f"score.layer, {config.score.layer!r}."
                )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _with_methods(config: Config, rows: Sequence[str]) -> Config:
    """All baselines and the rows of FUSE, unless the config names methods itself."""
    if config.calibrate.methods != CalibrateConfig().methods:
        return config
    methods = (*(config.score.baselines or SCORES), *rows)
    return replace(config, calibrate=replace(config.calibrate, methods=methods))


def _tables(
    tree: dict[str, Any], kind: str, known: Sequence[str], where: str
) -> dict[str, dict[str, Any]]:
    given = tree.pop(kind, None)
    if not isinstance(given, list) or not given or not all(isinstance(t, dict) for t in given):
        raise InputError(f"{where}: name at least one [[{kind}]].")
    found: dict[str, dict[str, Any]] = {}
    for number, table in enumerate(given, 1):
        name = table.pop("name", None)
        if not isinstance(name, str) or not name:
            raise InputError(f"{where}: [[{kind}]] number {number} has no name.")
        if name in found:
            raise InputError(f"{where}: two [[{kind}]] are called {name!r}.")
        for key in table:
            if key not in known:
                raise InputError(
                    f"{where}: [[{kind}]] {name!r} has no key {key!r}.{checks.hint(key, known)}"
                )
        found[name] = table
    return found


def _bench(tree: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], Curves]:
    """The rows of FUSE and the curves that [bench] asks for."""
    known = ("rows", "samples", "criteria", "curves", "row", "sweep")
    for key in tree:
        if key not in known:
            raise InputError(f"{where}: [bench] has no key {key!r}.{checks.hint(key, known)}")
    counts = tree.get("samples", [])
    if not isinstance(counts, list):
        raise InputError(f"{where}: bench.samples is {counts!r}; expected a list of numbers.")
    samples = tuple(checks.count(n, f"{where}: bench.samples", least=0) for n in counts)
    criteria = _strings(tree.get("criteria", []), f"{where}: bench.criteria")
    drawn = _strings(tree.get("curves", list(Curves().methods)), f"{where}: bench.curves")
    for key, kind in {"row": RowConfig, "sweep": SweepConfig}.items():
        typed_tables(tree.get(key, []), kind, f"{where}: bench.{key}")
    try:
        rows = rows_of(_rows_wanted(tree.get("rows", "ablations")))
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    levels = tuple(parse_criterion(text, where) for text in criteria)
    return rows, Curves(samples, levels, tuple(drawn))


def parse_criterion(text: str, where: str) -> tuple[str, float | None]:
    """``rouge_l@0.3`` is a criterion with its level, ``exact_match`` one without."""
    name, at, level = text.partition("@")
    checks.choice(name, f"{where}: bench.criteria", tuple(CRITERIA))
    if not at:
        return name, None
    if name in ALL_OR_NOTHING:
        raise InputError(f"{where}: bench.criteria: {name} is 0 or 1 and takes no level.")
    try:
        value = float(level)
    except ValueError as error:
        raise InputError(f"{where}: bench.criteria holds {text!r}; expected NAME@LEVEL.") from error
    return name, checks.fraction(value, f"{where}: the level of {text!r}")


def _rows_wanted(value: Any) -> str | list[str]:
    return value if isinstance(value, str) else _strings(value, "bench.rows")


def _mapping(value: Any, section: str, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {section} is {value!r}; expected a section [{section}].")
    return value


def _strings(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{where} is {value!r}; expected a list of strings.")
    return value


def run_bench(
    bench: Bench,
    out: Path,
    *,
    redo: str | None = None,
    say: Say = lambda text: None,
    progress: Progresses = lambda what: lambda *_: None,
    redo_command: Callable[[str], str] = lambda stage: f"fusevlm bench CONFIG --redo {stage}",
) -> Results:
    """Everything a benchmark asks for; tables, curves and JSON are written to ``out``."""
    if out.is_dir():
        refuse_links(out)
    found: dict[str, dict[str, Cell]] = {}
    places, curves = [], []
    again = redo in TRAINING
    bring = partial(run_stages, say=say, progress=progress, redo_command=redo_command)

    def bring_adapter(folder: Path, config: Config) -> None:
        say(f"== {folder.name}")
        bring(folder, config, to="train", redo=redo if again else None)

    for name, config in share_adapters(bench.places, out, bring_adapter).items():
        say(f"== {name}")
        run = out / slug(name)
        bring(run, config, to="report", redo="adapter" if again else redo)
        results = read_results(run)
        places.append(_place(name, run, config, results))
        found[name] = cells_of(run, config, results)
        curves += _curves(run, name, config, bench.curves, progress)
    first = next(iter(bench.places.values()))  # rows of one's own are those of every place
    whole = Results(bench.name, places, _rows(found, first.calibrate), curves)
    write(whole, out)
    return whole


def cells_of(run: Path, config: Config, results: Mapping[str, Any]) -> dict[str, Cell]:
    """A cell per method of a run."""
    seconds: dict[str, float] = {}
    for stage in ("calibrate", "score"):
        path = require_whole(run, stage) / SECONDS
        seconds |= store.read_json(path, f"Make it again: --redo {stage}.")
    figures = results["slices"][0]["methods"]
    gone = [n for n in config.calibrate.names() if n not in {*figures, *results["absent"]}]
    if gone:
        raise ArtefactError(f"{run} has no figures of {gone[0]}. Make them: --redo evaluate.")
    return {
        name: Cell(missing=results["absent"][name])
        if name in results["absent"]
        else Cell(
            figures[name],
            results["differences"].get(name),
            results["gains"].get(name),
            seconds.get(name),
        )
        for name in config.calibrate.names()
    }


def _place(name: str, run: Path, config: Config, results: Mapping[str, Any]) -> Place:
    score = read_manifest(run, "score")
    whole = results["slices"][0]
    return Place(
        name,
        results["calibration"],
        whole["queries"],
        0 if score is None else score.counts["failed"],
        whole["base_accuracy"],
        results["best_baseline"],
        MEANINGS[config.semantics.meanings],
        results["rounds"],
    )


def _rows(found: Mapping[str, Mapping[str, Cell]], config: CalibrateConfig) -> list[Row]:
    rows = []
    for name in dict.fromkeys(name for cells in found.values() for name in cells):
        method = find_method(name, config)
        note = method.note
        if method.equals:
            note = f"ranks as {METHODS[method.equals].title}: {method.reason}"
        cells = {
            place: own.get(name, Cell(missing="not asked for")) for place, own in found.items()
        }
        rows.append(Row(name, method.title, method.group, cells, note))
    return rows


@dataclass(frozen=True)
class _Drawn:
    """The curves of one place, and from what: kept, so that a crash costs one place at most."""

    key: str
    curves: list[Curve]


def _curves(
    run: Path, name: str, config: Config, wanted: Curves, progress: Progresses
) -> list[Curve]:
    if not (wanted.samples or wanted.criteria):
        return []
    manifest = read_manifest(run, "score")
    assert manifest is not None
    facts = [__version__, manifest.digest, asdict(wanted), asdict(config.calibrate)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    classes: dict[str, type] = {"_Drawn": _Drawn, "Curve": Curve}
    try:
        kept: _Drawn = store.load_object(run / FOLDER, FILE, KIND, VERSION, classes, {}, of=_Drawn)
        if kept.key == key:
            return kept.curves
    except ArtefactError:
        pass  # none yet, or of another version
    for stage in (*STAGES["score"].after, "score"):
        if not idle(stage, config):
            check_stage(run, stage)
    drawn = [find_method(m, config.calibrate) for m in wanted.methods]
    names = scores_of_methods(drawn, config.score.baselines or tuple(SCORES))
    scored, needs = Scored(run, config), {*needs_of(names), "embeddings"}
    known = scored.known(needs).take(slice(None))

    def tests() -> Iterator[Queries]:
        for block in scored.tests(needs):
            yield block.take(slice(None))

    found = []
    if wanted.samples:
        found.append(
            over_samples_of(
                name, known, tests, wanted.samples, wanted.methods, config.calibrate,
                progress("samples"),
            )
        )  # fmt: skip
    if wanted.criteria:
        found.append(
            over_criteria_of(name, known, tests, wanted.criteria, wanted.methods, config.calibrate)
        )
    store.save_object(run / FOLDER, FILE, KIND, VERSION, _Drawn(key, found))
    return found


def write(results: Results, out: Path) -> None:
    """results.json, .md, .csv, .tex and the curves as SVG and PDF."""
    store.save_json(out / "results.json", asdict(results))
    index = write_bench(results, out)
    store.save(out / "results.md", f"{tables.markdown(results)}\n{index}".encode())
    store.save(out / "results.csv", csv_bytes(tables.CSV_HEADER, tables.csv_rows(results)))
    store.save(out / "results.tex", tables.latex(results).encode())
