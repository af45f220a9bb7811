"""``fusevlm.load``: a vision-language model that says how far its answer can be trusted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.config import Config, SampleConfig, SemanticsConfig
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import ArtefactError, FuseError, InputError
from fusevlm.fuse.estimator import Fuse
from fusevlm.fuse.results import LIKELY_WRONG, NOTHING_CERTIFIED, UNLIKE
from fusevlm.types import Queries, Query, Samples

if TYPE_CHECKING:
    from fusevlm.models.protocol import Model
    from fusevlm.models.towers import Towers
    from fusevlm.priors.activations import ActivationPrior
    from fusevlm.priors.gp.adapter import GpAdapter

ANSWER, ABSTAIN = "answer", "abstain"
COMPLEMENT = "complement"  # evidence that takes the negated question
MARGIN = "margin"


@dataclass(frozen=True)
class Answer:
    """What ``ask`` found. The first nine fields are those of ``fusevlm ask --json``."""

    answer: str
    samples: dict[str, int]  # sampled answers with counts, most frequent first
    m0: float
    evidence: float
    m_post: float
    u: float
    p_wrong: float
    decision: str  # answer or abstain
    reason: str  # of abstaining; empty where the decision is answer
    threshold: float  # answer iff u is at most this; −inf: nothing can be certified
    risk: float
    delta: float
    novelty: float | None  # p-value of being like the calibration's queries; None: not judged

    def as_dict(self) -> dict[str, Any]:
        """The nine fields of the JSON form."""
        return {name: getattr(self, name) for name in JSON_FIELDS}

    def __str__(self) -> str:
        n = sum(self.samples.values())
        said = [f"{count:>4} × {text or '(nothing)'}" for text, count in self.samples.items()]
        lines = [
            f"{self.answer or '(nothing)'}",
            "",
            f"decision    {self.decision}  ({self._why()})",
            f"P(wrong)    {self.p_wrong:.3f}",
            "",
            f"{n} sampled answers",
            *said,
            "",
            f"prior       {self.m0:+.3f}   from the image and the question alone",
            f"evidence    {self.evidence:+.3f}   from the answers",
            f"posterior   {self.m_post:+.3f}",
            f"u*          {self.u:+.3f}   higher is less sure",
        ]
        return "\n".join(lines + self._notes())

    def _repr_html_(self) -> str:
        said = "".join(
            f"<li>{c} × {escape(t or '(nothing)')}</li>" for t, c in self.samples.items()
        )
        figures = {
            "P(wrong)": self.p_wrong,
            "prior m0": self.m0,
            "evidence": self.evidence,
            "posterior m_post": self.m_post,
            "u*": self.u,
        }
        rows = "".join(
            f'<tr><td style="text-align:left">{name}</td><td>{value:.3f}</td></tr>'
            for name, value in figures.items()
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes() if note)
        return (
            f"<div><p><b>{escape(self.answer or '(nothing)')}</b> – {self.decision} "
            f"<small>({escape(self._why())})</small></p><ul>{said}</ul>"
            f"<table>{rows}</table>{notes}</div>"
        )

    def _why(self) -> str:
        if self.reason.startswith(UNLIKE):
            return f"{self.reason}; p = {self.novelty:.2g}"
        if self.reason == NOTHING_CERTIFIED:
            return f"no threshold can be certified for risk {self.risk:g}"
        if self.reason == LIKELY_WRONG:
            return self.reason
        sign = "≤" if self.decision == ANSWER else ">"
        return f"u* {self.u:.3f} {sign} {self.threshold:.3f}, the limit for risk {self.risk:g}"

    def _notes(self) -> list[str]:
        """What the figures do not say."""
        if self.reason.startswith(UNLIKE):
            return ["", "note: P(wrong) is that of queries like the calibration's; of others it is "
                    "not known."]  # fmt: skip
        if self.decision == ANSWER:
            return ["", f"note: of all questions that are answered, at most {self.risk:.0%} are "
                    f"answered wrongly; of this one the probability is P(wrong)."]  # fmt: skip
        return []


JSON_FIELDS = (
    "answer", "samples", "m0", "evidence", "m_post", "u", "p_wrong", "decision", "reason",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Assistant:
    """A model with its towers, its prior and a fitted Fuse."""

    model: Model
    towers: Towers
    adapter: GpAdapter
    fuse: Fuse
    sample: SampleConfig
    statistic: str  # of the adapter or the references, which is s
    references: ActivationPrior | None = None  # for statistics of the towers' activations
    semantics: SemanticsConfig = field(default_factory=SemanticsConfig)

    def ask(
        self,
        image: Any,
        question: str,
        *,
        risk: float = 0.05,
        delta: float = 0.1,
        n: int | None = None,
        seed: int = 0,
    ) -> Answer:
        """Answer a question about an image (a path, bytes or a PIL image), or abstain.

        Where the decision is ``answer``, the error rate among such answers is at most ``risk`` with
        probability 1 − ``delta``, for questions like those of the calibration.
        """
        from fusevlm.data.images import load_image
        from fusevlm.models.temperatures import parse

        if not question.strip():
            raise InputError("the question is empty.")
        n = checks.count(self.sample.n if n is None else n, "n", least=2)
        picture = load_image(image)
        heat = parse(self.sample.temperature, n, seed)
        query = Query("ask", question, [picture])
        (found,) = self.model.sample([query], n, heat, seed)
        if found.samples is None:
            raise FuseError(f"the model gave no answer: {found.error}")
        s, inputs, views = self._known(picture, question, found.prompt_layers)
        scores = self.fuse.score(
            [found.samples],
            s=s or None,
            inputs=inputs or None,
            views=views or None,
            extra=self.further(query, found.samples) or None,
        )
        decided = self.fuse.decide(scores, risk=risk, delta=delta)
        theta: Any = decided.threshold
        return Answer(
            answer=found.samples.answer or "",
            samples=dict(Counter(found.samples.texts).most_common()),
            m0=float(scores.m0[0]),
            evidence=float(scores.evidence[0]),
            m_post=float(scores.m_post[0]),
            u=float(scores.u[0]),
            p_wrong=float(decided.p_wrong[0]),
            decision=ANSWER if bool(decided.answer[0]) else ABSTAIN,
            reason=decided.reason[0],
            threshold=float(theta.threshold),
            risk=risk,
            delta=delta,
            novelty=None if np.isnan(scores.novelty[0]) else float(scores.novelty[0]),
        )

    def _known(
        self, picture: Any, question: str, prompt_layers: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """The prior statistics, inputs and views that the fit had, of one query, by name."""
        from fusevlm.pipeline.embed import image_view

        image, text = self.towers.image_features([picture]), self.towers.texts([question])
        given = dict(self.adapter.statistics(image.vectors, text.vectors))
        if self.references is not None:
            given |= self.references.statistics(image.activations, text.activations)
        given["s"] = given[self.statistic]
        inputs = {"image": image.vectors, "text": text.vectors}
        if self.sample.prompt_layer in prompt_layers:
            inputs["prompt"] = np.asarray(prompt_layers[self.sample.prompt_layer])[None]
        views = {
            "image": image_view(image, [picture]),
            "question": text.activations,
            "question_words": [question],
        }
        fitted = self.fuse.model
        judged = {} if fitted.novelty is None else fitted.novelty.views
        return (
            _chosen(given, fitted.statistics.names, "prior statistic"),
            _chosen(inputs, fitted.input_widths, "input"),
            _chosen(views, judged, "view") if set(judged) <= set(views) else {},
        )

    def further(self, query: Query, samples: Samples) -> dict[str, list[float]]:
        """Evidence of the fit beyond what samples hold, as the pipeline makes it.

        NaN where it cannot be asked: the complement of a question that is not yes/no.
        """
        from fusevlm.scores.likelihood import margin_column
        from fusevlm.semantics.find import Tools, find_semantics

        found: dict[str, list[float]] = {}
        if MARGIN in self.fuse.model.asked:
            found[MARGIN] = margin_column(Queries([query.id], [samples])).tolist()
        if COMPLEMENT not in self.fuse.model.asked:
            return found
        wanted = self.semantics
        if wanted.complement == "none":
            wanted = replace(wanted, complement="templates")
        tools = Tools(
            wanted, load_vlm=lambda: self.model, generator=str, cache=os.devnull
        )  # no pair is judged
        (known,) = find_semantics(tools, [(query, samples)], {COMPLEMENT})
        share = float("nan") if known.complement is None else known.complement
        return {**found, COMPLEMENT: [share]}


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
    """An Assistant from ``embedded``, or from a run folder whose stage calibrate is done."""
    from fusevlm.pipeline.adapter import load_adapter, load_references
    from fusevlm.pipeline.embed import load_towers
    from fusevlm.pipeline.sample import load_sampler

    if source == EMBEDDED:
        run, config, fuse, references = Path(), Config(), _embedded_fuse(), None
    else:
        run = Path(source)
        config, fuse = _calibrated(run)
        references = load_references(run, config)
    return Assistant(
        load_sampler(config.sample),
        load_towers(config.embed),
        load_adapter(run, config),
        fuse,
        config.sample,
        config.adapter.statistic,
        references,
        config.semantics,
    )


def _embedded_fuse() -> Fuse:
    from fusevlm.models.registry import model_folder

    return Fuse.load(model_folder(EMBEDDED, "fuse"))


def _calibrated(run: Path) -> tuple[Config, Fuse]:
    """The config of a run and the first form of FUSE it calibrated."""
    from fusevlm.pipeline.methods import FUSE, METHODS
    from fusevlm.store.runs import read_run, require

    config = read_run(run)
    home = require(run, "calibrate")
    forms = [name for name, method in METHODS.items() if method.group == FUSE]
    for name in config.calibrate.methods:
        if name in forms and (home / name).is_dir():
            return config, Fuse.load(home / name)
    raise ArtefactError(
        f"{run} has calibrated no form of FUSE. Add one of {', '.join(forms)} to calibrate.methods."
    )
