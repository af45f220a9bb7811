"""The library's warnings, held back where a caller shows the same in its own words."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def library_quiet() -> Iterator[None]:
    """Only errors of the library's loggers meanwhile."""
    library = logging.getLogger("fusevlm")
    before = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(before)
