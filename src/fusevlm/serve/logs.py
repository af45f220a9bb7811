"""The log as JSON lines: what happened, and never what was asked, shown or sent as a key.

Of our own lines only the facts that are named in :data:`FACTS` are written. Of other libraries'
lines the template is written without what was put into it, and of an exception its type and the
places it came through, not its words: those may quote a question.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LOGGER = "fusevlm.serve"
# what a line may say beside time, level and event
FACTS = (
    "request", "method", "path", "status", "seconds", "code", "decision", "reason", "samples",
    "batch", "model", "host", "port", "p_value", "worst", "error", "places", "bytes", "token",
)  # fmt: skip
LONGEST = 200

logger = logging.getLogger(LOGGER)


def note(event: str, level: int = logging.INFO, **facts: Any) -> None:
    """Write a line."""
    unknown = set(facts) - set(FACTS)
    assert not unknown, f"the log knows no {unknown}"
    logger.log(level, event, extra={"facts": facts})


class JsonLines(logging.Formatter):
    """A record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        if record.name == LOGGER:
            found |= {"event": str(record.msg), **getattr(record, "facts", {})}
        else:
            text = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
            template = text.partition("\n")[0]  # asyncio has an exception's words on the next line
            found |= {"event": "library", "logger": record.name, "template": template[:LONGEST]}
        if record.exc_info and record.exc_info[1] is not None:
            found |= fault_of(record.exc_info[1])
        return json.dumps(found, ensure_ascii=True)


def fault_of(error: BaseException) -> dict[str, Any]:
    """The type of an exception and the last places it came through, without its words."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": type(error).__name__, "places": places}
