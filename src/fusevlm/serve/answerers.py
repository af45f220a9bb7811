"""Who answers: an Assistant, or any model whose samples a saved Scorer judges."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fusevlm import checks
from fusevlm.assistant import Found, Seen, Watch
from fusevlm.data.sampled import Sampled
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import FuseError, InputError
from fusevlm.fuse.estimator import Fuse
from fusevlm.models.protocol import Model, Paid, draw
from fusevlm.models.registry import load_model, split_source
from fusevlm.scorer import Scorer
from fusevlm.serve.memory import light
from fusevlm.store.runs import is_run
from fusevlm.types import Generation, Query

STEPS = (2, 4, 8, 12, 16, 24, 32, 48, 64)  # samples after which those who watch are told


class Answerer(Protocol):
    """What a server asks: queries in, answers with decisions out."""

    @property
    def model(self) -> Model: ...

    @property
    def fuse(self) -> Fuse: ...

    def ask_all(
        self,
        queries: Sequence[Query],
        *,
        risk: float,
        delta: float,
        n: int | None,
        samples: float | str | None,
        seed: int,
        watch: Watch,
        steps: Sequence[int],
    ) -> list[Found]:
        """For each query its answer, or the error that kept it from one."""
        ...


@dataclass(frozen=True, eq=False)
class Judged:
    """A model, and a Scorer that was fitted on such samples of it: n at one temperature."""

    model: Model
    scorer: Scorer
    n: int = 10
    temperature: float = 1.0

    def __post_init__(self) -> None:
        wanted = [*self.scorer.features.prior, *self.scorer.features.evidence]
        if wanted:
            raise InputError(
                f"this fit rests on the columns {', '.join(wanted)}, which a model does not bring. "
                f"Fit without them, or send them with your samples to POST /v1/score."
            )

    @property
    def fuse(self) -> Fuse:
        return self.scorer.fuse

    def ask_all(
        self,
        queries: Sequence[Query],
        *,
        risk: float,
        delta: float,
        n: int | None = None,
        samples: float | str | None = None,
        seed: int = 0,
        watch: Watch = lambda seen: None,
        steps: Sequence[int] = (),
    ) -> list[Found]:
        """For each query its answer, or the error that kept it from one."""
        from fusevlm.data.images import load_image
        from fusevlm.models.temperatures import constant

        if samples is not None:
            raise InputError("this fit knows no rounds; ask with n, or with neither.")
        size = checks.count(self.n if n is None else n, "n", least=1)
        found: dict[str, Found] = {}
        good: dict[str, Query] = {}
        for query in queries:
            try:
                for image in query.images:
                    load_image(image)
                good[query.id] = query
            except FuseError as error:
                found[query.id] = error

        def tell(so_far: Sequence[Generation]) -> None:
            for one in so_far:
                if one.samples is not None:
                    tier = f"{len(one.samples)} samples"
                    watch(Seen(good[one.query_id], one.samples, tier, float("nan")))

        heat = constant(size, self.temperature)
        drawn = draw(self.model, list(good.values()), heat, seed, steps, tell) if good else []
        rows = []
        for one in drawn:
            if one.samples is None:
                kind = InputError if one.refused else FuseError
                found[one.query_id] = kind(f"the model gave no answer: {one.error}")
            else:
                # hidden states are nothing a Scorer was fitted on
                rows.append(Sampled(good[one.query_id], light(one.samples)))
        if rows:
            self._judge(rows, found, risk, delta, watch)
        return [found[query.id] for query in queries]

    def _judge(
        self, rows: Sequence[Sampled], found: dict[str, Found], risk: float, delta: float,
        watch: Watch,
    ) -> None:  # fmt: skip
        """Put the answers to what was sampled into their places."""
        table = self.scorer.table(rows)
        scores = self.fuse.score(table)
        told = self.scorer.decided(
            rows, table, scores, risk=risk, delta=delta, model=self.model.name
        )
        for k, (row, answer) in enumerate(zip(rows, told, strict=True)):
            assert row.samples is not None
            tier = f"{len(row.samples)} samples"
            own, seen = table.take([k]), scores.take([k])
            watch(Seen(row.query, row.samples, tier, answer.p_wrong, own, seen))
            found[row.query.id] = answer


def load_answerer(
    source: str, scorer: Scorer | None = None, *, n: int = 10, temperature: float = 1.0
) -> Answerer:
    """``embedded`` or a run folder, which have a calibration of their own; else a judged model.

    The latter is any model that fusevlm knows, such as openai:NAME@BASE_URL, with a Scorer.
    """
    if source == EMBEDDED or is_run(Path(source)):
        from fusevlm.assistant import load

        return load(source)
    if scorer is None:
        raise InputError(
            f"{source} is no run folder. A model without a run needs a fit of its samples: "
            f"--fit FIT (fusevlm fit TABLE --out FIT)."
        )
    return Judged(load_model(source), scorer, n, temperature)


def public_name(source: str | os.PathLike[str]) -> str:
    """What a model is called before people: no address and no folder of this machine."""
    name, where = split_source(str(source))
    if name == "openai":
        where = where.rpartition("@http")[0] or where
    place = Path(where)
    return place.name if place.name.strip(".") else place.resolve().name


def private_names(answerer: Answerer) -> list[str]:
    """What a model is called here and not before people: its folder, or its address."""
    model: Any = answerer.model
    base = getattr(getattr(model, "service", None), "base", "")
    return [name for name in (model.name, base) if name]


def usual_samples(answerer: Answerer) -> int:
    """How many samples a query gets where nothing else is wanted."""
    settings: Any = getattr(answerer, "sample", answerer)
    return int(settings.n)


def halted(answerer: Answerer) -> str:
    """Why asking would be in vain; nothing as a rule."""
    model: Any = answerer.model
    return str(model.halted) if isinstance(model, Paid) else ""
