"""ROUGE-L: how much of a reference appears in the answer, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence

WORD = re.compile(r"[a-z0-9]+")


def rouge_l(answer: str, references: Sequence[str]) -> float:
    """Largest F1 over the references of the longest common subsequence of words.

    precision = L/|answer|, recall = L/|reference|, so F1 = 2L/(|answer| + |reference|). Words are
    runs of a–z and 0–9 after lower-casing, without stemming; text without any scores 0.
    """
    said = _words(answer)
    return max(_f1(said, _words(reference)) for reference in references)


def _words(text: str) -> list[str]:
    return WORD.findall(text.lower())


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
