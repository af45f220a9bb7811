"""Stage calibrate: every method fitted on the calibration queries and saved."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fusevlm.errors import ArtefactError, FuseError, InputError
from fusevlm.pipeline.methods import (
    Fitted,
    check_methods,
    find_method,
    fit_method,
    load_method,
    needs_of_methods,
)
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.score import read_scored
from fusevlm.store import read_json, save_json
from fusevlm.store.runs import SECONDS, require

ABSENT = "absent.json"  # methods that could not be fitted, and why


def make(work: Work) -> dict[str, int]:
    """Fit and save; a method that cannot be fitted is noted with its reason."""
    names = work.config.calibrate.methods
    check_methods(names)
    queries, absent_scores = read_scored(work.run, work.config, states=needs_of_methods(names))
    if queries.fit is None:
        raise InputError("there are no calibration queries: name data.calibration.")
    known, _ = queries.split()
    absent: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for number, name in enumerate(names):
        work.progress(number, len(names))
        start = time.perf_counter()
        try:
            if not find_method(name).preset and name not in queries.columns:
                why = absent_scores.get(name, "score.baselines leaves it out")
                raise InputError(f"the score {name} is absent: {why}")
            fit_method(name, known, work.config.calibrate).save(work.folder("calibrate") / name)
        except FuseError as error:
            absent[name] = str(error)
        else:
            seconds[name] = round(time.perf_counter() - start, 4)
    work.progress(len(names), len(names))
    if len(absent) == len(names):
        first, why = next(iter(absent.items()))
        raise ArtefactError(f"no method could be fitted; {first}: {why}")
    save_json(work.folder("calibrate") / ABSENT, absent)
    save_json(work.folder("calibrate") / SECONDS, seconds)
    return {"methods": len(names) - len(absent), "absent": len(absent), "queries": len(known)}


def read_methods(
    run: Path, names: tuple[str, ...]
) -> tuple[dict[str, Callable[[], Fitted]], dict[str, str]]:
    """How to load each fitted method of a run, and why the others could not be fitted."""
    folder = require(run, "calibrate")
    absent: dict[str, str] = read_json(folder / ABSENT, "Make it again: --redo calibrate.")

    def loader(name: str) -> Callable[[], Fitted]:
        return lambda: load_method(folder / name)

    return {name: loader(name) for name in names if name not in absent}, absent
