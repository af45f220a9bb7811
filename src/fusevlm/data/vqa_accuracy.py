"""VQA accuracy, as the official scorer of VQAv2 computes it, oddities included.

Oddities that change scores, kept on purpose:

- Nothing is normalised when all references are the same string, so "Yes" is wrong if all ten
  people wrote "yes".
- A point is dropped unless a digit follows ("3." becomes "3", ".5" stays), 32 times at most.
- Any digit-comma-digit deletes every mark; without one, a mark that has no space beside it
  becomes a space.
- A few contractions are mapped the wrong way round or not at all.

Other revisions in circulation normalise the answer always and the references in part.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fusevlm.errors import InputError

N_REFERENCES = 10
ENOUGH = 3  # this many people make an answer fully right
MARKS = ';/[]"{}()=+\\_-><@`,?!'
DIGIT_COMMA_DIGIT = re.compile(r"\d,\d")
POINT = re.compile(r"\.(?!\d)")
MOST_POINTS = 32
ARTICLES = {"a", "an", "the"}
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


def vqa_accuracy(answer: str, references: Sequence[str]) -> float:
    """Mean over the 10 leave-one-out sets of min(1, matches/3).

    With m of the 10 references equal to the answer, m sets hold m − 1 matches and 10 − m hold m.
    """
    if len(references) != N_REFERENCES:
        raise InputError(
            f"vqa_accuracy compares with {N_REFERENCES} references; got {len(references)}. "
            f"Use exact_match where each question has fewer."
        )
    said = _one_line(answer)
    known = [_one_line(reference) for reference in references]
    if len(set(known)) > 1:
        said, known = normalise(said), [normalise(reference) for reference in known]
    m = known.count(said)
    credit = m * min(m - 1, ENOUGH) + (N_REFERENCES - m) * min(m, ENOUGH)
    return credit / (ENOUGH * N_REFERENCES)


def normalise(text: str) -> str:
    """Marks, points, case, number words, articles and contractions, in the official order."""
    words = (NUMBERS.get(word, word) for word in _without_marks(text).lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _without_marks(text: str) -> str:
    in_number = DIGIT_COMMA_DIGIT.search(text) is not None
    instead = {
        ord(mark): "" if in_number or f"{mark} " in text or f" {mark}" in text else " "
        for mark in MARKS
    }
    return POINT.sub("", text.translate(instead), count=MOST_POINTS)
