"""A run folder: the config, one folder per stage, and in each a manifest of how it was made.

    RUN/run.json            kind, schema version, fusevlm version, config
    RUN/STAGE/stage.json    settings, digests of inputs and of earlier stages, counts, complete
    RUN/.lock               held while a process works on the run

A stage's manifest is written first as incomplete, last as complete. Its digest is taken from the
contents of its files, never from times, so making a stage again with the same result changes
nothing for the stages after it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fusevlm import __version__
from fusevlm.config import as_tree, make_config
from fusevlm.errors import ArtefactError
from fusevlm.settings import Config
from fusevlm.store.files import LOCK, digest_file, folders_in, read_sealed, save_sealed
from fusevlm.store.parts import json_digests
from fusevlm.store.places import POINTER, place_of

KIND, SCHEMA_VERSION = "fusevlm.run", 2
RUN, STAGE, SECONDS = "run.json", "stage.json", "seconds.json"
SERVER = "server.json"  # what a service gave, and what was used of it
NOTES = (STAGE, SECONDS, SERVER, LOCK, POINTER)  # files that are about a stage and no result of it
OLD = re.compile(r"([a-z]+)\.old-(\d+)")  # a stage that was set aside
SPOILT = re.compile(r"\..+\.[0-9a-f]{8}\.tmp|part-\d{5,}\..+\.damaged(-\d+)?")


@dataclass(frozen=True)
class Manifest:
    """How a stage was made."""

    stage: str
    settings: dict[str, Any]  # the config keys it depends on, as section.key
    inputs: dict[str, str]  # digests of files outside the run, by name
    upstream: dict[str, str]  # digests of the stages it reads
    complete: bool = False
    digest: str = ""  # of its own files, once complete
    seconds: float = 0.0
    date: str = ""  # of the day it was completed, UTC
    counts: dict[str, int] = field(default_factory=dict)
    # digests, but of the parts' rows and arrays; and of notes that are no result
    files: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    fusevlm: str = __version__
    schema_version: int = SCHEMA_VERSION


def write_run(run: Path, config: Config) -> None:
    """Note the config in the run folder."""
    head = {"kind": KIND, "schema_version": SCHEMA_VERSION, "fusevlm": __version__}
    save_sealed(run / RUN, {**head, "config": as_tree(config)})


def is_run(folder: Path) -> bool:
    """Whether a folder is the run of a config."""
    return (folder / RUN).is_file()


def read_run(run: Path) -> Config:
    """The config of a run folder, or why the folder cannot be used."""
    if not is_run(run):
        raise ArtefactError(f"{run} is no run folder: {RUN} is missing. Make one: fusevlm run.")
    head = read_sealed(run / RUN, "Choose another --run.")
    if head.get("kind") != KIND:
        raise ArtefactError(f"{run / RUN} holds {head.get('kind')!r}, not {KIND!r}.")
    _same_schema(head, run / RUN)
    if not isinstance(head.get("config"), dict):
        raise ArtefactError(f"{run / RUN} holds no config. Choose another --run.")
    return make_config(head["config"], str(run / RUN))


def read_manifest(run: Path, stage: str) -> Manifest | None:
    """A stage's manifest; None where the stage was never begun."""
    path = run / stage / STAGE
    if not path.exists():
        return None
    cure = f"Make it again: --redo {stage}."
    head = read_sealed(path, cure)
    _same_schema(head, path)
    try:
        return _typed(Manifest(**head), stage)
    except TypeError as error:
        raise ArtefactError(f"{path} is damaged: {error}. {cure}") from error


def _typed(manifest: Manifest, stage: str) -> Manifest:
    """A manifest whose fields are what they should be, as those of a received run may not be."""
    if manifest.stage != stage:
        raise TypeError(f"it is of the stage {manifest.stage!r}")
    values: dict[str, type] = {
        "inputs": str, "upstream": str, "files": str, "notes": str, "counts": int,
    }  # fmt: skip
    good = isinstance(manifest.settings, dict) and isinstance(manifest.complete, bool)
    good = good and all(isinstance(v, str) for v in (manifest.digest, manifest.date))
    good = good and type(manifest.seconds) in (int, float)
    for name, kind in values.items():
        held = getattr(manifest, name)
        good = good and isinstance(held, dict) and all(type(v) is kind for v in held.values())
    if not good:
        raise TypeError("a field is not of its type")
    return manifest


def write_manifest(run: Path, manifest: Manifest) -> None:
    """Write a stage's manifest."""
    save_sealed(run / manifest.stage / STAGE, asdict(manifest))


def require(run: Path, stage: str) -> Path:
    """The folder of a finished stage, or an error that says how to finish it."""
    manifest = read_manifest(run, stage)
    if manifest is None or not manifest.complete:
        raise ArtefactError(f"{run} has no finished stage {stage}. Go on with fusevlm run.")
    return run / stage


def require_whole(run: Path, stage: str) -> Path:
    """The folder of a finished stage that is as it was made; for those who are no stage."""
    folder = require(run, stage)
    check_stage(run, stage)
    return folder


def _same_schema(head: Mapping[str, Any], path: Path) -> None:
    if head.get("schema_version") != SCHEMA_VERSION:
        raise ArtefactError(
            f"{path} was made by fusevlm {head.get('fusevlm')} with schema version "
            f"{head.get('schema_version')}; this is {__version__} with {SCHEMA_VERSION}. Choose "
            f"another --run, or use the fusevlm that made it."
        )


def commit() -> str:
    """The commit of the clone that fusevlm runs from, in words; empty where it is installed."""
    home = Path(__file__).resolve().parents[3] / ".git"
    try:
        head = (home / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        if name != head:
            loose = home / name
            packed = home / "packed-refs"
            head = loose.read_text() if loose.is_file() else _packed(packed.read_text(), name)
        return f", commit {head.strip()[:10]}" if head.strip() else ""
    except OSError:
        return ""


def _packed(text: str, name: str) -> str:
    return next((line.split()[0] for line in text.splitlines() if line.endswith(f" {name}")), "")


def set_aside(run: Path, stage: str) -> Path | None:
    """Rename a stage's folder to STAGE.old-N, N counting up; None where there is none."""
    home = run / stage
    if not home.exists():
        return None
    taken = [int(name[2]) for p in run.glob(f"{stage}.old-*") if (name := OLD.fullmatch(p.name))]
    target = run / f"{stage}.old-{max(taken, default=0) + 1}"
    try:
        home.rename(target)
    except OSError as error:
        raise ArtefactError(f"cannot set {home} aside: {error}.") from error
    return target


def leftovers(run: Path, stages: Collection[str]) -> list[Path]:
    """What a run can do without: stages set aside, damaged parts, files of interrupted writes."""
    named = ((path, OLD.fullmatch(path.name)) for path in run.iterdir() if path.is_dir())
    aside = [path for path, name in named if name and name[1] in stages]
    others = [
        path
        for place in [run, *folders_in(run)]
        if not any(place.is_relative_to(old) for old in aside)
        for path in place.iterdir()
        if SPOILT.fullmatch(path.name) and not path.is_dir()
    ]
    return sorted([*aside, *others])


def file_digests(folder: Path) -> dict[str, str]:
    """Digest of each file of a stage; parts of rows and arrays count by their JSON's checksums."""
    found = {}
    for path in sorted(folder.rglob("*")):
        payload = path.name.startswith("part-") and path.suffix != ".json"
        temporary = path.name.startswith(".") and path.name.endswith(".tmp")
        if path.is_file() and not (payload or temporary) and path.name not in NOTES:
            found[path.relative_to(folder).as_posix()] = digest_file(path)
    place = place_of(folder)
    if place.folder is None:
        found = dict(sorted({**found, **json_digests(place)}.items()))
    return found


def note_digests(folder: Path) -> dict[str, str]:
    """Digests of what a stage notes beside its results: times, and what a service gave."""
    paths = [folder / name for name in (SECONDS, SERVER)]
    return {path.name: digest_file(path) for path in paths if path.is_file()}


def digest_stage(folder: Path) -> str:
    """One digest of all of them."""
    return digest_of(file_digests(folder))


def digest_of(files: Mapping[str, str]) -> str:
    """The digest of a stage with these files."""
    total = hashlib.sha256()
    for name, one in files.items():
        total.update(f"{name}\0".encode(errors="surrogateescape"))
        total.update(bytes.fromhex(one))
    return total.hexdigest()


def damages(run: Path, manifest: Manifest) -> dict[str, str]:
    """Files of a finished stage that are not as they were written, and what is wrong with them.

    Of parts only that they are there: their rows and arrays are compared whenever they are read.
    Files that others added are nobody's business.
    """
    folder = run / manifest.stage
    found = file_digests(folder)
    if not manifest.files:  # made by an older fusevlm, which kept one digest of all
        same = digest_of(found) == manifest.digest
        return {} if same else {"": "something in it was changed, lost or added"}
    found |= note_digests(folder)
    return {
        name: "is missing" if name not in found else "was changed"
        for name, one in {**manifest.files, **manifest.notes}.items()
        if found.get(name) != one
    }


def check_stage(run: Path, stage: str) -> None:
    """Refuse a finished stage that is not as it was made."""
    manifest = read_manifest(run, stage)
    if manifest is None or not manifest.complete:
        return
    for name, what in damages(run, manifest).items():
        raise ArtefactError(
            f"{run / stage / name} {what} since the stage was made. Make good what is damaged: "
            f"fusevlm verify {run} --repair, then the same command again."
        )
