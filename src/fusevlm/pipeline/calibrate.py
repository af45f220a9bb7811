"""Stage calibrate: every method fitted on the calibration queries and saved."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fusevlm import checks
from fusevlm.errors import ArtefactError, FuseError, InputError
from fusevlm.fuse.neighbours import fit_neighbours
from fusevlm.fuse.rounds import Rounds
from fusevlm.pipeline.methods import (
    Fitted,
    Method,
    check_methods,
    find_method,
    fit_method,
    load_method,
    needs_of_methods,
)
from fusevlm.pipeline.rounds import fit_rounds
from fusevlm.pipeline.run import Work
from fusevlm.pipeline.score import EVIDENCE, read_scored
from fusevlm.scores import SCORES, needs_of
from fusevlm.settings import NONE, Config
from fusevlm.store import read_json, save_json
from fusevlm.store.runs import SECONDS, require
from fusevlm.types import Queries

ABSENT = "absent.json"  # methods that could not be fitted, and why
ROUNDS = "rounds"  # the rule by which samples are drawn in rounds
NEIGHBOURS = "neighbours"  # calibration queries, to be shown beside new ones


def check(config: Config) -> None:
    """Refuse methods, rows and evidence that cannot be: before any stage begins."""
    check_methods(config.calibrate)
    computed = config.score.baselines or tuple(SCORES)
    for name in config.calibrate.evidence:
        checks.known(name, [*EVIDENCE, *SCORES], "evidence")
        if name == "complement" and config.semantics.complement == NONE:
            raise InputError("calibrate.evidence names 'complement': set semantics.complement.")
        if name == "rephrasing" and (
            config.semantics.rephrase == NONE or "rephrasings" not in needs_of(computed)
        ):
            raise InputError(
                "calibrate.evidence names 'rephrasing': set semantics.rephrase, and have "
                "'neighborhood' among score.baselines."
            )
        if name in SCORES and name not in computed:
            raise InputError(
                f"calibrate.evidence names {name!r}, which score.baselines leaves out."
            )


class Tables:
    """The queries with the hidden states that a method reads; one layer's at a time is kept."""

    def __init__(self, run: Path, config: Config, names: tuple[str, ...]) -> None:
        self.run, self.config = run, config
        self.states = needs_of_methods([find_method(n, config.calibrate) for n in names])
        self.layer = config.score.layer
        self.queries, self.absent_scores = self._read(self.layer)

    def _read(self, layer: str) -> tuple[Queries, dict[str, str]]:
        score = replace(self.config.score, layer=layer)
        return read_scored(self.run, replace(self.config, score=score), states=self.states)

    def of(self, method: Method) -> Queries:
        """The queries as the method reads them."""
        layer = method.layer or self.config.score.layer
        if method.preset and layer != self.layer:
            self.layer, (self.queries, _) = layer, self._read(layer)
        return self.queries


def make(work: Work) -> dict[str, int]:
    """Fit and save; a method that cannot be fitted is noted with its reason."""
    settings = work.config.calibrate
    names = settings.names()
    tables = Tables(work.run, work.config, names)
    if tables.queries.fit is None:
        raise InputError("there are no calibration queries: name data.calibration.")
    size = len(tables.queries.fit)
    absent: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for number, name in enumerate(names):
        work.progress(number, len(names))
        start = time.perf_counter()
        try:
            method = find_method(name, settings)
            queries = tables.of(method)
            if name in SCORES and name not in queries.columns:
                why = tables.absent_scores.get(name, "score.baselines leaves it out")
                raise InputError(f"the score {name} is absent: {why}")
            known, _ = queries.split()
            fit_method(name, known, settings).save(work.folder("calibrate") / name)
        except FuseError as error:
            absent[name] = str(error)
        else:
            seconds[name] = round(time.perf_counter() - start, 4)
    work.progress(len(names), len(names))
    if len(absent) == len(names):
        first, why = next(iter(absent.items()))
        raise ArtefactError(f"no method could be fitted; {first}: {why}")
    known, _ = tables.queries.split()
    near = fit_neighbours(known, known.columns["question"])
    if near is not None:
        near.save(work.folder("calibrate") / NEIGHBOURS)
    if work.config.rounds.use:
        start = time.perf_counter()
        try:
            fit_rounds(known, work.config).save(work.folder("calibrate") / ROUNDS)
        except FuseError as error:
            absent[ROUNDS] = str(error)
        seconds[ROUNDS] = round(time.perf_counter() - start, 4)
    save_json(work.folder("calibrate") / ABSENT, absent)
    save_json(work.folder("calibrate") / SECONDS, seconds)
    missing = sum(name in absent for name in names)
    return {"methods": len(names) - missing, "absent": missing, "queries": size}


def read_methods(
    run: Path, names: tuple[str, ...]
) -> tuple[dict[str, Callable[[], Fitted]], dict[str, str]]:
    """How to load each fitted method of a run, and why the others could not be fitted."""
    folder = require(run, "calibrate")
    absent: dict[str, str] = read_json(folder / ABSENT, "Make it again: --redo calibrate.")

    def loader(name: str) -> Callable[[], Fitted]:
        return lambda: load_method(folder / name)

    methods = {name: loader(name) for name in names if name not in absent}
    return methods, {name: why for name, why in absent.items() if name != ROUNDS}


def read_rounds(run: Path) -> tuple[Rounds | None, str]:
    """The rule by which a run's samples could be drawn in rounds, or why there is none."""
    folder = require(run, "calibrate")
    if (folder / ROUNDS).is_dir():
        return Rounds.load(folder / ROUNDS), ""
    why = read_json(folder / ABSENT, "Make it again: --redo calibrate.").get(ROUNDS)
    return None, str(why or "rounds.use is false")
