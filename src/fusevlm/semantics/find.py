"""All that scores need to know of samples beyond themselves and that takes a model to find.

Meanings and similarities, whether rephrased questions get the same answer and negated ones the
other, P(True): what the settings leave at "none" stays None, and the scores that need it say so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray, IntArray
from fusevlm.embedded import EMBEDDED
from fusevlm.errors import InputError
from fusevlm.meanings import by_string
from fusevlm.semantics.strings import by_similarity
from fusevlm.settings import SemanticsConfig
from fusevlm.store.cache import PairCache
from fusevlm.types import Query, Samples, Semantics

if TYPE_CHECKING:
    from fusevlm.models.huggingface import HuggingFace
    from fusevlm.models.protocol import Model
    from fusevlm.models.towers import SentenceEncoder
    from fusevlm.semantics.inference import NliModel
    from fusevlm.semantics.rephrase import Rephraser

PARTS = ("meanings", "similarity", "rephrasings", "p_true", "complement")
Batch = Sequence[tuple[Query, Samples]]


class Tools:
    """The models that the settings ask for, each loaded when it is first needed.

    wanted      the settings
    load_vlm    loads the model whose samples these are
    generator   finds the folder (or hub name) of the question generator from its setting
    cache       the file of judged pairs
    """

    def __init__(
        self,
        wanted: SemanticsConfig,
        load_vlm: Callable[[], Model],
        generator: Callable[[str], str],
        cache: str | os.PathLike[str],
    ) -> None:
        self.wanted, self.load_vlm, self.generator = wanted, load_vlm, generator
        self.cache = PairCache(cache)

    @cached_property
    def vlm(self) -> Model:
        return self.load_vlm()

    def open_vlm(self, purpose: str) -> HuggingFace:
        """The model, where its weights are at hand: its own prompts and logits are needed."""
        from fusevlm.models.huggingface import HuggingFace

        if not isinstance(self.vlm, HuggingFace):
            raise InputError(
                f"{purpose} needs a Hugging Face model; {self.vlm.name} is a "
                f"{type(self.vlm).__name__}. Leave it out for this model."
            )
        return self.vlm

    @cached_property
    def nli(self) -> NliModel:
        from fusevlm.semantics.inference import NliModel

        wanted = self.wanted
        return NliModel.load(wanted.nli, device=wanted.device, dtype=wanted.dtype)

    @cached_property
    def encoder(self) -> SentenceEncoder:
        from fusevlm.models.towers import SentenceEncoder

        wanted = self.wanted
        return SentenceEncoder.load(wanted.encoder, device=wanted.device, dtype=wanted.dtype)

    @cached_property
    def rephraser(self) -> Rephraser:
        from fusevlm.semantics import rephrase

        if self.wanted.rephrase == "generator":
            wanted = self.wanted
            wording = wanted.wording
            if wanted.generator == EMBEDDED:
                wording = wording or rephrase.FROM_ANSWER
            return rephrase.by_generator(
                self.generator(wanted.generator),
                wording=wording,
                device=wanted.device,
                dtype=wanted.dtype,
            )
        if self.wanted.rephrase == "prompt":
            return rephrase.by_prompt(self.open_vlm("semantics.rephrase = 'prompt'"))
        return rephrase.Templates()

    def close(self) -> None:
        """Let go of the models and close the cache."""
        self.cache.close()
        for name in ("vlm", "nli", "encoder", "rephraser"):
            self.__dict__.pop(name, None)


def find_semantics(
    tools: Tools, batch: Batch, needed: Collection[str] | None = None
) -> list[Semantics]:
    """What the settings ask for, of some queries; of that, only the ``needed`` of ``PARTS``."""
    asked = PARTS if needed is None else needed
    parts = {checks.known(part, PARTS, "the part of semantics") for part in asked}
    wanted = tools.wanted
    nothing = [None] * len(batch)
    linked = "meanings" in parts and wanted.meanings == "sentences"
    alike = _similarities(tools, batch) if linked or "similarity" in parts else nothing
    columns = (
        _meanings(tools, batch, alike) if "meanings" in parts else nothing,
        alike if "similarity" in parts else nothing,
        _rephrasings(tools, batch) if "rephrasings" in parts else nothing,
        _p_true(tools, batch) if "p_true" in parts and wanted.p_true else nothing,
        _complements(tools, batch) if "complement" in parts else nothing,
    )
    return [Semantics(*row) for row in zip(*columns, strict=True)]


def _similarities(tools: Tools, batch: Batch) -> Sequence[FloatArray | None]:
    """Between the samples and, last, the judged answer of each query."""
    kind = tools.wanted.similarity
    if kind == "none":
        return [None] * len(batch)
    queries, answers = _answered(batch)
    texts = [[*samples.texts, answer] for (_, samples), answer in zip(batch, answers, strict=True)]
    if kind == "nli":
        from fusevlm.semantics.inference import nli_similarity

        asked = [query.question for query in queries]
        return nli_similarity(tools.nli, asked, texts, cache=tools.cache).matrices
    if kind == "sentences":
        from fusevlm.semantics.sentences import sentence_similarity

        return sentence_similarity(tools.encoder, texts)
    return [np.equal.outer(same, same).astype(np.float64) for same in map(by_string, texts)]


def _meanings(tools: Tools, batch: Batch, alike: Sequence[Any]) -> Sequence[IntArray | None]:
    kind = tools.wanted.meanings
    if kind == "none":
        return [None] * len(batch)
    if kind == "sentences":
        return [by_similarity(S[:-1, :-1], tools.wanted.threshold) for S in alike]
    texts = [samples.texts for _, samples in batch]
    if kind == "nli":
        from fusevlm.semantics.inference import find_meanings

        asked = [query.question for query, _ in batch]
        return [*find_meanings(tools.nli, asked, texts, cache=tools.cache).numbers]
    return [by_string(row) for row in texts]


def _rephrasings(tools: Tools, batch: Batch) -> Sequence[BoolArray | None]:
    """Whether the model answers each rephrased question alike."""
    wanted = tools.wanted
    if wanted.rephrase == "none":
        return [None] * len(batch)
    from fusevlm.semantics.rephrase import rephrasings_agree

    queries, answers = _answered(batch)
    asked = tools.rephraser.rephrase(queries, answers, wanted.rephrasings, wanted.seed)
    return rephrasings_agree(tools.vlm, queries, answers, asked)


def _p_true(tools: Tools, batch: Batch) -> list[float]:
    from fusevlm.semantics.selfcheck import p_true

    return [float(p) for p in p_true(tools.open_vlm("semantics.p_true"), *_answered(batch)).yes]


def _complements(tools: Tools, batch: Batch) -> Sequence[float | None]:
    """How far the model fails to give the negated question the other answer."""
    wanted = tools.wanted
    if wanted.complement == "none":
        return [None] * len(batch)
    from fusevlm.semantics.complement import failures_to_flip
    from fusevlm.semantics.negate import negate, negate_by_model

    queries, answers = _answered(batch)
    asked = [query.question for query in queries]
    if wanted.complement == "model":
        negated = negate_by_model(tools.open_vlm("semantics.complement = 'model'"), asked)
    else:
        negated = [negate(question) for question in asked]
    return failures_to_flip(
        tools.vlm, queries, answers, negated, samples=wanted.complement_samples, seed=wanted.seed
    )


def _answered(batch: Batch) -> tuple[list[Query], list[str]]:
    """The queries and their judged answers."""
    answers = []
    for query, samples in batch:
        if samples.answer is None:
            raise InputError(
                f"query {query.id!r} has no judged answer, which similarity, rephrasings, "
                f"P(True) and complement need. Sample it again, or leave the query out."
            )
        answers.append(samples.answer)
    return [query for query, _ in batch], answers
