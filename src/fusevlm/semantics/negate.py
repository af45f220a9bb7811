"""The negation of a yes/no question, and whether two answers are opposite.

A question is negated where its grammar is plain ("is there a dog?" → "is there not a dog?"); where
the end of the subject cannot be told, a frame asks whether "no" is right, which is the same.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fusevlm.data.answers import words
from fusevlm.meanings import same_form
from fusevlm.models.protocol import Decoding
from fusevlm.types import Query

if TYPE_CHECKING:
    from fusevlm.models.huggingface import HuggingFace

logger = logging.getLogger(__name__)

NEGATING = Decoding(prompt="{question}", max_new_tokens=64)
WORDING = (
    'Negate this yes/no question, so that its right answer changes from "yes" to "no" or from "no" '
    'to "yes": "{question}" Reply with the negated question only.'
)
ASKED = 'Is "no" the right answer to the question "{question}"?'
STATED = "It is not true that {statement}"
YES, NO = frozenset({"yes", "true"}), frozenset({"no", "false"})


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BE, _DO, _HAVE = _set("is are was were"), _set("do does did"), _set("has have had")
_AUXILIARY = _BE | _DO | _HAVE | _set("can could will would should must may might")
_CONTRACTED = frozenset(f"{word}n't" for word in _AUXILIARY) | {"can't", "won't"}
_PRONOUNS = _set("it he she they you we i there")
_DEFINITE = _set("the this that these those its his her their my your our")
_PREPOSITIONS = _set(
    "in on at under over above below behind beside near inside outside by between beneath against "
    "among around from with without to left right next part"
)
_ARTICLES = frozenset({"a", "an", "the"})
_NOT_PARTICIPLES = _set(  # what ends like one but is a thing
    "building ceiling painting clothing string ring king wing thing evening morning railing awning "
    "swing bed shed seed weed kitchen children women men oven garden chicken pen linen"
)
_ADJECTIVES = _set(  # after which the noun is still to come
    "red green blue yellow black white brown gray grey orange purple pink teal big small large "
    "little tall short long old young new round square dark bright left right top bottom first "
    "second third last other same whole main upper lower front back"
)
_VERBS = _set(
    "contain have show include look appear seem depict feature display hold wear belong lie stand "
    "sit need want own carry touch"
)
_OPENING = _ARTICLES | _DEFINITE | _PRONOUNS | {"no", "all", "every", "each", "some", "both"}
_CLAUSE = _set("which who whose where if because while when and but than")  # more than one clause
_DENIALS = _set("no never nothing nobody none neither nor cannot not")
_CHOICE = r"(?:true or false|yes or no|true/false|yes/no)"
_TAIL = re.compile(  # what says how to answer
    rf"(?:[,;]?\s*\(?(?:is (?:this|that|it) )?{_CHOICE}\)?\s*\??"
    r"|(?<=[?.!])\s+(?:please )?(?:answer|reply|respond)\b[^?]*)\s*$",
    re.IGNORECASE,
)
_HEAD = re.compile(r".*[.!?:]\s+")
_CHOICE_HEAD = re.compile(rf"{_CHOICE}[:.?,]\s+", re.IGNORECASE)
_ASKED = re.compile(re.escape(ASKED).replace(re.escape("{question}"), "(.+)"), re.IGNORECASE)
_STATED = re.compile(re.escape(STATED).replace(re.escape("{statement}"), "(.+)"), re.IGNORECASE)
_PREP = f"(?:{'|'.join(sorted(_PREPOSITIONS))})"
_PLACE = re.compile(  # "on the mat", "next to the mat", "on the left of the mat"
    rf"{_PREP}(?: (?:{_PREP}|of))*(?: (?:{'|'.join(sorted(_DEFINITE | _ARTICLES))}))? \w+"
    r"(?: of (?:the|a|an) \w+)?"
)


def negate(question: str) -> str | None:
    """The question whose right answer is the opposite; None if this is no yes/no question.

    Also a statement to be judged ("The cat is on the mat.", "…, true or false?"). A negation is
    turned back: applied twice the question means what it did. Sentences before the question, and
    words on how to answer, stay. One that names alternatives ("red or blue?") is no yes/no
    question.
    """
    text = " ".join(question.split())
    tail = _TAIL.search(text)
    body, rest = (text[: tail.start()], text[tail.start() :]) if tail else (text, "")
    head = _CHOICE_HEAD.match(body) or _HEAD.match(body)
    lead, sentence = (head[0], body[head.end() :]) if head else ("", body)
    bare = sentence.rstrip(" ?.!,;:")
    end, said = sentence[len(bare) :], bare.split()
    lower = [word.lower() for word in said]
    framed = _ASKED.fullmatch(sentence)
    if framed:
        negated: str | None = framed[1]
    elif len(said) < 2 or "or" in lower:
        negated = None
    elif lower[0] in _AUXILIARY or lower[0] in _CONTRACTED:
        inside = _inside(said)
        asked = ASKED.format(question=sentence.replace('"', "'"))
        negated = asked if inside is None else " ".join(inside) + end
    elif lower[0] in _OPENING and "?" not in end and (not lead or _CHOICE_HEAD.match(body)):
        negated = _stated(said) + end
    else:
        negated = None
    return None if negated is None else lead + negated + rest


def _inside(said: list[str]) -> list[str] | None:
    """The words with the negation put in or taken out; None where its place cannot be told."""
    auxiliary, *others = said
    lower = [word.lower() for word in others]
    if auxiliary.lower() in _CONTRACTED:
        return None  # many answer "isn't it red?" like "is it red?"
    if _compound(lower):
        return None
    if "not" in lower[:-1]:
        at = lower.index("not")
        rest = [*lower[:at], *lower[at + 1 :]]
        plain = _subject(auxiliary.lower(), rest) == at and not _denies(rest)
        return [auxiliary, *others[:at], *others[at + 1 :]] if plain else None
    single = auxiliary.lower() in ("is", "was")
    if lower[0] == "no" and single and not _denies(lower[1:]) and len(lower) > 2:
        return [auxiliary, _article(lower[1]), *others[1:]]  # is a red shape present
    if lower[:2] == ["there", "no"] and not _denies(lower[2:]) and len(lower) > 2:
        return [auxiliary, others[0], "any", *others[2:]]
    if _denies(lower):
        return None
    if lower[0] == "there" and lower[1:2] in (["any"], ["some"]):
        return [auxiliary, others[0], "no", *others[2:]]
    if lower[0] in ("a", "an") and single and len(lower) > 2:
        return [auxiliary, "no", *others[1:]]
    size = _subject(auxiliary.lower(), lower)
    return None if size is None else [auxiliary, *others[:size], "not", *others[size:]]


def _subject(auxiliary: str, after: Sequence[str]) -> int | None:
    """How many words after the auxiliary are the subject; None where that is not plain."""
    if after[0] in _PRONOUNS:
        return 1 if len(after) > 1 else None
    if after[0] not in _DEFINITE or len(after) < 2:
        return None
    if after[0] in ("this", "that") and (after[1] in _ARTICLES or after[1] in _PREPOSITIONS):
        return 1
    predicate = after[2:]
    if not predicate or after[1] in _ADJECTIVES:
        return None
    if auxiliary in _DO:
        return 2 if predicate[0] in _VERBS else None
    if auxiliary in _HAVE:
        return 2 if _participle(predicate[0], ("ed", "en")) else None
    if auxiliary not in _BE:
        return 2 if predicate[0] in {*_VERBS, "be"} else None
    one = predicate[0]
    if len(predicate) == 1 or one in _ARTICLES:
        return 2
    if _participle(one, ("ing", "ed")):
        return 2 if not any(_participle(word, ("ing",)) for word in predicate[1:]) else None
    # with more to come the place may belong to the subject
    return 2 if _PLACE.fullmatch(" ".join(predicate)) else None


def _stated(said: list[str]) -> str:
    """A statement: its verb denied where that is plain, or else the whole."""
    found = _STATED.fullmatch(" ".join(said))
    if found:
        return found[1][0].upper() + found[1][1:] if said[0][0].isupper() else found[1]
    lower = [word.lower() for word in said]
    at = next((i for i, word in enumerate(lower[:-1]) if word in _AUXILIARY), None)
    if at and lower[0] in _DEFINITE | _PRONOUNS and not _compound(lower):
        denied = lower[at + 1] == "not"
        if not _denies([*lower[:at], *lower[at + 1 + denied :]]):
            return " ".join(
                [*said[: at + 1], *(() if denied else ("not",)), *said[at + 1 + denied :]]
            )
    head = said[0] if lower[0] == "i" else lower[0]
    return STATED.format(statement=" ".join([head, *said[1:]]))


def _compound(lower: Sequence[str]) -> bool:
    return "that" in lower[1:] or any(word in _CLAUSE for word in lower)


def _denies(lower: Sequence[str]) -> bool:
    return any(word in _DENIALS or word in _CONTRACTED for word in lower)


def _participle(word: str, endings: tuple[str, ...]) -> bool:
    return len(word) > 3 and word.endswith(endings) and word not in _NOT_PARTICIPLES


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def negate_by_model(vlm: HuggingFace, questions: Sequence[str]) -> list[str | None]:
    """The model's own negation of each yes/no question, greedy and without a picture.

    None where the question is no yes/no question, or the reply is empty, the same, longer than a
    negation could be, or does not end like the question.
    """
    from fusevlm.models.huggingface import HuggingFace

    decoding = replace(NEGATING, layers=vlm.decoding.layers, path=vlm.decoding.path)
    backend = HuggingFace(vlm.model, vlm.processor, decoding=decoding, name=vlm.name)
    found: list[str | None] = []
    for k, question in enumerate(questions):
        if negate(question) is None:
            found.append(None)
            continue
        query = Query(f"negation {k + 1}", WORDING.format(question=question))
        (made,) = backend.sample([query], 1, np.zeros(1), seed=0)
        reply = None if made.samples is None else made.samples.answer
        if reply is None:
            logger.warning("no negation of %r: %s", question, made.error)
        found.append(None if reply is None else accepted(question, reply))
    return found


def accepted(question: str, reply: str) -> str | None:
    """A model's negation of a question without quotes around it, or None if it can be none."""
    text = " ".join(reply.split()).strip("\"'` ")
    longest = 2 * len(words(question)) + 8
    if not text or len(words(text)) > longest or same_form(text) == same_form(question):
        return None
    return text if text.endswith("?") == question.rstrip().endswith("?") else None


def says_yes(answer: str) -> bool | None:
    """Whether an answer is yes (or true); None if it is neither that nor no (or false).

    What follows a mark is not read: "Yes, there is." is yes.
    """
    said = same_form(re.split(r"[,.;:!\n]", answer.strip(), maxsplit=1)[0])
    return said in YES if said in YES | NO else None


def flips(answer: str, other: str) -> bool | None:
    """Whether two answers are opposite; None if either is neither yes nor no."""
    one, two = says_yes(answer), says_yes(other)
    return None if one is None or two is None else one != two
