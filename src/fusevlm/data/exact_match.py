"""The same words, apart from case and punctuation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")


def exact_match(answer: str, references: Sequence[str]) -> float:
    """1 if ``answer`` equals any reference after :func:`plain`, else 0."""
    said = plain(answer)
    return float(any(said == plain(reference) for reference in references))


def plain(text: str) -> str:
    """Lower case, without punctuation and symbols, single spaces.

    A point between two digits stays: 1.5 is not 15.
    """
    pieces = DECIMAL_POINT.split(text.lower())
    kept = ".".join("".join(c for c in piece if not _is_mark(c)) for piece in pieces)
    return " ".join(kept.split())


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"
