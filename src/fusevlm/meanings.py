"""Which texts say the same, by their form alone; no model, so every room can ask.

One rule decides it everywhere (:func:`same_form`). Meanings by entailment or similarity are found
in :mod:`fusevlm.semantics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fusevlm.checks import IntArray
from fusevlm.errors import InputError

ARTICLES = {"a", "an", "the"}
_QUOTES = "\"'`"
_ENDS = ".,;:!?" + _QUOTES


def same_form(text: str) -> str:
    """Lower case, single spaces; without articles, quotes around it and marks that end it.

    Signs inside stay: "-5." is "-5", and neither "5" nor ".5"; 1.5 is not 15. An article that is
    all there is stays too: "A" may be an option. Applied twice it changes nothing more.
    """
    form = " ".join(text.lower().split())
    while True:
        bare = form.lstrip(_QUOTES).rstrip(_ENDS).strip()
        kept = " ".join(word for word in bare.split() if word not in ARTICLES) or bare
        if kept == form:
            return form
        form = kept


def by_string(texts: Sequence[str]) -> IntArray:
    """Meanings [n]: texts with the same form are one, the most frequent is number 0."""
    forms = [same_form(text) for text in strings(texts)]
    number = {form: i for i, form in enumerate(canonical(forms))}
    return np.array([number[form] for form in forms], dtype=np.int64)


def canonical(texts: Sequence[str]) -> list[str]:
    """The distinct texts, most frequent first, ties in the order of the texts themselves."""
    counts = Counter(strings(texts))
    return sorted(counts, key=lambda text: (-counts[text], text))


def strings(texts: Sequence[str]) -> Sequence[str]:
    """``texts`` unchanged, or InputError unless it is a list of strings."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InputError("texts must be a list of strings, one per sample.")
    return texts


def best_sample(texts: Sequence[str], token_logprobs: Sequence[Any] | None = None) -> int:
    """Which of the samples stands for all: of the most frequent meaning, the likeliest.

    Likeliest by mean token log-probability, which also decides between meanings equally frequent.
    What is equal then, or without log-probabilities, is taken in the order of the samples.
    """
    meanings = by_string(texts)
    counts = np.bincount(meanings)[meanings]
    rows = [[0.0]] * len(texts) if token_logprobs is None else token_logprobs
    mean = np.array([np.mean(row) for row in rows])
    return int(np.argmax(np.where(counts == counts.max(), mean, -np.inf)))
