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
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fusevlm import __version__
from fusevlm.config import Config, as_tree, make_config
from fusevlm.errors import ArtefactError
from fusevlm.store.files import LOCK, read_json, save_json

KIND, SCHEMA_VERSION = "fusevlm.run", 2
RUN, STAGE, SECONDS = "run.json", "stage.json", "seconds.json"


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
    counts: dict[str, int] = field(default_factory=dict)
    fusevlm: str = __version__
    schema_version: int = SCHEMA_VERSION


def write_run(run: Path, config: Config) -> None:
    """Note the config in the run folder."""
    head = {"kind": KIND, "schema_version": SCHEMA_VERSION, "fusevlm": __version__}
    save_json(run / RUN, {**head, "config": as_tree(config)})


def is_run(folder: Path) -> bool:
    """Whether a folder is the run of a config."""
    return (folder / RUN).is_file()


def read_run(run: Path) -> Config:
    """The config of a run folder, or why the folder cannot be used."""
    if not is_run(run):
        raise ArtefactError(f"{run} is no run folder: {RUN} is missing. Make one: fusevlm run.")
    head = read_json(run / RUN, "Choose another --run.")
    if head.get("kind") != KIND:
        raise ArtefactError(f"{run / RUN} holds {head.get('kind')!r}, not {KIND!r}.")
    _same_schema(head, run)
    return make_config(head.get("config", {}), str(run / RUN))


def read_manifest(run: Path, stage: str) -> Manifest | None:
    """A stage's manifest; None where the stage was never begun."""
    path = run / stage / STAGE
    if not path.exists():
        return None
    cure = f"Make it again: --redo {stage}."
    head = read_json(path, cure)
    _same_schema(head, run)
    try:
        return Manifest(**head)
    except TypeError as error:
        raise ArtefactError(f"{path} is damaged: {error}. {cure}") from error


def write_manifest(run: Path, manifest: Manifest) -> None:
    """Write a stage's manifest."""
    save_json(run / manifest.stage / STAGE, asdict(manifest))


def require(run: Path, stage: str) -> Path:
    """The folder of a finished stage, or an error that says how to finish it."""
    manifest = read_manifest(run, stage)
    if manifest is None or not manifest.complete:
        raise ArtefactError(f"{run} has no finished stage {stage}. Go on with fusevlm run.")
    return run / stage


def _same_schema(head: Mapping[str, Any], run: Path) -> None:
    if head.get("schema_version") != SCHEMA_VERSION:
        raise ArtefactError(
            f"{run} was made by fusevlm {head.get('fusevlm')} with schema version "
            f"{head.get('schema_version')}; this is {__version__} with {SCHEMA_VERSION}. Choose "
            f"another --run, or use the fusevlm that made it."
        )


def remove_stage(run: Path, stage: str) -> None:
    """Delete a stage's folder."""
    try:
        if (run / stage).exists():
            shutil.rmtree(run / stage)
    except OSError as error:
        raise ArtefactError(f"cannot remove {run / stage}: {error}.") from error


def digest_stage(folder: Path) -> str:
    """Digest of a stage's files; parts of rows and arrays count by their own checksums."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        part_payload = path.name.startswith("part-") and path.suffix != ".json"
        if path.is_file() and not part_payload and path.name not in (STAGE, SECONDS, LOCK):
            total.update(f"{path.relative_to(folder)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
