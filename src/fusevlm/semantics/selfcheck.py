"""What a model's first token says: yes or no.

P(True) (Kadavath et al. 2022): the model is asked whether its own answer is true.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import checks
from fusevlm.checks import FloatArray
from fusevlm.errors import InputError
from fusevlm.types import Query

if TYPE_CHECKING:
    from fusevlm.models.huggingface import HuggingFace

logger = logging.getLogger(__name__)

WORDING = (
    "Question: {question}\nProposed answer: {answer}\n"
    "Is the proposed answer true? Answer yes or no."
)


@dataclass(frozen=True, eq=False)
class Verdict:
    """The model's first token after the wording, one entry per query; NaN where it failed."""

    yes: FloatArray  # P(the token is a spelling of "yes"): P(True)
    no: FloatArray

    @property
    def share(self) -> FloatArray:
        """P(yes) among yes and no: for models that often begin with something else."""
        with np.errstate(invalid="ignore"):  # neither is possible: undefined
            return self.yes / (self.yes + self.no)


def p_true(
    vlm: HuggingFace, queries: Sequence[Query], answers: Sequence[str], *, wording: str = WORDING
) -> Verdict:
    """One forward pass over image and wording per query; temperature 1, nothing is sampled.

    A spelling counts where the tokenizer has it as one token. Differs from the paper: no list of
    other sampled answers precedes the question, and the choices are yes and no, not (A) and (B).
    """
    checks.extra("torch", "P(True)", "torch")
    from fusevlm.models.huggingface import HuggingFace

    if len(queries) != len(answers):
        raise InputError(f"{len(answers)} answers for {len(queries)} queries; expected one each.")
    asking = HuggingFace(
        vlm.model, vlm.processor, name=vlm.name,
        decoding=replace(vlm.decoding, prompt="{question}", max_new_tokens=1),
    )  # fmt: skip
    told = [
        replace(query, question=wording.format(question=query.question, answer=answer))
        for query, answer in zip(queries, answers, strict=True)
    ]
    return verdicts(asking, told)


def verdicts(
    vlm: HuggingFace,
    queries: Sequence[Query],
    *,
    yes: Sequence[str] = ("yes",),
    no: Sequence[str] = ("no",),
) -> Verdict:
    """The first token that the model, prompted as it is, would answer each query with.

    One forward pass per query, temperature 1. ``yes`` and ``no`` are words that count as such; the
    tokenizer must have one of each as a single token.
    """
    import torch

    from fusevlm.models.rows import QUERY_ERRORS
    from fusevlm.models.turns import turn

    spellings = [_any_first_tokens(vlm.tokenizer, words) for words in (yes, no)]
    found = np.full((len(queries), 2), np.nan)
    for row, query in zip(found, queries, strict=True):
        try:
            with turn(vlm.model), torch.inference_mode():
                inputs = vlm.prepare(query)
                logits = vlm.model(**inputs, logits_to_keep=1).logits[0, -1]
        except QUERY_ERRORS as error:
            logger.warning("no verdict on query %s: %s", query.id, error)
            continue
        p = logits.double().softmax(dim=-1)
        row[:] = [float(p[ids].sum()) for ids in spellings]
    return Verdict(found[:, 0], found[:, 1])


def _any_first_tokens(tokenizer: Any, words: Sequence[str]) -> list[int]:
    """Those of all words, of which the first must have some."""
    found = set(first_tokens(tokenizer, words[0]))
    for word in words[1:]:
        found |= spelt_alone(tokenizer, word)
    return sorted(found)


def first_tokens(tokenizer: Any, word: str) -> list[int]:
    """Ids that alone spell the word, or InputError if there are none."""
    ids = spelt_alone(tokenizer, word)
    if not ids:
        raise InputError(
            f"the tokenizer has no single token for {word!r}, so P(True) cannot be read from the "
            f"first one. Use another uncertainty score for this model."
        )
    return sorted(ids)


def spelt_alone(tokenizer: Any, word: str) -> set[int]:
    """Ids that alone spell the word: in any case, with or without a space before it."""
    cases = (word.lower(), word.capitalize(), word.upper())
    spelt = [
        tokenizer(space + case, add_special_tokens=False)["input_ids"]
        for case in cases
        for space in ("", " ")
    ]
    return {ids[0] for ids in spelt if len(ids) == 1} - {tokenizer.unk_token_id}
