"""Is an answer right? How right it is by each criterion, from 0 to 1, and what counts as wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from fusevlm import checks
from fusevlm.data.answers import plain, vqa_form, words
from fusevlm.errors import InputError

N_REFERENCES = 10
ENOUGH = 3  # this many people make an answer fully right
DEFAULT_LEVEL = 0.5
ALL_OR_NOTHING = ("exact_match", "exact_match_majority")


def grade(answer: str, references: Sequence[str], criterion: str = "exact_match") -> float:
    """How right ``answer`` is, from 0 to 1, given the right answers ``references``."""
    score = CRITERIA[checks.known(criterion, CRITERIA, "criterion")]
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

    The exact matches are all or nothing and take no level; the graded criteria call an answer
    wrong when its grade is below ``level`` (default 0.5).
    """
    found = grade(answer, references, criterion)
    if criterion in ALL_OR_NOTHING:
        if level is not None:
            raise InputError(f"{criterion} is 0 or 1; leave level out, or use a graded criterion.")
        return found < 1.0
    wanted = DEFAULT_LEVEL if level is None else checks.positive(level, "level")
    if wanted > 1.0:
        raise InputError(f"level is {wanted:g}; grades are at most 1, so every answer is wrong.")
    return found < wanted


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 if ``answer`` equals any reference apart from case and punctuation, else 0."""
    said = plain(answer)
    return float(any(said == plain(reference) for reference in references))


def exact_match_majority(answer: str, references: Sequence[str]) -> float:
    """1 if ``answer`` equals the most frequent reference apart from case and punctuation, else 0.

    Of several equally frequent ones each counts as the majority: with ten different references
    this is :func:`exact_match`. References that differ in case or punctuation are counted as one.
    """
    counts = Counter(plain(reference) for reference in references)
    return float(counts[plain(answer)] == max(counts.values()))


def vqa_accuracy(answer: str, references: Sequence[str]) -> float:
    """Mean over the 10 leave-one-out sets of min(1, matches/3), as the official scorer of VQAv2.

    With m of the 10 references equal to the answer, m sets hold m − 1 matches and 10 − m hold m.
    Nothing is normalised when all references are the same string, so "Yes" is wrong if all ten
    people wrote "yes": the official scorer does so. Other revisions in circulation normalise the
    answer always and the references in part.
    """
    if len(references) != N_REFERENCES:
        raise InputError(
            f"vqa_accuracy compares with {N_REFERENCES} references; got {len(references)}. "
            f"Use exact_match where each question has fewer."
        )
    said = _one_line(answer)
    known = [_one_line(reference) for reference in references]
    if len(set(known)) > 1:
        said, known = vqa_form(said), [vqa_form(reference) for reference in known]
    m = known.count(said)
    credit = m * min(m - 1, ENOUGH) + (N_REFERENCES - m) * min(m, ENOUGH)
    return credit / (ENOUGH * N_REFERENCES)


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """ROUGE-L: largest F1 over the references of the longest common subsequence of words.

    precision = L/|answer|, recall = L/|reference|, so F1 = 2L/(|answer| + |reference|); text
    without words scores 0.
    """
    said = words(answer)
    return max(_f1(said, words(reference)) for reference in references)


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _f1(a: list[str], b: list[str]) -> float:
    return 2.0 * _common(a, b) / (len(a) + len(b)) if a and b else 0.0


def _common(a: list[str], b: list[str]) -> int:
    """Length of the longest common subsequence, O(|a|·|b|) time and O(|b|) memory."""
    row = [0] * (len(b) + 1)
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, start=1):
            above = row[j]
            row[j] = diagonal + 1 if word == other else max(above, row[j - 1])
            diagonal = above
    return row[-1]


CRITERIA: dict[str, Callable[[str, Sequence[str]], float]] = {
    "exact_match": exact_match,
    "exact_match_majority": exact_match_majority,
    "vqa_accuracy": vqa_accuracy,
    "rouge_l": rouge_l,
}
