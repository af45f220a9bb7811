"""``fusevlm.load``: a vision-language model that says how far its answer can be trusted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray
from fusevlm.displays import Displayed, Rows
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import ArtefactError, FuseError, InputError
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.explain import Explanation
from fusevlm.fuse.neighbours import Neighbours
from fusevlm.fuse.results import Decisions, Scores
from fusevlm.fuse.rounds import Plan, Rounds, costs
from fusevlm.models.protocol import InRounds, draw
from fusevlm.render.answer import Answer
from fusevlm.scorer import answers, near, needs_pictures
from fusevlm.settings import Config, SampleConfig, SemanticsConfig
from fusevlm.types import Generation, Queries, Query, Samples

if TYPE_CHECKING:
    from fusevlm.models.protocol import Model, Session
    from fusevlm.models.towers import TextTower, Towers
    from fusevlm.priors.activations import ActivationPrior
    from fusevlm.priors.gp.adapter import GpAdapter

COMPLEMENT = "complement"  # evidence that takes the negated question
MARGIN = "margin"
MOST_SAMPLES = 1000
AS_NEEDED = "as needed"
ABOUT_EMBEDDED = (
    "the embedded model is small and knows pictures of one coloured shape; it is here to try "
    "things out. Your own model answers with --model RUN."
)
NO_PICTURE = "this model is asked about a picture; give one."
Found = Answer | FuseError


@dataclass(frozen=True)
class Seen:
    """A query that is being looked at: what is known of it after a tier, for those who watch.

    p_wrong        NaN while samples are still being drawn
    table, scores  one row each, where all samples are there: what the decision rests on
    """

    query: Query
    samples: Samples
    tier: str
    p_wrong: float
    table: Queries | None = None
    scores: Scores | None = None


Watch = Callable[[Seen], None]


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries with all that is known of them before any answer, one row each."""

    queries: list[Query]
    prior: Mapping[str, Any]
    inputs: Mapping[str, Any]
    views: Mapping[str, Any]

    def take(self, rows: Sequence[int]) -> Asked:
        def some(named: Mapping[str, Any]) -> dict[str, Any]:
            return {
                name: [v[i] for i in rows] if isinstance(v, list) else v[list(rows)]
                for name, v in named.items()
            }

        return Asked(
            [self.queries[i] for i in rows], some(self.prior), some(self.inputs), some(self.views)
        )


@dataclass(frozen=True, eq=False)
class Going:
    """Queries whose decision is still open, with what the first look told of them."""

    asked: Asked
    first: Scores | None = None
    negatable: BoolArray | None = None  # whether the opposite can be asked

    def take(self, rows: Sequence[int]) -> Going:
        """Some of them."""
        return Going(
            self.asked.take(rows),
            None if self.first is None else self.first.take(rows),
            None if self.negatable is None else self.negatable[list(rows)],
        )


@dataclass(frozen=True)
class Terms:
    """On which terms queries are asked."""

    risk: float
    delta: float
    seed: int
    watch: Watch
    steps: Sequence[int] = ()  # numbers of samples after which those who watch are told too


@dataclass(frozen=True, eq=False, repr=False)
class Assistant(Displayed):
    """A model that says how far its answer can be trusted; :func:`load` makes one.

    >>> assistant = fusevlm.load()                               # doctest: +SKIP
    >>> assistant.ask("picture.png", "what color is it?").answer # doctest: +SKIP

    One may be used from many threads.

    model       which is asked
    towers      vectors of pictures and questions
    adapter     the Gaussian-process prior; or None
    fuse        the fit that decides
    sample      how many samples are drawn, and how
    statistic   of the adapter or the references, which is s
    references  for statistics of the towers' activations; or None
    semantics   how the opposite of a question is asked
    neighbours  calibration queries that are shown beside an answer; or None
    about       what the model knows, said where it meets something else
    rounds      as few samples as the decision needs; or None
    """

    model: Model
    towers: Towers | TextTower | None
    adapter: GpAdapter | None
    fuse: Fuse
    sample: SampleConfig
    statistic: str
    references: ActivationPrior | None = None
    semantics: SemanticsConfig = field(default_factory=SemanticsConfig)
    neighbours: Neighbours | None = None
    about: str = ""
    rounds: Rounds | None = None

    def ask(
        self,
        image: Any,
        question: str,
        *,
        risk: float = 0.05,
        delta: float = 0.1,
        n: int | None = None,
        samples: float | str | None = None,
        seed: int = 0,
        watch: Watch = lambda seen: None,
    ) -> Answer:
        """Answer a question about an image (a path, bytes or a PIL image; or None), or abstain.

        Where the decision is ``answer``, the error rate among such answers is at most ``risk`` with
        probability 1 − ``delta``, for questions like those of the calibration.

        risk     wanted error rate among the answered
        delta    the chance that it does not hold
        n        samples; as many as in the calibration if None; 0: the answer alone decides
        samples  instead of n: as many as the decision needs (``"as needed"``), or so many on
                 average, drawn in rounds
        seed     of the sampling: the same seed gives the same answer
        watch    is told of each round
        """
        query = Query("ask", question, [] if image is None else [image])
        (found,) = self.ask_all(
            [query], risk=risk, delta=delta, n=n, samples=samples, seed=seed, watch=watch
        )
        if isinstance(found, FuseError):
            raise found
        return found

    def ask_all(
        self,
        queries: Sequence[Query],
        *,
        risk: float = 0.05,
        delta: float = 0.1,
        n: int | None = None,
        samples: float | str | None = None,
        seed: int = 0,
        watch: Watch = lambda seen: None,
        steps: Sequence[int] = (),
    ) -> list[Found]:
        """Several queries together: for each its answer, or the error that kept it from one.

        The arguments are those of :meth:`ask`.
        ``watch`` is told of each round; where all n samples are drawn, of the first k too, for
        each k of ``steps``, as far as the model can draw in rounds.
        """
        terms = Terms(
            checks.fraction(risk, "risk"),
            checks.fraction(delta, "delta"),
            checks.count(seed, "seed", least=0),
            watch,
            steps,
        )
        size = checks.count(self.sample.n if n is None else n, "n", least=0)
        if size > MOST_SAMPLES:
            raise InputError(
                f"n is {size}; at most {MOST_SAMPLES} samples are drawn for a question."
            )
        if samples is not None and n is not None:
            raise InputError("n and samples were both given; give one of them.")
        if samples is None and size < 2 and "logdet" in self.fuse.model.evidence:
            if size or self.rounds is None or self.rounds.fitted.tiers[0].samples:
                raise InputError(
                    f"n is {size}; this fit rests on what samples say: expected at least 2. With "
                    f"samples='{AS_NEEDED}' (--fast) it decides with fewer, or none."
                )
            samples = 0.0  # the first of the rounds: the answer alone
        if len({query.id for query in queries}) < len(queries):
            raise InputError("two queries have the same id; ids must be unique.")
        found: dict[str, Found] = {}
        for shown in (True, False):  # apart: of those without a picture less is known
            asked = self._asked([q for q in queries if bool(q.images) is shown], found)
            if not asked.queries:
                continue
            if samples is None:
                self._at_once(asked, found, size, terms)
            else:
                self._in_rounds(asked, found, samples, terms)
        return Rows(found[query.id] for query in queries)

    def _title(self) -> str:
        name = EMBEDDED if self.about == ABOUT_EMBEDDED else self.model.name
        return f"Assistant with the model {name}"

    def _facts(self) -> dict[str, str]:
        fitted = self.fuse.model
        rounds = "none" if self.rounds is None else ", ".join(t.name for t in self.rounds.tiers)
        return {
            "calibration": self.fuse._facts()["state"],
            "prior": ", ".join(fitted.statistics.names) or "none",
            "evidence": ", ".join(fitted.evidence),
            "samples": f"{self.sample.n} at temperature {self.sample.temperature}",
            "rounds": rounds,
            **({"about": self.about} if self.about else {}),
        }

    def _asked(self, queries: Sequence[Query], found: dict[str, Found]) -> Asked:
        """The queries that can be asked, with all that is known of them; the others' errors."""
        from fusevlm.data.images import load_image
        from fusevlm.pipeline.embed import embedded

        good, blind = [], not needs_pictures(self.fuse)
        for query in queries:
            try:
                if not query.question.strip():
                    raise InputError("the question is empty.")
                if not (query.images or blind):
                    raise InputError(NO_PICTURE)
                good.append(replace(query, images=[load_image(one) for one in query.images]))
            except FuseError as error:
                found[query.id] = error
        if not good:
            return Asked([], {}, {}, {})
        sees = getattr(self.towers, "sees", False) and any(query.images for query in good)
        rows, arrays = embedded(self.towers, good, activations=True, pictures=bool(sees))
        kept = [k for k, why in enumerate(rows["error"]) if why is None]
        for query, why in zip(good, rows["error"], strict=True):
            if why is not None:
                found[query.id] = InputError(why)
        asked = Asked(
            good, self._statistics(arrays), _named(arrays, {"image": "image", "text": "text"}),
            {**_named(arrays, {"image": "image_view", "question": "text_pre"}),
             **({"question_words": [query.question for query in good]} if arrays else {})},
        )  # fmt: skip
        return asked if len(kept) == len(good) else asked.take(kept)

    def _statistics(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Prior statistics of embedded queries, by name."""
        given: dict[str, Any] = {}
        if self.adapter is not None:
            given |= self.adapter.statistics(arrays.get("image"), arrays.get("text"))
        if self.references is not None:
            given |= self.references.statistics(arrays.get("image_pre"), arrays.get("text_pre"))
        return given | ({"s": given[self.statistic]} if self.statistic in given else {})

    def table(
        self, asked: Asked, said: Sequence[Samples], prompts: Sequence[Mapping[str, Any]]
    ) -> Queries:
        """What the fit is given of queries with what was said to them."""
        layer = self.sample.prompt_layer
        inputs = dict(asked.inputs)
        if all(layer in prompt for prompt in prompts):
            inputs["prompt"] = np.stack([np.asarray(prompt[layer]) for prompt in prompts])
        fitted = self.fuse.model
        judged = {} if fitted.novelty is None else fitted.novelty.views
        return Queries(
            [query.id for query in asked.queries],
            said,
            prior=_chosen(asked.prior, fitted.statistics.names, "prior statistic"),
            inputs=_chosen(inputs, fitted.input_widths, "input"),
            views=_chosen(asked.views, judged, "view") if set(judged) <= set(asked.views) else {},
        )

    def _at_once(self, asked: Asked, found: dict[str, Found], n: int, terms: Terms) -> None:
        """All n samples of each query, and one look."""
        from fusevlm.models.temperatures import parse

        heat = parse(self.sample.temperature, n, terms.seed)

        def tell(so_far: Sequence[Generation]) -> None:
            for query, one in zip(asked.queries, so_far, strict=True):
                if one.samples is not None:
                    tier = f"{len(one.samples)} samples"
                    terms.watch(Seen(query, one.samples, tier, float("nan")))

        drawn = draw(self.model, asked.queries, heat, terms.seed, terms.steps, tell)
        asked, said, prompts = _answered(asked, drawn, found)
        if not asked.queries:
            return
        table = self.table(asked, said, prompts)
        table = replace(table, evidence=self.further(asked.queries, said))
        scores = self.fuse.score(table)
        decided = self.fuse.decide(scores, risk=terms.risk, delta=terms.delta)
        why = self.fuse.explain_scores(scores, said, decided.reason)
        for k, query in enumerate(asked.queries):
            p, own = float(decided.p_wrong[k]), table.take([k])
            terms.watch(Seen(query, said[k], f"{n} samples", p, own, scores.take([k])))
        self._tell(asked.queries, said, table, decided, why, scores, found, terms)

    def _tell(
        self, queries: Sequence[Query], said: Sequence[Samples], table: Queries,
        decided: Decisions, why: Sequence[Explanation], scores: Scores, found: dict[str, Found],
        terms: Terms, generated: Any = None,
    ) -> None:  # fmt: skip
        """Put the answers of queries that were decided into their places."""
        told = answers(
            decided, why, scores, queries, said, risk=terms.risk, delta=terms.delta,
            near=near(self.neighbours, table.inputs, len(table)), model=self.model.name,
            about=self.about, generated=generated,
        )  # fmt: skip
        found.update({query.id: one for query, one in zip(queries, told, strict=True)})

    def _in_rounds(
        self, asked: Asked, found: dict[str, Found], samples: float | str, terms: Terms
    ) -> None:
        """Tier by tier, each query as long as its decision is open."""
        rounds = self.rounds
        if rounds is None:
            raise InputError(
                "this fit knows no rounds: it needs labels, and rounds.use in the config of its "
                "run. Ask with n=… instead."
            )
        budget = None if samples == AS_NEEDED else checks.scalar(samples, "samples")
        plan = rounds.plan(terms.risk, terms.delta, budget)
        tiers = rounds.fitted.tiers
        going = Going(asked)
        with self._session(asked.queries, tiers[-1].samples, terms.seed) as session:
            for k in range(len(tiers)):
                going = self._round(rounds, plan, k, going, session, found, terms)
                if not going.asked.queries:
                    return

    def _round(
        self, rounds: Rounds, plan: Plan, k: int, going: Going, session: Session,
        found: dict[str, Found], terms: Terms,
    ) -> Going:  # fmt: skip
        """Draw what tier k needs, look, tell of the queries that end here; those that go on."""
        tiers = rounds.fitted.tiers
        drawn = list(session.draw([q.id for q in going.asked.queries], tiers[k].samples))
        left = [i for i, one in enumerate(drawn) if one.samples is not None]
        asked, said, prompts = _answered(going.asked, drawn, found)
        if not asked.queries:
            return Going(asked)
        going = replace(going.take(left), asked=asked)
        if going.negatable is None:
            going = replace(going, negatable=self._can_be_negated(asked.queries, said))
        table = self.table(asked, said, prompts)
        if tiers[k].extra:
            extra = self.further(asked.queries, said, tiers[k].extra)
            table = replace(table, evidence=extra)
        assert going.negatable is not None
        cost = costs(tiers, going.negatable)
        look = rounds.look(k, table, plan, cost)
        first = look.scores if going.first is None else going.first
        chance = rounds.chance(look.p, plan)
        for i, query in enumerate(asked.queries):
            terms.watch(Seen(query, said[i], tiers[k].name, float(chance[i])))
        ends = np.flatnonzero(~look.go_on | (k == len(tiers) - 1)).tolist()
        if ends:
            decided = rounds.ended(k, look, first, ends, plan, cost)
            ended = [said[i] for i in ends]
            why = rounds.explain(k, decided, ended)
            queries = [asked.queries[i] for i in ends]
            self._tell(
                queries, ended, table.take(ends), decided, why, decided.scores[0], found, terms,
                decided.answers,
            )  # fmt: skip
        return replace(going, first=first).take(np.flatnonzero(look.go_on).tolist())

    @contextmanager
    def _session(self, queries: Sequence[Query], n: int, seed: int) -> Iterator[Session]:
        """Samples in rounds; of a model that cannot, all of them in the first that needs any."""
        from fusevlm.models.temperatures import parse

        heat = parse(self.sample.temperature, n, seed)
        if isinstance(self.model, InRounds):
            with self.model.begin(queries, heat, seed) as session:
                yield session
        else:
            yield _AtOnce(self.model, {query.id: query for query in queries}, heat, seed)

    def _can_be_negated(self, queries: Sequence[Query], said: Sequence[Samples]) -> BoolArray:
        """Which questions have an opposite that can be asked: yes/no ones with such an answer."""
        from fusevlm.semantics.negate import negate, says_yes

        if self.semantics.complement == "model":
            return np.array([says_yes(one.answer or "") is not None for one in said])
        return np.array(
            [
                negate(query.question) is not None and says_yes(one.answer or "") is not None
                for query, one in zip(queries, said, strict=True)
            ]
        )

    def further(
        self,
        queries: Sequence[Query],
        said: Sequence[Samples],
        wanted: Iterable[str] | None = None,
    ) -> dict[str, Any]:
        """Evidence of the fit beyond what samples hold, as the pipeline makes it.

        NaN where it cannot be asked: the complement of a question that is not yes/no.
        """
        from fusevlm.scores.likelihood import margin_column
        from fusevlm.semantics.find import Tools, find_semantics

        asked = self.fuse.model.asked if wanted is None else tuple(wanted)
        found: dict[str, Any] = {}
        if MARGIN in asked:
            found[MARGIN] = margin_column(Queries([query.id for query in queries], said))
        if COMPLEMENT not in asked:
            return found
        settings = self.semantics
        if settings.complement == "none":
            settings = replace(settings, complement="templates")
        tools = Tools(
            settings, load_vlm=lambda: self.model, generator=str, cache=os.devnull
        )  # no pair is judged
        known = find_semantics(tools, list(zip(queries, said, strict=True)), {COMPLEMENT})
        shares = [float("nan") if one.complement is None else one.complement for one in known]
        return {**found, COMPLEMENT: np.array(shares)}


@dataclass(eq=False)
class _AtOnce:
    """A session of a model that draws all samples together."""

    model: Model
    queries: Mapping[str, Query]
    temperatures: Any
    seed: int
    drawn: dict[str, Generation] = field(default_factory=dict)

    def draw(self, ids: Sequence[str], n: int) -> Iterator[Generation]:
        """One Generation for each of these queries, in order, with its first n samples."""
        size = len(self.temperatures) if n else 0
        left = [
            self.queries[i]
            for i in ids
            if i not in self.drawn or len(self.drawn[i].samples or ()) < n
        ]
        for one in self.model.sample(left, size, self.temperatures[:size], self.seed):
            self.drawn[one.query_id] = one
        for i in ids:
            one = self.drawn[i]
            yield one if one.samples is None else replace(one, samples=one.samples.first(n))


def _answered(
    asked: Asked, drawn: Sequence[Generation], found: dict[str, Found]
) -> tuple[Asked, list[Samples], list[Mapping[str, Any]]]:
    """The queries that were answered, what was said, and the prompts' states; others' errors."""
    for one in drawn:
        if one.samples is None:
            kind = InputError if one.refused else FuseError
            found[one.query_id] = kind(f"the model gave no answer: {one.error}")
    rows = [k for k, one in enumerate(drawn) if one.samples is not None]
    said = [one.samples for one in drawn if one.samples is not None]
    kept = asked if len(rows) == len(drawn) else asked.take(rows)
    return kept, said, [drawn[k].prompt_layers for k in rows]


def _named(arrays: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Arrays under other names, as far as they are there."""
    return {name: arrays[own] for name, own in names.items() if own in arrays}


def _chosen(given: Mapping[str, Any], names: Iterable[str], what: str) -> dict[str, Any]:
    """What the fit had, of what there is of a question."""
    for name in names:
        if name not in given:
            raise InputError(
                f"the fit has the {what} {name!r}, and of a question asked there is only "
                f"{', '.join(given)}. Score with Fuse.score, which takes what you have."
            )
    return {name: given[name] for name in names}


def load(source: str | os.PathLike[str] = EMBEDDED) -> Assistant:
    """A model with its calibration, ready to be asked.

    source  ``embedded``, the small model that comes along; or a run folder whose stage calibrate is
            done, which brings the model of its config
    """
    from fusevlm.pipeline.adapter import load_adapter, load_references
    from fusevlm.pipeline.calibrate import NEIGHBOURS, ROUNDS
    from fusevlm.pipeline.embed import load_towers
    from fusevlm.pipeline.sample import load_sampler

    if source == EMBEDDED:
        from fusevlm.models.registry import model_folder

        run, config, references = Path(), Config(), None
        fuse, home = Fuse.load(model_folder(EMBEDDED, "fuse")), Path(model_folder(EMBEDDED, "fuse"))
    else:
        run = Path(source)
        config, fuse = _calibrated(run)
        references, home = load_references(run, config), run / "calibrate"
    known, rounds = home / NEIGHBOURS, home / ROUNDS
    return Assistant(
        load_sampler(config),
        load_towers(config.embed),
        load_adapter(run, config),
        fuse,
        config.sample,
        config.adapter.statistic,
        references,
        config.semantics,
        Neighbours.load(known) if known.is_dir() else None,
        ABOUT_EMBEDDED if config.sample.model == EMBEDDED else "",
        Rounds.load(rounds) if rounds.is_dir() else None,
    )


def _calibrated(run: Path) -> tuple[Config, Fuse]:
    """The config of a run and the first form of FUSE it calibrated."""
    from fusevlm.pipeline.methods import FUSE, METHODS
    from fusevlm.store.runs import read_run, require_whole

    config = read_run(run)
    home = require_whole(run, "calibrate")
    forms = [name for name, method in METHODS.items() if method.group == FUSE]
    for name in config.calibrate.methods:
        if name in forms and (home / name).is_dir():
            return config, Fuse.load(home / name)
    raise ArtefactError(
        f"{run} has calibrated no form of FUSE. Add one of {', '.join(forms)} to calibrate.methods."
    )
