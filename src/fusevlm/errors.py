"""The errors fusevlm raises on purpose, and its warnings held back.

Every message says what is wrong, what was got, what was expected and what to do about it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class FuseError(Exception):
    """Base of all errors raised by fusevlm."""

    passing = False  # whether the same may go well another time: a file, memory, a network


class InputError(FuseError, ValueError):
    """A value handed in by the caller cannot be used (shape, range, NaN, length, label)."""


class MissingFileError(InputError):
    """A file that a query names is not there; it may come back."""

    passing = True


class NotFittedError(FuseError, RuntimeError):
    """Something was asked for that needs a fit, or labels in the fit, that never happened."""


class UndefinedMetricError(FuseError, ValueError):
    """The metric has no value on this input (for example AUROC when nothing is wrong)."""


class ArtefactError(FuseError, RuntimeError):
    """A stored artefact is missing, truncated, foreign or of another schema version."""


class MissingExtraError(FuseError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


_QUIET: list[int] = []  # the level before, once for each caller inside, whatever its thread
_QUIET_LOCK = Lock()


@contextmanager
def library_quiet() -> Iterator[None]:
    """Hold the library's warnings back where a caller shows the same in its own words."""
    library = logging.getLogger("fusevlm")
    with _QUIET_LOCK:
        _QUIET.append(_QUIET[0] if _QUIET else library.level)
        library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        with _QUIET_LOCK:
            before = _QUIET.pop()
            if not _QUIET:
                library.setLevel(before)
