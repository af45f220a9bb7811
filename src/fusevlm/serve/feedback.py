"""Was the answer wrong? What people say goes into a table that ``fusevlm fit`` reads.

JSON lines, a row per answer: its question, samples with log-probabilities where there are any, the
answer, and ``wrong``. Pictures are not kept; ``picture`` is a digest of them, so that queries about
one picture stay together (``fusevlm fit TABLE --unit picture``).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fusevlm.errors import InputError
from fusevlm.serve.faults import Fault
from fusevlm.serve.memory import Known
from fusevlm.store.journal import append_line

ENDING = ".jsonl"


class Feedback:
    """A table that grows by a row for each answer somebody judged."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix != ENDING:
            raise InputError(f"--feedback is {path}; expected a file that ends in {ENDING}.")
        self._told: dict[str, bool] = {}  # of answers that are known, so bounded as they are
        self._lock = threading.Lock()

    def tell(self, name: str, known: Known, wrong: bool) -> bool:
        """Keep what was said of an answer; False: it is no news, for the same was said before."""
        with self._lock:
            before = self._told.get(name)
            if before is not None:
                if before != wrong:
                    raise Fault("told_otherwise")
                return False
            append_line(self.path, (json.dumps(row_of(name, known, wrong)) + "\n").encode())
            self._told[name] = wrong
            return True

    def forget(self, names: Sequence[str]) -> None:
        """Answers nobody can speak of any more."""
        with self._lock:
            for name in names:
                self._told.pop(name, None)


def row_of(name: str, known: Known, wrong: bool) -> dict[str, Any]:
    """What ``fusevlm fit`` reads of an answer, and what was decided of it."""
    said, answer = known.samples, known.answer
    row: dict[str, Any] = {
        "id": name,
        "question": answer.question,
        "samples": list(said.texts),
        "answer": said.answer,
        "wrong": int(wrong),
        "picture": known.unit,
        "decision": answer.decision,
        "p_wrong": answer.p_wrong if answer.p_wrong == answer.p_wrong else None,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    if said.token_logprobs is not None and len(said):
        row["logprobs"] = [list(map(float, one)) for one in said.token_logprobs]
    if said.answer_logprobs is not None:
        row["answer_logprobs"] = list(map(float, said.answer_logprobs))
    return row
