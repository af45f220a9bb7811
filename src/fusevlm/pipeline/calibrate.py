"""Stage calibrate: every method fitted on the calibration queries and saved."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
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
from fusevlm.pipeline.table import EVIDENCE, Scored
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
    """The queries with the hidden states that a method reads; one layer's at a time is kept.

    Calibration queries are held in memory, test queries a block at a time.
    """

    def __init__(self, run: Path, config: Config, names: tuple[str, ...]) -> None:
        self.config, self.scored = config, Scored(run, config)
        self.states = needs_of_methods([find_method(n, config.calibrate) for n in names])
        self._known: tuple[str, Queries] | None = None

    @property
    def absent_scores(self) -> dict[str, str]:
        return self.scored.absent

    @property
    def known(self) -> Queries:
        """The calibration queries, with the states of the layer that scores are of."""
        return self._of_layer(self.config.score.layer)

    def known_to(self, method: Method) -> Queries:
        """The calibration queries as the method reads them."""
        return self._of_layer(self._layer(method))

    def tests(self, method: Method | None = None) -> Iterator[Queries]:
        """The test queries as the method reads them, a block at a time."""
        layer = self.config.score.layer if method is None else self._layer(method)
        for block in self.scored.tests(self.states, self._with(layer)):
            yield block.take(slice(None))

    def layer_of(self, name: str) -> str:
        """Of which layer a method reads the states."""
        return self._layer(find_method(name, self.config.calibrate))

    def _layer(self, method: Method) -> str:
        return (method.layer if method.preset else "") or self.config.score.layer

    def _with(self, layer: str) -> Config:
        return replace(self.config, score=replace(self.config.score, layer=layer))

    def _of_layer(self, layer: str) -> Queries:
        if self._known is None or self._known[0] != layer:
            self._known = None  # one of them in memory, not two
            found = self.scored.known(self.states, self._with(layer))
            self._known = (layer, found.take(slice(None)))
        return self._known[1]


def make(work: Work) -> dict[str, int]:
    """Fit and save; a method that cannot be fitted is noted with its reason."""
    settings = work.config.calibrate
    names = settings.names()
    tables = Tables(work.run, work.config, names)
    size = len(tables.known)
    absent: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for number, name in enumerate(names):
        work.progress(number, len(names))
        start = time.perf_counter()
        try:
            known = tables.known_to(find_method(name, settings))
            if name in SCORES and name not in known.columns:
                why = tables.absent_scores.get(name, "score.baselines leaves it out")
                raise InputError(f"the score {name} is absent: {why}")
            fitted = fit_method(name, known, settings)
        except FuseError as error:
            absent[name] = str(error)
        else:  # a disk that is full is no reason to go without a method
            fitted.save(work.folder("calibrate") / name)
            seconds[name] = round(time.perf_counter() - start, 4)
    work.progress(len(names), len(names))
    if len(absent) == len(names):
        first, why = next(iter(absent.items()))
        raise ArtefactError(f"no method could be fitted; {first}: {why}")
    known = tables.known
    near = fit_neighbours(known, known.columns["question"])
    if near is not None:
        near.save(work.folder("calibrate") / NEIGHBOURS)
    if work.config.rounds.use:
        start = time.perf_counter()
        try:
            rounds = fit_rounds(known, work.config)
        except FuseError as error:
            absent[ROUNDS] = str(error)
        else:
            rounds.save(work.folder("calibrate") / ROUNDS)
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
