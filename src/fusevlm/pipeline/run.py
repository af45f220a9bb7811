"""Running the stages: what is done is skipped, what is half done goes on, what is stale is refused.

A stage is stale when a config key it depends on, a file it read or an earlier stage's result has
changed since it was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.config import TRAIN, AdapterConfig, Config, DataConfig, EmbedConfig, as_tree
from fusevlm.errors import ArtefactError, InputError
from fusevlm.store import hold, runs
from fusevlm.store.files import digest_input
from fusevlm.store.runs import Manifest

Progress = Callable[[int, int], None]  # done, in all


@dataclass(frozen=True)
class Work:
    """What a stage is given: the run folder, the config, and where to say how far it is."""

    run: Path
    config: Config
    progress: Progress
    say: Callable[[str], None] = lambda text: None

    def folder(self, stage: str) -> Path:
        return self.run / stage


@dataclass(frozen=True)
class Stage:
    """The stages a stage reads and the config keys it depends on.

    The module of its name has ``make(work) -> counts`` and, where it reads files from outside the
    run, ``inputs(config) -> {name: path}``; and ``check(config)``, where it can refuse a config
    before any stage begins.
    """

    after: tuple[str, ...]
    keys: tuple[str, ...]  # sections, or single keys of other sections


PAIRS = ("train", "n_train")  # keys of [data] that are about the adapter's training pairs
KEPT = ("activations",)  # keys of [embed] that are about the judged queries alone
QUERIED = ("source", "statistic", "statistics")  # keys of [adapter] that are not about training
PRIOR = ("adapter.statistic", "adapter.statistics")

STAGES: dict[str, Stage] = {
    "data": Stage((), tuple(f"data.{k.name}" for k in fields(DataConfig) if k.name not in PAIRS)),
    "pairs": Stage(
        (),
        (
            *(f"data.{key}" for key in (*PAIRS, "seed", "images")),
            *(f"embed.{k.name}" for k in fields(EmbedConfig) if k.name not in KEPT),
        ),
    ),
    "train": Stage(
        ("pairs",),
        tuple(f"adapter.{k.name}" for k in fields(AdapterConfig) if k.name not in QUERIED),
    ),
    "sample": Stage(("data",), ("sample",)),
    "embed": Stage(("data",), ("embed",)),
    "adapter": Stage(("data", "embed", "train"), tuple(f"adapter.{key}" for key in QUERIED)),
    "semantics": Stage(("data", "sample"), ("semantics", "score.baselines")),
    "score": Stage(("data", "sample", "embed", "adapter", "semantics"), ("score", *PRIOR)),
    "calibrate": Stage(
        ("data", "sample", "embed", "adapter", "score"), ("calibrate", "score.layer", *PRIOR)
    ),
    "evaluate": Stage(("data", "sample", "embed", "adapter", "score", "calibrate"), ("evaluate",)),
    "report": Stage(("data", "sample", "evaluate"), ("report",)),
}

TRAINING = ("pairs", "train")  # stages that only a run which trains its adapter has

MISSING, INCOMPLETE, FRESH, STALE = "missing", "incomplete", "fresh", "stale"


@dataclass(frozen=True)
class State:
    """Where a stage stands, and for a stale one why."""

    kind: str
    reason: str = ""
    manifest: Manifest | None = None


def states(run: Path, config: Config, *, look_outside: bool = True) -> dict[str, State]:
    """The state of every stage under ``config``; without ``look_outside`` input files are trusted.

    The stages after a stale one are judged as if it were fresh: its own reason is what matters.
    """
    found: dict[str, State] = {}
    for name in STAGES:
        found[name] = _state(run, config, name, found, look_outside=look_outside)
    return found


def _state(
    run: Path, config: Config, name: str, earlier: Mapping[str, State], *, look_outside: bool
) -> State:
    if idle(name, config):
        return State(FRESH)
    manifest = runs.read_manifest(run, name)
    if manifest is None:
        return State(MISSING)
    now = settings_of(name, config)
    for key in sorted({*now, *manifest.settings}):
        was, new = manifest.settings.get(key), now.get(key)
        if was != new:
            return State(STALE, f"{key} was {was!r} and is now {new!r}", manifest)
    if look_outside:
        for what, digest in inputs_of(name, config).items():
            if manifest.inputs.get(what) != digest:
                return State(STALE, f"the files of {what} changed", manifest)
    for before in STAGES[name].after:
        above = earlier[before]
        if above.kind in (MISSING, INCOMPLETE):
            return State(STALE, f"{before} is {above.kind}", manifest)
        if above.manifest is not None and above.manifest.digest != manifest.upstream.get(before):
            return State(STALE, f"{before} was made again", manifest)
    return State(FRESH if manifest.complete else INCOMPLETE, "", manifest)


def idle(name: str, config: Config) -> bool:
    """Whether a run has nothing to do in a stage: its adapter is not trained there."""
    return name in TRAINING and config.adapter.source != TRAIN


def settings_of(name: str, config: Config) -> dict[str, Any]:
    """The config keys a stage depends on, by their full names."""
    tree = as_tree(config)
    found: dict[str, Any] = {}
    for key in STAGES[name].keys:
        section, _, single = key.partition(".")
        chosen = [single] if single else list(tree[section])
        found |= {f"{section}.{k}": tree[section][k] for k in chosen if k in tree[section]}
    return found


def inputs_of(name: str, config: Config) -> dict[str, str]:
    """Digests of the files outside the run that a stage reads."""
    look = getattr(_module(name), "inputs", None)
    paths: dict[str, Path] = {} if look is None else look(config)
    return {what: digest_input(path) for what, path in paths.items()}


def _module(name: str) -> Any:
    return import_module(f"fusevlm.pipeline.{name}")


def chosen_stages(only: str | None = None, to: str | None = None) -> list[str]:
    """All stages; the one that is named; or one with all that it rests on."""
    if only is not None:
        return [checks.known(only, STAGES, "stage")]
    if to is None:
        return list(STAGES)
    checks.known(to, STAGES, "stage")
    return [name for name in STAGES if name == to or _reads(to, name)]


def run_stages(
    run: Path,
    config: Config,
    *,
    only: str | None = None,
    to: str | None = None,
    redo: str | None = None,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[str], Progress] = lambda stage: lambda done, total: None,
    redo_command: Callable[[str], str] = lambda stage: f"fusevlm run CONFIG --redo {stage}",
) -> dict[str, Manifest]:
    """Bring the run up to date; the manifests of all chosen stages.

    ``only`` is one stage alone, ``to`` one stage with those it rests on. ``redo`` first removes
    that stage and those after it. ``redo_command`` is what a refusal tells the reader to do about a
    stale stage.
    """
    wanted = [name for name in chosen_stages(only, to) if not idle(name, config)]
    if not wanted:
        raise InputError(
            f"this run has no stage {only or to}: its adapter is {config.adapter.source!r}, and "
            f"only adapter.source = 'train' trains one."
        )
    for name in wanted:
        getattr(_module(name), "check", lambda config: None)(config)
    with hold(run):
        if runs.is_run(run):
            runs.read_run(run)  # refuses a foreign or newer folder
        if redo is not None:
            checks.known(redo, STAGES, "stage")
            if only is not None and _reads(only, redo):
                raise InputError(f"{only} alone rests on {redo}, which cannot be made again first.")
            for name in [redo, *_after(redo)]:
                runs.remove_stage(run, name)
        _refuse_stale(run, config, wanted, redo_command)
        runs.write_run(run, config)
        return {name: _bring(run, config, name, say, progress(name)) for name in wanted}


def _refuse_stale(
    run: Path, config: Config, wanted: Sequence[str], redo_command: Callable[[str], str]
) -> None:
    found = states(run, config)
    for name, state in found.items():
        needed = name in wanted or any(_reads(other, name) for other in wanted)
        if needed and state.kind == STALE:
            raise ArtefactError(
                f"{name} is stale: {state.reason}. Run: {redo_command(name)}\n"
                f"That makes {name} and the stages after it again; another run folder keeps both."
            )
    for before in STAGES[wanted[0]].after:
        if found[before].kind != FRESH:
            raise ArtefactError(
                f"{wanted[0]} needs {before}, which is {found[before].kind} in {run}. Make it "
                f"first, with fusevlm run."
            )


def _after(stage: str) -> list[str]:
    """The stages that rest on ``stage``."""
    return [name for name in STAGES if _reads(name, stage)]


def _reads(stage: str, other: str) -> bool:
    """Whether ``stage`` rests on ``other``, directly or not."""
    return any(before == other or _reads(before, other) for before in STAGES[stage].after)


def _bring(
    run: Path, config: Config, name: str, say: Callable[[str], None], progress: Progress
) -> Manifest:
    manifest = runs.read_manifest(run, name)
    if manifest is not None and manifest.complete:
        say(f"{name}: done before ({describe(manifest.counts)})")
        return manifest
    say(f"{name}: {'goes on' if manifest is not None else 'begins'}")
    upstream = {}
    for before in STAGES[name].after:
        if idle(before, config):
            continue
        above = runs.read_manifest(run, before)
        assert above is not None  # refused before
        upstream[before] = above.digest
    earlier = 0.0 if manifest is None else manifest.seconds
    begun = Manifest(
        name, settings_of(name, config), inputs_of(name, config), upstream, seconds=earlier
    )
    runs.write_manifest(run, begun)
    start = time.monotonic()
    try:
        counts = _module(name).make(Work(run, config, progress, say))
    except BaseException:
        _note_seconds(run, begun, start)
        raise
    seconds = round(earlier + time.monotonic() - start, 2)
    done = replace(
        begun,
        complete=True,
        digest=runs.digest_stage(run / name),
        seconds=seconds,
        counts=counts,
    )
    runs.write_manifest(run, done)
    say(f"{name}: {seconds:.1f} s ({describe(counts)})")
    return done


def _note_seconds(run: Path, begun: Manifest, start: float) -> None:
    """Keep the time an interrupted stage took; a full disk must not hide what went wrong."""
    try:
        seconds = round(begun.seconds + time.monotonic() - start, 2)
        runs.write_manifest(run, replace(begun, seconds=seconds))
    except ArtefactError:
        return


def describe(counts: Mapping[str, int]) -> str:
    """Such as ``500 calibration, 1500 test``."""
    return ", ".join(f"{value} {name}" for name, value in counts.items())
