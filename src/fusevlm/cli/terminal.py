"""All that the command says goes through here: without control characters, whatever is in it."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable

# C0 but newline and tab, DEL, C1; marks that turn the direction of text; halves of characters
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
EXIT_PIPE = 141  # as the shell has it: 128 and SIGPIPE


def printable(text: str) -> str:
    r"""``text`` with what a terminal would obey written out, such as \u001b."""
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


STYLES = {"good": "32;1", "bad": "31;1", "dim": "2", "bold": "1"}


def coloured() -> bool:
    """Whether colours are wanted: on a terminal, unless NO_COLOR is set."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def paint(pieces: Iterable[tuple[str, str]]) -> None:
    """Print a line of styled pieces; in colour where that is wanted."""
    colour = coloured()
    shown = [
        f"\x1b[{STYLES[style]}m{printable(text)}\x1b[0m"
        if colour and style in STYLES
        else printable(text)
        for text, style in pieces
    ]
    print("".join(shown))


def tell(text: object = "", *, error: bool = False) -> None:
    """Print a line or several, on standard output or as an ``error``."""
    print(printable(str(text)), file=sys.stderr if error else sys.stdout, flush=error)


class Plain(logging.Formatter):
    """Log lines without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class Once(logging.Filter):
    """Lets a line through once, however many methods or batches it is true of."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it was not said before."""
        text = record.getMessage()
        new = text not in self.said
        self.said.add(text)
        return new


def prepare(level: int) -> None:
    """Set up the log, and write out what the terminal's encoding lacks instead of failing."""
    handler = logging.StreamHandler()
    handler.addFilter(Once())
    handler.setFormatter(Plain("%(levelname)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def confirmed(question: str) -> bool:
    """Ask on a terminal; where there is none, whoever gave the command meant it."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def nobody_reads() -> int:
    """The exit code when the reader of a pipe has gone; nothing more is written to it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE
