"""Other questions with the same answer, and whether the model still gives it.

Neighborhood consistency (Khan & Fu 2024): from the image and the model's answer a question
generator makes questions with that answer; a model that knows answers them alike.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fusevlm import checks
from fusevlm.checks import BoolArray
from fusevlm.errors import InputError
from fusevlm.meanings import same_form
from fusevlm.models.protocol import Decoding, Model
from fusevlm.models.registry import HUGGINGFACE, load_model, need_models, split_source
from fusevlm.types import Query

if TYPE_CHECKING:
    from fusevlm.models.huggingface import HuggingFace

logger = logging.getLogger(__name__)

# the wording is the rephraser's own, so the back-end adds nothing to it
REPHRASING = Decoding(prompt="{question}", max_new_tokens=32, top_p=0.9)
FROM_ANSWER = "answer: {answer}"  # what the embedded question generator was taught
ANOTHER = (
    'The question "{question}" about this image was answered "{answer}". Write a different '
    'question about this image whose answer is "{answer}". Reply with that question only.'
)
TEMPLATES = (
    "Look at the image. {question}",
    "In this image: {question}",
    "Please answer from what you see. {question}",
    "{question} Judge by the image alone.",
    "Here is a question about the picture. {question}",
    "According to the picture, {question}",
    "{question} Check the picture before you answer.",
    "Someone asks about this picture: {question}",
)


class Rephraser(Protocol):
    """A source of questions with a given answer."""

    def rephrase(
        self, queries: Sequence[Query], answers: Sequence[str], k: int, seed: int
    ) -> list[list[str]]:
        """Up to ``k`` questions for each query; fewer, or none, where they could not be made."""
        ...


@dataclass(frozen=True)
class ByModel:
    """Questions sampled from a model: its own wording in, a question out.

    ``backend`` should pass the wording through as it is (``REPHRASING``); ``wording`` may hold
    {question} and {answer}. Made by ``by_generator`` or ``by_prompt``.
    """

    backend: Model
    wording: str
    batch: int = 8  # queries sampled together

    def rephrase(
        self, queries: Sequence[Query], answers: Sequence[str], k: int, seed: int
    ) -> list[list[str]]:
        """``k`` samples at temperature 1; blank ones are left out, a failed query has none."""
        k = checks.count(k, "k")
        asked = [
            replace(q, question=self.wording.format(question=q.question, answer=answer))
            for q, answer in _paired(queries, answers)
        ]
        found = []
        for start in range(0, len(asked), self.batch):
            for made in self.backend.sample(asked[start : start + self.batch], k, np.ones(k), seed):
                if made.samples is None:
                    logger.warning("no rephrasings of query %s: %s", made.query_id, made.error)
                texts = () if made.samples is None else made.samples.texts
                found.append([text for text in texts if text.strip()])
        return found


def by_generator(
    source: str, *, wording: str = "", device: str = "cpu", dtype: str = "auto"
) -> ByModel:
    """Any image-to-text model of transformers (folder or hub name), or a registered one, asks.

    ``wording`` is what it is told. If empty, a model that was taught to chat is told in words what
    to write, like :func:`by_prompt`; one that was not (BLIP and alike, trained to ask from an
    answer) gets the answer alone.
    """
    name, where = split_source(source)
    options: dict[str, Any] = {"dtype": dtype, "device": device if device != "cpu" else None}
    if name != HUGGINGFACE:
        return ByModel(load_model(source, REPHRASING, **options), wording or ANOTHER)
    need_models("a question generator")
    if chats(where):
        return ByModel(load_model(where, REPHRASING, **options), wording or ANOTHER)
    from fusevlm.models.image_to_text import ImageToText

    backend = ImageToText.load(where, decoding=REPHRASING, dtype=dtype, device=device)
    return ByModel(backend, wording or FROM_ANSWER)


def chats(source: str) -> bool:
    """Whether a model's processor comes with a chat template."""
    from fusevlm.models.processors import load_processor

    try:
        processor = load_processor(source)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot load {source!r} as a question generator: {error}") from error
    inner = getattr(processor, "tokenizer", None)
    return bool(getattr(processor, "chat_template", None) or getattr(inner, "chat_template", None))


def by_prompt(vlm: HuggingFace) -> ByModel:
    """Any vision-language model, told in words what to write; its weights are shared."""
    from fusevlm.models.huggingface import HuggingFace

    decoding = replace(REPHRASING, layers=vlm.decoding.layers, path=vlm.decoding.path)
    backend = HuggingFace(vlm.model, vlm.processor, decoding=decoding, name=vlm.name)
    return ByModel(backend, ANOTHER)


@dataclass(frozen=True)
class Templates:
    """The same question in fixed frames: no model, no randomness, and no new question either.

    Differs from the paper, whose rephrasings are new questions made from the answer.
    """

    templates: tuple[str, ...] = TEMPLATES

    def rephrase(
        self, queries: Sequence[Query], answers: Sequence[str], k: int, seed: int
    ) -> list[list[str]]:
        """The first ``k`` templates; answers and seed change nothing."""
        k = checks.count(k, "k")
        if k > len(self.templates):
            raise InputError(f"k is {k}; there are {len(self.templates)} templates. Ask for fewer.")
        frames = self.templates[:k]
        return [
            [f.format(question=q.question) for f in frames] for q, _ in _paired(queries, answers)
        ]


def rephrasings_agree(
    backend: Model,
    queries: Sequence[Query],
    answers: Sequence[str],
    rephrasings: Sequence[Sequence[str]],
    *,
    batch: int = 16,
) -> list[BoolArray]:
    """Whether the greedy answer to each rephrasing says the same as the answer.

    One array per query. A rephrasing that fails (too long, for example) has no entry, and is named
    in a warning.
    """
    if len(rephrasings) != len(queries):
        raise InputError(f"{len(rephrasings)} lists of rephrasings for {len(queries)} queries.")
    expected = [same_form(answer) for _, answer in _paired(queries, answers)]
    asked = [
        (q, replace(query, id=f"{query.id}, rephrasing {k + 1}", question=text))
        for q, (query, texts) in enumerate(zip(queries, rephrasings, strict=True))
        for k, text in enumerate(texts)
    ]
    agrees: list[list[bool]] = [[] for _ in queries]
    for start in range(0, len(asked), checks.count(batch, "batch")):
        part = asked[start : start + batch]
        given = backend.sample([query for _, query in part], 1, np.zeros(1), seed=0)
        for (q, _), found in zip(part, given, strict=True):
            answer = None if found.samples is None else found.samples.answer
            if answer is None:
                logger.warning("no answer to query %s: %s", found.query_id, found.error)
            else:
                agrees[q].append(same_form(answer) == expected[q])
    return [np.array(row, dtype=np.bool_) for row in agrees]


def _paired(queries: Sequence[Query], answers: Sequence[str]) -> list[tuple[Query, str]]:
    if len(queries) != len(answers):
        raise InputError(f"{len(answers)} answers for {len(queries)} queries; expected one each.")
    return list(zip(queries, answers, strict=True))
