"""P(True) (Kadavath et al. 2022): the model is asked whether its own answer is true."""

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
    torch = checks.extra("torch", "P(True)", "torch")
    from fusevlm.models.huggingface import QUERY_ERRORS, HuggingFace

    if len(queries) != len(answers):
        raise InputError(f"{len(answers)} answers for {len(queries)} queries; expected one each.")
    asking = HuggingFace(
        vlm.model, vlm.processor, name=vlm.name,
        decoding=replace(vlm.decoding, prompt="{question}", max_new_tokens=1),
    )  # fmt: skip
    spellings = [first_tokens(asking.tokenizer, word) for word in ("yes", "no")]
    found = np.full((len(queries), 2), np.nan)
    for row, query, answer in zip(found, queries, answers, strict=True):
        text = wording.format(question=query.question, answer=answer)
        try:
            inputs = asking.prepare(replace(query, question=text))
            with torch.inference_mode():
                logits = asking.model(**inputs, logits_to_keep=1).logits[0, -1]
        except QUERY_ERRORS as error:
            logger.warning("no verdict on query %s: %s", query.id, error)
            continue
        p = logits.double().softmax(dim=-1)
        row[:] = [float(p[ids].sum()) for ids in spellings]
    return Verdict(found[:, 0], found[:, 1])


def first_tokens(tokenizer: Any, word: str) -> list[int]:
    """Ids that alone spell the word: in any case, with or without a space before it."""
    cases = (word.lower(), word.capitalize(), word.upper())
    spelt = [
        tokenizer(space + case, add_special_tokens=False)["input_ids"]
        for case in cases
        for space in ("", " ")
    ]
    ids = {ids[0] for ids in spelt if len(ids) == 1} - {tokenizer.unk_token_id}
    if not ids:
        raise InputError(
            f"the tokenizer has no single token for {word!r}, so P(True) cannot be read from the "
            f"first one. Use another uncertainty score for this model."
        )
    return sorted(ids)
