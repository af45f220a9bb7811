"""Is an answer right? The criteria, and a verdict from each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fusevlm import checks
from fusevlm.data.exact_match import exact_match
from fusevlm.data.rouge_l import rouge_l
from fusevlm.data.vqa_accuracy import vqa_accuracy
from fusevlm.errors import InputError

CRITERIA: dict[str, Callable[[str, Sequence[str]], float]] = {
    "exact_match": exact_match,
    "vqa_accuracy": vqa_accuracy,
    "rouge_l": rouge_l,
}
DEFAULT_LEVEL = 0.5


def judge(answer: str, references: Sequence[str], criterion: str = "exact_match") -> float:
    """How right ``answer`` is, from 0 to 1, given the right answers ``references``."""
    score = CRITERIA[checks.choice(criterion, "criterion", tuple(CRITERIA))]
    if not isinstance(answer, str):
        raise InputError(f"answer is {answer!r}; expected a string.")
    if isinstance(references, str) or not all(isinstance(r, str) for r in references):
        raise InputError("references must be a list of strings, one per right answer.")
    if len(references) == 0:
        raise InputError(
            "references is empty, so nothing can be right or wrong. "
            "Use a split that comes with answers, or leave this query out of the labelled ones."
        )
    return score(answer, references)


def is_wrong(
    answer: str,
    references: Sequence[str],
    criterion: str = "exact_match",
    level: float | None = None,
) -> bool:
    """Whether ``answer`` counts as wrong.

    ``exact_match`` is all or nothing and takes no level; the graded criteria call an answer wrong
    when its score is below ``level`` (default 0.5).
    """
    score = judge(answer, references, criterion)
    if criterion == "exact_match":
        if level is not None:
            raise InputError("exact_match is 0 or 1; leave level out, or use a graded criterion.")
        return score < 1.0
    wanted = DEFAULT_LEVEL if level is None else checks.positive(level, "level")
    if wanted > 1.0:
        raise InputError(f"level is {wanted:g}; scores are at most 1, so every answer is wrong.")
    return score < wanted


__all__ = ["CRITERIA", "exact_match", "is_wrong", "judge", "rouge_l", "vqa_accuracy"]
