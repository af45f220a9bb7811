"""One normal form of an answer per rule that compares answers.

``plain`` is exact match's, ``vqa_form`` the official VQA scorer's, ``words`` ROUGE-L's. Whether two
samples say the same is decided by :func:`fusevlm.meanings.same_form`.
"""

from __future__ import annotations

import re
import unicodedata

from fusevlm.meanings import ARTICLES

_DECIMAL_POINT = re.compile(r"(?<=\d)\.(?=\d)")
_WORD = re.compile(r"[a-z0-9]+")


def plain(text: str) -> str:
    """Lower case, without punctuation and symbols, single spaces.

    A point between two digits stays: 1.5 is not 15.
    """
    pieces = _DECIMAL_POINT.split(text.lower())
    kept = ".".join("".join(c for c in piece if not _is_mark(c)) for piece in pieces)
    return " ".join(kept.split())


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] in "PS"


def words(text: str) -> list[str]:
    """Runs of a–z and 0–9 after lower-casing, without stemming."""
    return _WORD.findall(text.lower())


# the official VQA scorer

MARKS = ';/[]"{}()=+\\_-><@`,?!'
DIGIT_COMMA_DIGIT = re.compile(r"\d,\d")
POINT = re.compile(r"\.(?!\d)")
MOST_POINTS = 32
_COUNTING = "zero one two three four five six seven eight nine ten"
NUMBERS = {"none": "0"} | {word: str(i) for i, word in enumerate(_COUNTING.split())}

# stems by ending: "n't" + "is" stands for isnt → isn't
_ONE_APOSTROPHE = {
    "n't": "ai are ca could did does do had has have is might must need ought sha should was were "
    "wo would",
    "'ve": "could might must not should they we what where who would you",
    "'d": "he how it someone something there they where who you",
    "'ll": "how it somebody someone something they what who why you",
    "'s": "he how somebody someone that there what when where who why",
    "'re": "there they what why you",
    "'am": "ma",
    "'clock": "o",
    "'all": "y",
}
# the same with two: either apostrophe may be missing, but not both
_TWO_APOSTROPHES = {
    "n't've": "could had might should would",
    "'d've": "he it she somebody someone something there they we who you",
}
# what follows no rule; "somebody'd" loses its apostrophe in the official table
_IRREGULAR = {
    "twas": "'twas",
    "ow's'at": "'ow's'at",
    "'ows'at": "'ow's'at",
    "'ow'sat": "'ow's'at",
    "somebody'd": "somebodyd",
    "yall'll": "y'all'll",
    "y'allll": "y'all'll",
    "yall'd've": "y'all'd've",
    "y'alld've": "y'all'd've",
    "y'all'dve": "y'all'd've",
}


def _contractions() -> dict[str, str]:
    table = dict(_IRREGULAR)
    for ending, stems in _ONE_APOSTROPHE.items():
        for stem in stems.split():
            table[(stem + ending).replace("'", "")] = stem + ending
    for ending, stems in _TWO_APOSTROPHES.items():
        for stem in stems.split():
            whole = stem + ending
            table[whole.replace("'", "", 1)] = whole
            table[whole.removesuffix("'ve") + "ve"] = whole
    return table


CONTRACTIONS = _contractions()


def vqa_form(text: str) -> str:
    """Marks, points, case, number words, articles and contractions, in the official order.

    Oddities of the official scorer of VQAv2 that change scores, kept on purpose:

    - A point is dropped unless a digit follows ("3." becomes "3", ".5" stays), 32 times at most.
    - Any digit-comma-digit deletes every mark; without one, a mark that has no space beside it
      becomes a space.
    - A few contractions are mapped the wrong way round or not at all.
    """
    counted = (NUMBERS.get(word, word) for word in _without_marks(text).lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in counted if word not in ARTICLES)


def _without_marks(text: str) -> str:
    in_number = DIGIT_COMMA_DIGIT.search(text) is not None
    instead = {
        ord(mark): "" if in_number or f"{mark} " in text or f" {mark}" in text else " "
        for mark in MARKS
    }
    return POINT.sub("", text.translate(instead), count=MOST_POINTS)
