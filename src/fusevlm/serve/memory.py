"""The last answers, for feedback on them and for decisions at another risk; bounded."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from sys import getsizeof

from fusevlm.fuse.results import Scores
from fusevlm.render.answer import Answer
from fusevlm.types import Samples


@dataclass(frozen=True, eq=False)
class Known:
    """An answer that was given, and what it rests on.

    samples  texts and log-probabilities, no hidden states
    scores   one row, of the answerer or of the scorer; None where samples were drawn in rounds
    unit     what it has in common with others: its pictures, else its question
    """

    answer: Answer
    samples: Samples
    scores: Scores | None
    unit: str
    judged_by_scorer: bool = False


def light(samples: Samples) -> Samples:
    """Without hidden states, which are large."""
    return replace(samples, embeddings=None, gram=None, gram_dim=None)


def weight(known: Known) -> int:
    """Bytes of the texts and log-probabilities that an answer rests on."""
    said, own = known.samples, known.samples.answer_logprobs
    rows = [*(said.token_logprobs or ()), *([] if own is None else [own])]
    return sum(map(getsizeof, (*said.texts, *rows, known.answer.question)))


class Memory:
    """Answers by id, so many and of so many bytes; the oldest are forgotten first."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self._most_bytes, self._held = most, most_bytes, 0
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, name: str, known: Known) -> list[str]:
        """Remember an answer; the ids of those that are forgotten for it."""
        with self._lock:
            self._known[name] = known
            self._held += weight(known)
            forgotten: list[str] = []
            while len(self._known) > self.most or self._held > self._most_bytes:
                oldest, gone = self._known.popitem(last=False)
                self._held -= weight(gone)
                forgotten.append(oldest)
            return forgotten

    def find(self, name: str) -> Known | None:
        """The answer of that id, if it is still known."""
        with self._lock:
            return self._known.get(name)

    def __len__(self) -> int:
        return len(self._known)
