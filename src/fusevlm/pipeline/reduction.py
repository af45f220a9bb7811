"""Hidden states reduced where they are made, so that what is stored does not grow with d·n.

Of a test query are kept: the n×n Gram matrix of its samples' states under every whitening that a
method of the config will have, those that baselines read, the judged answer's state and that of the
prompt. Calibration queries keep all their states: whitenings are fitted on them, here as in the
stage calibrate, by the same function on the same queries, so that the figures of a run are those
of one that keeps everything. A Gram says of which layer it is and by which whitening it was made;
one of another is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from fusevlm import store
from fusevlm.checks import BoolArray, IntArray
from fusevlm.data.correctness import is_wrong
from fusevlm.errors import ArtefactError, FuseError, InputError
from fusevlm.fuse.estimator import CLASSES, divide
from fusevlm.fuse.evidence import fit_whitener, kept_name, response_rows
from fusevlm.fuse.presets import Options, resolve
from fusevlm.fuse.vector import MIN_PER_CLASS
from fusevlm.maths.whitening import Whitener
from fusevlm.pipeline.data import Asked
from fusevlm.pipeline.methods import find_method, forms_of
from fusevlm.pipeline.rounds import tiers_of
from fusevlm.scores.states import FORMS, gram_name, state_gram
from fusevlm.settings import MINILM, NONE, Config
from fusevlm.store.generations import KIND, Reduced, Wish, generations_between, of_layer
from fusevlm.store.parts import Stored, begun
from fusevlm.types import Generation, Samples

FULL, REDUCED, AUTO = "full", "reduced", "auto"
MOST_FULL = 20_000  # queries up to which all states are kept, if nothing is asked for
FOLDER, FILE, STORED, VERSION = "whitening", "whitening.json", "fusevlm.whitening", 2
MARK = "reduced.json"  # in the stage's folder: what was decided when it was begun
EMBEDDINGS, MIDDLE = "embeddings", "middle"  # what scores call states: of score.layer, of its own


@dataclass(frozen=True)
class Whitening:
    """A whitening, what is done to states before it, and of which layer they are."""

    options: Options
    whitener: Whitener
    layer: str = ""  # that of the evidence if empty


@dataclass(frozen=True)
class Reduction:
    """How states are reduced: layers, whitenings, and on which calibration queries they rest."""

    layer: str  # of the evidence
    prompt: str  # of the prompt's state
    layers: tuple[str, ...]  # all that are kept of calibration queries
    whitenings: tuple[Whitening, ...]
    known: str  # digest of the ids of the calibration queries

    def __call__(self, g: Generation) -> Reduced:
        """What is kept of a generation, whose states are in the precision they are stored in."""
        read = {self.layer, MIDDLE, *(one.layer for one in self.whitenings)} & set(g.layers)
        states = {layer: np.asarray(g.layers[layer], dtype=np.float64) for layer in read}
        d = int(next(iter(g.layers.values())).shape[1])
        grams: dict[str, Any] = {}
        for name, unit, centred in FORMS:
            layer = self.layer if name == EMBEDDINGS else name
            called = gram_name(name, unit, centred)
            if layer in states:
                try:
                    own, _ = state_gram(states[layer], name, unit, centred)
                except InputError:  # such as a state of zeros; its score will say so
                    continue
                grams[of_layer(layer, called) if name == EMBEDDINGS else called] = own
        texts = () if g.samples is None else g.samples.texts
        said = {layer: Samples(texts, embeddings=own, answer="") for layer, own in states.items()}
        for one in self.whitenings:
            layer = one.layer or self.layer
            if layer in said:
                try:
                    rows = response_rows(said[layer], one.options)
                except InputError:
                    continue
                called = kept_name(one.whitener, one.options)
                grams[of_layer(layer, called)] = one.whitener.gram(rows)
        answers = {k: v for k, v in g.answer_layers.items() if k == self.layer}
        prompts = {k: v for k, v in g.prompt_layers.items() if k == self.prompt}
        return Reduced(grams, answers, prompts, d)

    def save(self, folder: Path) -> None:
        """Write it into the folder of the stage."""
        store.save_object(folder / FOLDER, FILE, STORED, VERSION, self)


def fitted(folder: Path) -> bool:
    """Whether there is something by which states are reduced."""
    return (folder / FOLDER / FILE).is_file()


def load_reduction(folder: Path) -> Reduction | None:
    """What :meth:`Reduction.save` wrote; None where nothing was."""
    if not fitted(folder):
        return None
    classes = {**CLASSES, "Reduction": Reduction, "Whitening": Whitening}
    # before, all whitenings were of the layer of the evidence
    older = {1: lambda head: {**head, "schema_version": 2}}
    found: Reduction = store.load_object(folder / FOLDER, FILE, STORED, VERSION, classes, older)
    return found


def decide(config: Config, folder: Path, asked: Asked) -> bool:
    """Whether states are reduced; decided when the stage is begun, and kept to."""
    if (folder / MARK).is_file():
        return True
    if config.sample.gram or begun(folder):
        return False
    wanted, known = config.sample.states, asked.n_calibration
    if wanted == AUTO:
        wanted = REDUCED if len(asked) > MOST_FULL and 0 < known < len(asked) else FULL
    if wanted == FULL or known == len(asked):
        return False
    if not known:
        raise InputError(
            "sample.states is 'reduced': states are whitened by those of calibration queries, and "
            "there are none. Name data.calibration, a fit in sample.gram, or keep 'full' states."
        )
    store.save_json(folder / MARK, {"states": REDUCED, "calibration": known})
    return True


class KnownSamples(Sequence[Samples]):
    """Samples of some calibration queries with their states; read when they are looked at."""

    def __init__(self, stored: Stored, layer: str, rows: Sequence[int], first: int | None) -> None:
        self.stored, self.wish = stored, Wish(layer=layer)
        self.places, self.first = list(rows), first

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Samples]:
        wanted = set(self.places)
        stop = max(self.places, default=-1) + 1
        stored = generations_between(self.stored, 0, stop, self.wish)
        return (self._cut(g) for row, g in enumerate(stored) if row in wanted)

    @overload
    def __getitem__(self, index: int) -> Samples: ...

    @overload
    def __getitem__(self, index: slice) -> list[Samples]: ...

    def __getitem__(self, index: int | slice) -> Samples | list[Samples]:
        if isinstance(index, slice):
            return [self[k] for k in range(len(self))[index]]
        row = self.places[index]
        (found,) = generations_between(self.stored, row, row + 1, self.wish)
        return self._cut(found)

    def _cut(self, found: Generation) -> Samples:
        assert found.samples is not None
        return found.samples if self.first is None else found.samples.first(self.first)


@dataclass(frozen=True, eq=False)
class Known:
    """The calibration queries that were answered: rows, units and labels."""

    rows: list[int]
    ids: list[str]
    units: list[str]
    wrong: BoolArray | None
    n_samples: int  # the fewest of any

    @property
    def digest(self) -> str:
        return hashlib.sha256("\0".join(self.ids).encode()).hexdigest()[:16]

    def few(self, rows: IntArray) -> bool:
        """Whether the labels of some rows are too few to set weights by."""
        if self.wrong is None:
            return True
        wrong = self.wrong[rows]
        return bool(min(int(wrong.sum()), int((~wrong).sum())) < MIN_PER_CLASS)


def read_known(stored: Stored, asked: Asked, config: Config) -> Known:
    """The calibration queries of a run whose test queries may not have been asked yet.

    Those that methods will be fitted on: answered, and not left out by the stage embed.
    """
    queries, criterion = asked[: asked.n_calibration], config.score.criterion
    bare = {row for row, query in enumerate(queries) if not query.images}
    left_out = bare if bare and _only_with_pictures(asked, config) else set()
    rows, wrong, counts = [], [], []
    for row, g in enumerate(generations_between(stored, 0, len(queries))):
        if g.samples is not None and row not in left_out:
            rows.append(row)
            counts.append(len(g.samples))
            right = queries[row].references
            wrong.append(is_wrong(g.samples.answer or "", right, criterion) if right else None)
    if not rows:
        raise ArtefactError(
            "no calibration query was answered, and states are whitened by theirs. See the reasons "
            "in the stage sample, mend them, and give the same command again."
        )
    labels = None if None in wrong else np.array(wrong, dtype=np.bool_)
    units = [str(queries[row].metadata["unit"]) for row in rows]
    return Known(rows, [queries[row].id for row in rows], units, labels, min(counts))


def _only_with_pictures(asked: Asked, config: Config) -> bool:
    """Whether queries without a picture are left out, because others of the run have some."""
    sees = config.embed.towers not in (NONE, MINILM)
    return sees and any(query.images for query in asked)


def fit_reduction(folder: Path, asked: Asked, config: Config) -> Reduction | None:
    """The reduction of a run from its calibration queries; None of a model without states."""
    stored = Stored(folder, KIND)
    known = read_known(stored, asked, config)
    row, wish = known.rows[0], Wish(layers=config.sample.layers)
    (first,) = generations_between(stored, row, row + 1, wish)
    widths = {layer: int(states.shape[1]) for layer, states in first.layers.items()}
    if config.score.layer not in widths:
        return None
    found: dict[str, Whitening] = {}
    for layer, options, rows, n in wanted_whitenings(config, known, widths):
        samples = KnownSamples(stored, layer, [known.rows[k] for k in rows], n)
        try:
            whitener = fit_whitener(samples, options)
        except FuseError:  # the method will say it when it is fitted
            continue
        called = of_layer(layer, kept_name(whitener, options))
        found.setdefault(called, Whitening(options, whitener, layer))
    return Reduction(
        config.score.layer,
        config.sample.prompt_layer,
        config.sample.layers,
        tuple(found.values()),
        known.digest,
    )


def wanted_whitenings(
    config: Config, known: Known, widths: Mapping[str, int]
) -> Iterator[tuple[str, Options, IntArray, int | None]]:
    """Layer, options, calibration queries and number of samples of each that will be fitted.

    Of a form that keeps queries apart, those it learns on; of labels that are too few to set
    weights by, all. In rounds each tier has its own. ``widths`` are those of the layers' states.
    """
    settings, every = config.calibrate, np.arange(len(known.rows))
    asked: list[tuple[str, Options, IntArray, int | None]] = []
    for name in settings.names():
        try:
            method = find_method(name, settings)
            own = method.layer or config.score.layer
            reads = method.preset and own in widths
            fuses = forms_of(method, settings, widths[own]) if reads else []
        except InputError:  # refused by name before any stage begins
            continue
        for fuse in fuses:
            tune, apart = divide(known.units, fuse.options.threshold_share, fuse.options.seed)
            asked.append((own, fuse.options, tune, None))
            if len(apart) and known.few(tune):
                asked.append((own, fuse.options, every, None))
    if config.rounds.use:
        given = {"seed": settings.seed, "threshold_share": settings.threshold_share}
        options = resolve("practical", given)
        tune, _ = divide(known.units, options.threshold_share, options.seed)
        rows = every if known.few(tune) else tune
        tiers = [tier.samples for tier in tiers_of(config, known.n_samples) if tier.samples]
        asked += [(config.score.layer, options, rows, n) for n in tiers]
    seen: set[tuple[Any, ...]] = set()
    for layer, options, rows, n in asked:
        key = (layer, *_shape(options), rows.tobytes(), None if n == known.n_samples else n)
        if key not in seen:
            seen.add(key)
            yield layer, options, rows, n


def _shape(options: Options) -> tuple[Any, ...]:
    """What of the options a whitening depends on."""
    return (
        options.normalize == "before", options.center, options.whitening, options.rank,
        options.shrinkage, options.counted_in,
    )  # fmt: skip


def check_known(reduction: Reduction, folder: Path, asked: Asked, config: Config) -> None:
    """Refuse a stage whose calibration queries are others than those of the whitening."""
    known = read_known(Stored(folder, KIND), asked, config)
    if known.digest != reduction.known:
        raise ArtefactError(
            "calibration queries that had failed were answered since the test queries' states were "
            "reduced: these rest on a whitening without them. Sample again: --redo sample."
        )
