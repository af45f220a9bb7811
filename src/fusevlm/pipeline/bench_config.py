"""One TOML file per benchmark: datasets, models, and what every pair of them shares."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.config import (
    SECTIONS,
    Config,
    DataConfig,
    anchor,
    change_config,
    hint,
    make_config,
    read_toml,
)
from fusevlm.data.correctness import CRITERIA
from fusevlm.errors import InputError
from fusevlm.pipeline.ablations import ABLATIONS
from fusevlm.pipeline.bench_compare import FUSE, group_of

# key of a [[model]]: the section and key of a run's config
MODEL_KEYS: dict[str, tuple[str, str]] = {
    "model": ("sample", "model"),
    "dtype": ("sample", "dtype"),
    "device_map": ("sample", "device_map"),
    "towers": ("embed", "towers"),
    "device": ("embed", "device"),
    "adapter": ("adapter", "source"),
}


@dataclass(frozen=True)
class BenchConfig:
    """What is compared beyond the rows of every table."""

    scores: tuple[str, ...]  # score columns; all that there are if empty
    rows: tuple[str, ...]  # of FUSE and its ablations
    generations: tuple[int, ...]
    criteria: tuple[tuple[str, float | None], ...]  # with the level of a graded one
    curves: tuple[str, ...]  # the methods drawn over generations and criteria


@dataclass(frozen=True)
class Bench:
    """A benchmark: its name, a run's config by place (dataset × model), and what to compare."""

    name: str
    places: Mapping[str, Config]
    compare: BenchConfig


def read_bench(path: str | os.PathLike[str], changes: Sequence[str] = ()) -> Bench:
    """The benchmark of a TOML file; ``section.key=value`` changes what all places share."""
    source = Path(path)
    tree = read_toml(source)
    name = str(tree.pop("name", source.stem))
    compare = _compare(tree.pop("bench", {}), str(source))
    datasets = _tables(tree, "dataset", [f.name for f in fields(DataConfig)], str(source))
    models = _tables(tree, "model", list(MODEL_KEYS), str(source))
    for section in tree:
        known = [*SECTIONS, "bench", "dataset", "model", "name"]
        if section not in known:
            raise InputError(f"{source}: unknown section {section!r}.{hint(section, known)}")
    places = {}
    for dataset, data in datasets.items():
        for model, settings in models.items():
            own = {key: dict(value) for key, value in tree.items()}
            own["data"] = {**own.get("data", {}), **data}
            for key, value in settings.items():
                section, single = MODEL_KEYS[key]
                own.setdefault(section, {})[single] = value
            place = dataset if len(models) == 1 else f"{dataset}, {model}"
            config = make_config({"name": place, **own}, f"{source}, {place}")
            places[place] = change_config(anchor(config, source.parent), changes)
    return Bench(name, places, compare)


def _tables(
    tree: dict[str, Any], kind: str, known: Sequence[str], where: str
) -> dict[str, dict[str, Any]]:
    given = tree.pop(kind, None)
    if not isinstance(given, list) or not given:
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
                    f"{where}: [[{kind}]] {name!r} has no key {key!r}.{hint(key, known)}"
                )
        found[name] = table
    return found


def _compare(tree: Mapping[str, Any], where: str) -> BenchConfig:
    known = [f.name for f in fields(BenchConfig)]
    for key in tree:
        if key not in known:
            raise InputError(f"{where}: [bench] has no key {key!r}.{hint(key, known)}")
    rows = tree.get("rows", "ablations")
    return BenchConfig(
        scores=tuple(_strings(tree.get("scores", []), f"{where}: bench.scores")),
        rows=_rows(rows, where),
        generations=tuple(
            checks.count(n, f"{where}: bench.generations", least=2)
            for n in tree.get("generations", [])
        ),
        criteria=tuple(
            parse_criterion(text, where)
            for text in _strings(tree.get("criteria", []), f"{where}: bench.criteria")
        ),
        curves=tuple(_strings(tree.get("curves", list(FUSE)), f"{where}: bench.curves")),
    )


def _rows(given: Any, where: str) -> tuple[str, ...]:
    if isinstance(given, str):
        checks.choice(given, f"{where}: bench.rows", ("ablations", "all"))
        left_out = {"Sensitivity"} if given == "ablations" else set()
        return tuple(n for n, row in ABLATIONS.items() if group_of(row) not in left_out)
    for name in _strings(given, f"{where}: bench.rows"):
        if name not in ABLATIONS:
            raise InputError(f"{where}: bench.rows holds {name!r}.{hint(name, list(ABLATIONS))}")
    return tuple(given)


def parse_criterion(text: str, where: str) -> tuple[str, float | None]:
    """``rouge_l@0.3`` is a criterion with its level, ``exact_match`` one without."""
    name, at, level = text.partition("@")
    checks.choice(name, f"{where}: bench.criteria", tuple(CRITERIA))
    if not at:
        return name, None
    try:
        value = float(level)
    except ValueError as error:
        raise InputError(f"{where}: bench.criteria holds {text!r}; expected NAME@LEVEL.") from error
    return name, checks.fraction(value, f"{where}: the level of {text!r}")


def _strings(value: Any, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError(f"{where} is {value!r}; expected a list of strings.")
    return value
