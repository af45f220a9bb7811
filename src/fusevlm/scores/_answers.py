"""Which samples are the same answer.

Two texts are the same if they agree after lower-casing, collapsing spaces and dropping quotes and
the punctuation that ends them. Ties are broken by the alphabet: the order of samples never matters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusevlm.checks import FloatArray, IntArray
from fusevlm.types import Samples

_QUOTES = "\"'`"
_ENDS = ".,;:!?" + _QUOTES


@dataclass(frozen=True, eq=False)
class Answers:
    """The different answers of one query, in alphabetical order.

    texts  c normal forms
    group  [n] which of them each sample is
    share  [c] share of the samples
    """

    texts: tuple[str, ...]
    group: IntArray
    share: FloatArray

    @property
    def top(self) -> int:
        """Index of the most frequent answer; the first in the alphabet among equals."""
        return int(np.argmax(self.share))

    def find(self, text: str) -> int | None:
        """Index of the answer that is ``text``, or None if it was never sampled."""
        form = normal(text)
        return self.texts.index(form) if form in self.texts else None


def normal(text: str) -> str:
    """``text`` in lower case, single-spaced, without quotes or a full stop: "-5." is "-5"."""
    return " ".join(text.lower().split()).lstrip(_QUOTES).rstrip(_ENDS).strip()


def answers(samples: Samples) -> Answers:
    """The different answers of one query and how often each was sampled."""
    forms = [normal(text) for text in samples.texts]
    texts = tuple(sorted(set(forms)))
    place = {form: i for i, form in enumerate(texts)}
    group = np.array([place[form] for form in forms], dtype=np.int64)
    return Answers(texts, group, np.bincount(group, minlength=len(texts)) / len(forms))
