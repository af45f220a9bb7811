"""One TOML file per run: a section per stage, unknown keys refused, every value declared."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from fusevlm import checks
from fusevlm.checks import FRACTION
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import InputError
from fusevlm.settings import (
    DEFAULT_ONLY,
    MINILM,
    NONE,
    OF_ACTIVATIONS,
    OF_ADAPTER,
    OF_PICTURES,
    OFFICIAL,
    PAPER,
    PAPER_ONLY,
    SECTIONS,
    TRAIN,
    AdapterConfig,
    Config,
)


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
        if not os.path.isfile(source):  # also of a pipe, which would never end
            raise FileNotFoundError(2, "there is no such file")
        return tomllib.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # also of letters, and of endless numbers
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


def as_toml(config: Config) -> str:
    """The config as a file would have it, every key with its value."""
    tree = as_tree(config)
    lines = [f"name = {_literal(tree.pop('name'))}"]
    for section, keys in tree.items():
        lines += ["", f"[{section}]", *(f"{key} = {_literal(v)}" for key, v in keys.items())]
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_literal(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


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
    if kind == tuple[int, ...]:
        if isinstance(value, list | tuple) and all(type(x) is int and x >= 0 for x in value):
            return tuple(value)
        raise InputError(f"{where} is {value!r}; expected a list of whole numbers from 0.")
    if kind == tuple[float, ...]:
        if isinstance(value, list | tuple) and all(map(_is_number, value)):
            return tuple(float(item) for item in value)
        raise InputError(f"{where} is {value!r}; expected a list of numbers.")
    if kind is float and type(value) is int and _is_number(value):
        return float(value)
    if kind is str and type(value) in (int, float):
        return str(value)
    if type(value) is not kind:
        words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
        raise InputError(f"{where} is {value!r}; expected {words[kind]}.")
    return value


def _is_number(value: Any) -> bool:
    """Whether it is one that floats hold."""
    return type(value) in (int, float) and not abs(value) > sys.float_info.max


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):
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
    if value and value not in (EMBEDDED, TRAIN, NONE) and os.path.exists(home / value):
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
    found = {"sample.device": config.sample.device}
    if config.embed.towers != NONE:
        found["embed.device"] = config.embed.device
    if config.adapter.source != NONE:
        found["adapter.device"] = config.adapter.device
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


def prior_statistics(adapter: AdapterConfig, *, pictures: bool = True) -> dict[str, str]:
    """The statistics that FUSE is given, by the name it has there: the one that is s, and others.

    Without an adapter there are none of its own, without pictures none of them.
    """
    named = {"s": adapter.statistic, **{name: name for name in adapter.statistics}}
    gone = {"s", *OF_ADAPTER} if adapter.source == NONE else set()
    gone |= set() if pictures else set(OF_PICTURES)
    return {name: own for name, own in named.items() if own not in gone}


def activation_statistics(adapter: AdapterConfig, *, pictures: bool = True) -> tuple[str, ...]:
    """The statistics a config names that are of the towers' activations."""
    named = dict.fromkeys(prior_statistics(adapter, pictures=pictures).values())
    return tuple(name for name in named if name in OF_ACTIVATIONS)


def _check_statistics(config: Config) -> None:
    """Statistics are known, and have what they are computed from."""
    for name in config.adapter.statistics:
        checks.known(name, (*OF_ADAPTER, *OF_ACTIVATIONS), "adapter.statistics:")
    named = activation_statistics(config.adapter)
    if config.embed.towers == NONE and (named or config.adapter.source != NONE):
        raise InputError(
            "embed.towers = 'none' leaves no vectors for a prior: set adapter.source = 'none', and "
            "name no statistic of activations."
        )
    if config.embed.towers in (NONE, MINILM) and config.adapter.source == TRAIN:
        raise InputError(
            f"adapter.source = 'train' needs towers of images and texts; embed.towers is "
            f"{config.embed.towers!r}."
        )
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
        if semantics.wording:
            _check_wording(semantics.wording)
        if not config.sample.layers:
            raise InputError("sample.layers is empty; name at least one, such as 'last'.")
        if config.score.layer not in config.sample.layers:
            raise InputError(
                f"score.layer is {config.score.layer!r}, which sample.layers does not keep: "
                f"{', '.join(config.sample.layers)}."
            )
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _check_wording(wording: str) -> None:
    """A wording is filled in with the answer, and perhaps the question, and with nothing else."""
    try:
        wording.format(answer="", question="")
        good = "{answer}" in wording
    except (LookupError, ValueError, AttributeError):
        good = False
    if not good:
        raise InputError(
            f"semantics.wording is {wording!r}; it must hold {{answer}}, may hold {{question}}, "
            f"and no other braces."
        )


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
