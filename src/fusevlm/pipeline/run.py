"""Running the stages: what is done is skipped, what is half done goes on, what is stale is refused.

A stage is stale when a config key it depends on, a file it read or an earlier stage's result has
changed since it was made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from fusevlm import checks
from fusevlm.config import as_tree
from fusevlm.errors import ArtefactError, InputError
from fusevlm.models.budget import Shared
from fusevlm.pipeline.engine import Engine, InProcess
from fusevlm.pipeline.parts import ALL, NEVER, PASSING, Progress
from fusevlm.settings import TRAIN, AdapterConfig, Config, DataConfig, EmbedConfig
from fusevlm.store import hold, runs
from fusevlm.store.files import digest_input, refuse_links
from fusevlm.store.runs import Manifest


@dataclass(frozen=True)
class Work:
    """What a stage is given: the run folder, the config, and where to say how far it is."""

    run: Path
    config: Config
    progress: Progress
    say: Callable[[str], None] = lambda text: None
    again: str = PASSING  # which failed rows are tried again: NEVER, PASSING or ALL
    engine: Engine = field(default_factory=InProcess)  # who makes parts
    worker: str = ""  # the name of a process that works beside others; none alone
    shared: Shared | None = None  # what such processes use of a service together

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
        ("data", "sample", "embed", "adapter", "score"),
        ("calibrate", "rounds.use", "rounds.tiers", "score.layer", *PRIOR),
    ),
    "evaluate": Stage(
        ("data", "sample", "embed", "adapter", "score", "calibrate"), ("evaluate", "rounds")
    ),
    "report": Stage(("data", "sample", "evaluate"), ("report",)),
}

# settings that change no result: a stage made with others is not stale
NEUTRAL = frozenset(
    ["sample.batch", "sample.device", "sample.device_map", "sample.states", "embed.batch",
     "embed.device", "adapter.device", "semantics.device"]
)  # fmt: skip
# settings that name files, by the inputs that are read there: other paths to the same are the same
FILES = {key: (key,) for key in (
    "data.calibration", "data.test", "sample.model", "sample.gram", "embed.towers",
    "adapter.source", "semantics.nli", "semantics.generator",
)} | {"data.folder": ("questions", "annotations")}  # fmt: skip

TRAINING = ("pairs", "train")  # stages that only a run which trains its adapter has

MISSING, INCOMPLETE, FRESH, STALE = "missing", "incomplete", "fresh", "stale"


@dataclass(frozen=True)
class State:
    """Where a stage stands, and for a stale one why."""

    kind: str
    reason: str = ""
    manifest: Manifest | None = None


def states(
    run: Path, config: Config, *, look_outside: bool = True, gone: Collection[str] = ()
) -> dict[str, State]:
    """The state of every stage under ``config``; without ``look_outside`` input files are trusted.

    The stages after a stale one are judged as if it were fresh: its own reason is what matters.
    Those that are ``gone`` are judged as if they had never been made.
    """
    found: dict[str, State] = {}
    for name in STAGES:
        state = State(MISSING)
        if name not in gone or idle(name, config):
            state = _state(run, config, name, found, look_outside=look_outside)
        found[name] = state
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
    inputs = inputs_of(name, config) if look_outside else manifest.inputs
    for key in sorted({*now, *manifest.settings} - NEUTRAL):
        was, new = manifest.settings.get(key), now.get(key)
        if was != new and not _same_files(key, manifest.inputs, inputs):
            return State(STALE, f"{key} was {was!r} and is now {new!r}", manifest)
    for what, digest in inputs.items():
        if manifest.inputs.get(what) != digest:
            return State(STALE, f"the files of {what} changed", manifest)
    for before in STAGES[name].after:
        above = earlier[before]
        if above.kind in (MISSING, INCOMPLETE):
            return State(STALE, f"{before} is {above.kind}", manifest)
        if above.manifest is not None and above.manifest.digest != manifest.upstream.get(before):
            return State(STALE, f"{before} was made again", manifest)
    return State(FRESH if manifest.complete else INCOMPLETE, "", manifest)


def _same_files(key: str, before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether a setting names, by another path, the files it named before."""
    known = FILES.get(key, ())
    names = {name for name in (*before, *now) if name in known or name.startswith(f"{key} ")}
    return bool(names) and all(before.get(name) == now.get(name) for name in names)


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
    if found.get("data.images"):
        found["data.images"] = _beside(config)
    return {key: value for key, value in found.items() if key not in NEUTRAL}


def _beside(config: Config) -> str:
    """The folder of images as seen from the tables, which may be moved together with it."""
    data = config.data
    home = data.folder or str(Path(data.calibration or data.test or ".").parent)
    return Path(os.path.relpath(data.images, home)).as_posix()


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
    again: str = PASSING,
    before: Callable[[Sequence[str]], None] = lambda stages: None,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[str], Progress] = lambda stage: lambda *_: None,
    redo_command: Callable[[str], str] = lambda stage: f"fusevlm run CONFIG --redo {stage}",
    engine: Engine | None = None,
) -> dict[str, Manifest]:
    """Bring the run up to date; the manifests of all chosen stages.

    ``only`` is one stage alone, ``to`` one stage with those it rests on. ``redo`` first sets
    that stage and those after it aside. ``again`` says which failed rows of finished stages are
    tried again; where that changes a stage, those after it are set aside and made anew.
    ``before`` is told the stages that will be made, and may refuse before anything is touched.
    ``redo_command`` is what a refusal tells the reader to do about a stale stage. ``engine`` makes
    the parts of stages that have some; this process if None.
    """
    wanted = [name for name in chosen_stages(only, to) if not idle(name, config)]
    if not wanted:
        raise InputError(
            f"this run has no stage {only or to}: its adapter is {config.adapter.source!r}, and "
            f"only adapter.source = 'train' trains one."
        )
    redone = _redone(redo, only)
    with hold(run):
        left, compared = check_run(
            run, config, wanted, redone=redone, again=again, redo_command=redo_command
        )
        before(left)
        # nothing was touched until here
        for name in redone:
            _set_aside(run, name, say)
        runs.write_run(run, config)
        work = Work(run, config, lambda *_: None, say, again, engine or InProcess())
        return _bring_all(work, wanted, progress, compared)


def check_run(
    run: Path,
    config: Config,
    wanted: Sequence[str],
    *,
    redone: Collection[str] = (),
    again: str = PASSING,
    redo_command: Callable[[str], str] = lambda stage: f"fusevlm run CONFIG --redo {stage}",
) -> tuple[list[str], set[str]]:
    """Refuse what stands in the way of some stages in the run's own folder and in the config.

    The stages that would be made, and those before them whose files were compared. Nothing is
    touched.
    """
    _refuse_foreign(run)
    found = states(run, config, gone=redone)
    _refuse_stale(run, found, wanted, redo_command)
    left = [name for name in wanted if found[name].kind != FRESH]
    for name in left:
        getattr(_module(name), "check", lambda config: None)(config)
    retried = [n for n, s in found.items() if n in wanted and _failed(s.manifest, again)]
    return left, _compare(run, config, {*left, *retried}, set(left))


def _redone(redo: str | None, only: str | None) -> list[str]:
    """The stages that are made again: the one that is named and those after it."""
    if redo is None:
        return []
    checks.known(redo, STAGES, "stage")
    if only is not None and _reads(only, redo):
        raise InputError(f"{only} alone rests on {redo}, which cannot be made again first.")
    return [redo, *_after(redo)]


def _refuse_foreign(run: Path) -> None:
    """Refuse a folder that is not ours to write in: another's, a newer one, one with links."""
    if runs.is_run(run):
        runs.read_run(run)
        refuse_links(run)
        return
    taken = sorted(name for name in STAGES if (run / name).exists())
    if taken:
        raise ArtefactError(
            f"{run} is no run folder, and has a {taken[0]!r} that is somebody else's. Choose "
            f"another folder with --run."
        )


def _compare(run: Path, config: Config, made: Collection[str], known: Collection[str]) -> set[str]:
    """Refuse damage in what the stages that are ``made`` rest on, but for the ``known``.

    Those that are good now, the known ones included.
    """
    found = set(known)
    for name in STAGES:
        needed = any(name in STAGES[other].after for other in made)
        if needed and name not in found and not idle(name, config):
            runs.check_stage(run, name)
            found.add(name)
    return found


def _bring_all(
    work: Work, wanted: Sequence[str], progress: Callable[[str], Progress], compared: set[str]
) -> dict[str, Manifest]:
    """Make the wanted stages one after the other.

    What each rests on is compared once before, but for what was ``compared`` already.
    """
    found: dict[str, Manifest] = {}
    for name in wanted:
        if _outdated(work.run, work.config, name):  # by this command, or the one it goes on with
            _set_aside(work.run, name, work.say)
        before = runs.read_manifest(work.run, name)
        if before is None or not before.complete or _failed(before, work.again):
            compared = _compare(work.run, work.config, [name], compared)
        found[name] = _bring(replace(work, progress=progress(name)), name)
    return found


def _set_aside(run: Path, name: str, say: Callable[[str], None]) -> None:
    target = runs.set_aside(run, name)
    if target is not None:
        say(f"{name}: set aside as {target.name}")


def _outdated(run: Path, config: Config, name: str) -> bool:
    """Whether a stage was made from earlier results of the stages it reads."""
    manifest = runs.read_manifest(run, name)
    if manifest is None:
        return False
    above = [(b, runs.read_manifest(run, b)) for b in STAGES[name].after if not idle(b, config)]
    return any(m is not None and m.digest != manifest.upstream.get(b) for b, m in above)


def _refuse_stale(
    run: Path,
    found: Mapping[str, State],
    wanted: Sequence[str],
    redo_command: Callable[[str], str],
) -> None:
    for name, state in found.items():
        needed = name in wanted or any(_reads(other, name) for other in wanted)
        if needed and state.kind == STALE and not _waits(name, state, found, wanted):
            raise ArtefactError(
                f"{name} is stale: {state.reason}. Run: {redo_command(name)}\n"
                f"That makes {name} and the stages after it again; the old ones are set aside."
            )
    for before in STAGES[wanted[0]].after:
        if found[before].kind != FRESH:
            raise ArtefactError(
                f"{wanted[0]} needs {before}, which is {found[before].kind} in {run}. Make it "
                f"first, with fusevlm run."
            )


def _waits(name: str, state: State, found: Mapping[str, State], wanted: Collection[str]) -> bool:
    """Whether a stage is stale only until one before it, which is wanted too, is done."""
    reasons = {
        f"{before} is {found[before].kind}"
        for before in STAGES[name].after
        if before in wanted and found[before].kind in (MISSING, INCOMPLETE)
    }
    return state.reason in reasons


def _after(stage: str) -> list[str]:
    """The stages that rest on ``stage``."""
    return [name for name in STAGES if _reads(name, stage)]


def _reads(stage: str, other: str) -> bool:
    """Whether ``stage`` rests on ``other``, directly or not."""
    return any(before == other or _reads(before, other) for before in STAGES[stage].after)


def _bring(work: Work, name: str) -> Manifest:
    run, config, say = work.run, work.config, work.say
    manifest = runs.read_manifest(run, name)
    if manifest is not None and manifest.complete:
        left = _failed(manifest, work.again)
        if not left:
            say(f"{name}: done before ({describe(manifest.counts)})")
            return manifest
        say(f"{name}: {left} failed {'query' if left == 1 else 'queries'} may be tried again")
    else:
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
        counts = _module(name).make(work)
    except BaseException:
        _note_seconds(run, begun, start)
        raise
    seconds = round(earlier + time.monotonic() - start, 2)
    for what, digest in inputs_of(name, config).items():
        if begun.inputs.get(what) != digest:
            raise ArtefactError(
                f"the files of {what} changed while {name} was made. Make it again: --redo {name}."
            )
    files = runs.file_digests(run / name)
    done = replace(
        begun,
        complete=True,
        digest=runs.digest_of(files),
        files=files,
        notes=runs.note_digests(run / name),
        seconds=seconds,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        counts=counts,
    )
    runs.write_manifest(run, done)
    say(f"{name}: {seconds:.1f} s ({describe(counts)})")
    return done


def _failed(manifest: Manifest | None, again: str) -> int:
    """How many failed rows of a finished stage are to be tried again."""
    if manifest is None or not manifest.complete:
        return 0
    kind = {NEVER: "", PASSING: "passing", ALL: "failed"}[again]
    return manifest.counts.get(kind, 0) if "passing" in manifest.counts else 0


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
