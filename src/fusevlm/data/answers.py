"""When two texts are the same answer."""

from __future__ import annotations

_ARTICLES = {"a", "an", "the"}
_QUOTES = "\"'`"
_ENDS = ".,;:!?" + _QUOTES


def same_form(text: str) -> str:
    """Lower case, single-spaced, without articles, quotes and the punctuation that ends it.

    Signs inside stay: "-5." is "-5" and "1.5" itself. A text of articles alone, such as the option
    "A", keeps them.
    """
    words = _stripped(text.lower()).split()
    return _stripped(" ".join([word for word in words if word not in _ARTICLES] or words))


def _stripped(text: str) -> str:
    return text.strip().lstrip(_QUOTES).rstrip(_ENDS).strip()
