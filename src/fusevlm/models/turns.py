"""One caller at a time: hooks, caches, tokenizers and random states are of whoever has the turn."""

from __future__ import annotations

from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

_TURNS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
_MAKING = Lock()


def turn(model: Any) -> Any:
    """The lock of a model of torch, the same for all that use it; who has it may take it again."""
    with _MAKING:
        return _TURNS.setdefault(model, RLock())
