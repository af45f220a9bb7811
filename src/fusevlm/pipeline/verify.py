"""Is a run as it was made? What is damaged or lost, and how it is made good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fusevlm.errors import ArtefactError, FuseError
from fusevlm.pipeline.run import STAGES
from fusevlm.store import hold, runs
from fusevlm.store.files import refuse_links
from fusevlm.store.parts import damaged_parts, part_number, put_away


@dataclass(frozen=True)
class Damage:
    """One thing that is wrong with a stage."""

    stage: str
    what: str
    part: int | None = None  # of which only this part is to be made again

    def __str__(self) -> str:
        return f"{self.stage}: {self.what}"


def verify(run: Path) -> list[Damage]:
    """All damage of a run folder; every file of it is read."""
    runs.read_run(run)
    refuse_links(run)
    return [one for stage in STAGES for one in _damages(run, stage)]


def _damages(run: Path, stage: str) -> list[Damage]:
    folder = run / stage
    if not folder.is_dir():
        return []
    try:
        manifest = runs.read_manifest(run, stage)
    except FuseError as error:
        return [Damage(stage, str(error))]
    if manifest is None:
        return [Damage(stage, f"{runs.STAGE} is missing")]
    found: list[Damage] = []
    if manifest.complete:  # else what is not there yet cannot be missed
        for name, what in runs.damages(run, manifest).items():
            found.append(Damage(stage, f"{name} {what}".strip(), part_number(name)))
    known = {one.part for one in found}
    parts = damaged_parts(folder).items()
    return found + [Damage(stage, what, index) for index, what in parts if index not in known]


def repair(run: Path, say: Callable[[str], None] = lambda text: None) -> list[Damage]:
    """Put away what is damaged, so that the next run makes it again; and nothing else.

    Of a stage made of parts only the damaged parts; any other stage is set aside whole, those after
    it stay: they are made anew only if it comes out otherwise.
    """
    with hold(run):
        found = verify(run)
        for stage in dict.fromkeys(one.stage for one in found):
            own = [one for one in found if one.stage == stage]
            manifest = _manifest(run, stage)
            if manifest is None or any(one.part is None for one in own):
                target = runs.set_aside(run, stage)
                say(f"{stage}: set aside as {target.name if target else stage}")
                continue
            for one in own:
                assert one.part is not None
                put_away(run / stage, one.part)
                say(f"{stage}: part {one.part} put away ({one.what})")
            runs.write_manifest(run, replace(manifest, complete=False))
    return found


def _manifest(run: Path, stage: str) -> runs.Manifest | None:
    try:
        return runs.read_manifest(run, stage)
    except ArtefactError:
        return None
