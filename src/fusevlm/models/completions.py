"""OpenAI's chat completions as data: the body of a call, and what its reply says."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusevlm import checks
from fusevlm.checks import whole_text
from fusevlm.data.images import load_image
from fusevlm.models.calls import CallError, cleared
from fusevlm.models.protocol import Decoding

# what not every server takes, by the field of Gives that says whether this one does
OPTIONAL: dict[str, dict[str, Any]] = {
    "n": {"n": 2},
    "logprobs": {"logprobs": True},
    # three, for vLLM puts a drawn token that is none of them in the place of the last
    "top_logprobs": {"logprobs": True, "top_logprobs": 3},
    "seed": {"seed": 1},
    # servers cut the distribution by default (llama.cpp: top_k 40, min_p .05); these undo it
    "unfiltered": {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
}
LIMITS = ("max_tokens", "max_completion_tokens")  # names of the token limit, old and new
MOST_LOGPROB = 1e-6  # 0 but for rounding
BROKEN = "\ufffd"  # stands for half a character


@dataclass(frozen=True)
class Gives:
    """What a server gives, as the probe found it."""

    model: str = ""  # the name the server itself gives it
    fingerprint: str = ""  # of the server's software and settings
    n: bool = False  # several answers to one call
    logprobs: bool = False  # before temperature
    top_logprobs: bool = False  # of the two best tokens at least: margins
    eos: bool = False  # the EOS token has its log-probability too
    spelled: bool = False  # the tokens of the log-probabilities spell the text
    seed: bool = False  # is taken; no promise that it counts
    unfiltered: bool = False  # takes top_k, min_p and repetition_penalty
    images: bool = False
    varies: bool = True  # answers differ, as the temperature has it
    limit: str = LIMITS[0]


@dataclass(frozen=True)
class Answer:
    """One answer as a server gave it; margins are of each step, as in Samples."""

    text: str
    logprobs: tuple[float, ...] | None
    margins: tuple[float, ...] | None
    truncated: bool


def kept_answer(known: Any) -> tuple[Answer, int] | None:
    """An answer as a journal keeps it, and the tokens of its prompt; None where it is none."""
    told, tokens = (_get(known, name) for name in ("answer", "prompt_tokens"))
    rows = [_get(told, name) for name in ("logprobs", "margins")]
    text, truncated = _get(told, "text"), _get(told, "truncated")
    good = isinstance(text, str) and type(truncated) is bool and type(tokens) is int
    for row in rows:
        listed = isinstance(row, list | tuple)  # a tuple where no file lies between
        good = good and (row is None or (listed and None not in map(_number, row)))
    if not good:
        return None
    logprobs, margins = (None if row is None else tuple(map(float, row)) for row in rows)
    return Answer(text, logprobs, margins, truncated), tokens


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else None


def request(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    decoding: Decoding,
    gives: Gives,
    temperature: float,
    k: int,
    seed: int,
) -> dict[str, Any]:
    """The body of a call for ``k`` answers, with only what the server takes.

    No seed goes with several answers: some servers would then give the same one k times.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": list(messages),
        "temperature": float(temperature),
        "top_p": 1.0 if decoding.top_p is None else decoding.top_p,
        gives.limit: decoding.max_new_tokens,
        "stream": False,
    }
    if decoding.stop:
        body["stop"] = list(decoding.stop)
    for name in ("logprobs", "top_logprobs", "unfiltered"):
        if getattr(gives, name):
            body |= OPTIONAL[name]
    if decoding.top_k is not None:
        body["top_k"] = decoding.top_k
    if gives.n and k > 1:
        body["n"] = k
    elif gives.seed:
        body["seed"] = seed
    return body


def content(text: str, shown: Sequence[str]) -> Any:
    """What the user says: a plain string without pictures, which every server takes."""
    if not shown:
        return text
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in shown]
    return [*pictures, {"type": "text", "text": text}]


def data_url(image: Any) -> str:
    """A picture as a PNG in a data URL."""
    checks.extra("PIL", "a query with a picture", "api")
    buffer = io.BytesIO()
    load_image(image).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def choices(reply: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The answers of a reply, each with its message; CallError if it is no such reply."""
    found = reply.get("choices")
    if not isinstance(found, list) or not found:
        raise CallError("the server's answer has no choices. Is it a chat-completions server?")
    for choice in found:
        if not isinstance(choice, Mapping) or not isinstance(choice.get("message"), Mapping):
            raise CallError("a choice of the server's answer has no message.")
    return found


def read_answers(reply: Mapping[str, Any], gives: Gives, decoding: Decoding) -> list[Answer]:
    """All answers of a reply; CallError says what is wrong with one."""
    return [_answer(choice, gives, decoding) for choice in choices(reply)]


def count_tokens(reply: Mapping[str, Any], limit: int) -> tuple[int, int]:
    """Tokens of prompt and answers; ``limit`` an answer where the server does not say.

    Some servers count one of several answers: there are at least as many as log-probabilities.
    """
    usage = reply.get("usage")
    said = usage if isinstance(usage, Mapping) else {}
    prompt, answers = (said.get(f"{what}_tokens") for what in ("prompt", "completion"))
    found = choices(reply)
    listed = sum(len(entries(choice)) for choice in found)
    counted = answers if isinstance(answers, int) else limit * len(found)
    return (prompt if isinstance(prompt, int) else 0), max(counted, listed)


def _answer(choice: Mapping[str, Any], gives: Gives, decoding: Decoding) -> Answer:
    message, end = choice["message"], choice.get("finish_reason")
    if message.get("refusal") or end == "content_filter":
        words = cleared(str(message.get("refusal") or end))
        raise CallError(f"the model or its filter refused to answer: {words}")
    text = text_of(choice)
    if not text and end == "length":
        raise CallError(
            f"all {decoding.max_new_tokens} tokens were used up before any answer: the model "
            f"thinks before it speaks. Raise max_new_tokens."
        )
    if not gives.logprobs:
        return Answer(text, None, None, end == "length")
    listed = entries(choice)
    if not listed and (text or gives.eos):
        raise CallError("an answer came without the log-probabilities that were asked for.")
    values, margins = numbers(listed)
    if gives.spelled and not spells(listed, text, stop=decoding.stop):
        raise CallError(
            f"the {len(values)} log-probabilities do not belong to the answer {cleared(text)!r}: "
            f"their tokens spell {cleared(spelt(listed))!r}."
        )
    return Answer(text, values, margins if gives.top_logprobs else None, end == "length")


def text_of(choice: Mapping[str, Any]) -> str:
    """The answer's text, also where it comes in pieces; halves of characters are replaced."""
    said = choice["message"].get("content")
    if isinstance(said, list):
        pieces = [part.get("text") for part in said if isinstance(part, Mapping)]
        said = "".join(piece for piece in pieces if isinstance(piece, str))
    if said is None:
        return ""
    if not isinstance(said, str):
        raise CallError(f"the answer's content is a {type(said).__name__}, not a text.")
    return whole_text(said).strip()


def entries(choice: Mapping[str, Any]) -> list[Any]:
    """What is said of each token; nothing without log-probabilities."""
    given = choice.get("logprobs")
    found = given.get("content") if isinstance(given, Mapping) else None
    return found if isinstance(found, list) else []


def numbers(listed: Sequence[Any]) -> tuple[tuple[float, ...], tuple[float, ...] | None]:
    """Log-probability of each token, and its margin if every step has its two best tokens."""
    values: list[float] = []
    margins: list[float] = []
    for entry in listed:
        value = _number(entry.get("logprob")) if isinstance(entry, Mapping) else None
        if value is None:
            raise CallError("a log-probability of the answer is not a number.")
        if value > MOST_LOGPROB:
            raise CallError(
                f"a log-probability of the answer is {value:g}; log-probabilities are at most 0."
            )
        values.append(value)
        gap = best_gap(entry)
        margins += [] if gap is None else [gap]
    return tuple(values), tuple(margins) if values and len(margins) == len(values) else None


def best_gap(entry: Mapping[str, Any]) -> float | None:
    """log p(best) − log p(second best) of one step, where both are given.

    Of two, one may be the drawn token, which need not be the second best.
    """
    listed = entry.get("top_logprobs")
    given = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    found = [_number(one.get("logprob")) for one in given]
    best = sorted((value for value in found if value is not None), reverse=True)
    drawn = _number(entry.get("logprob"))
    if len(best) < 2 or (len(best) == 2 and drawn is not None and drawn < best[0]):
        return None
    return best[0] - best[1]


def spelt(listed: Sequence[Any]) -> str:
    """The text of all tokens: of their bytes, for a character may be divided among several."""
    found = b""
    for entry in listed:
        raw = entry.get("bytes")
        try:
            found += (
                bytes(raw) if isinstance(raw, list) else whole_text(str(entry["token"])).encode()
            )
        except (KeyError, ValueError, TypeError):
            found += BROKEN.encode()
    return found.decode("utf-8", "replace")


def spells(listed: Sequence[Any], text: str, *, stop: Sequence[str] = ()) -> bool:
    """Whether the tokens spell ``text``, all of them or all but EOS; spaces do not count.

    A text with half a character in it cannot be compared; one cut at a stop string is the start.
    """
    said, whole = _dense(text), _dense(spelt(listed))
    if BROKEN in said + whole or said == whole or has_eos(listed, text):
        return True
    return bool(stop) and whole.startswith(said)


def has_eos(listed: Sequence[Any], text: str) -> bool:
    """Whether the text is whole without the last token."""
    return _dense(spelt(listed[:-1])) == _dense(text)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _dense(text: str) -> str:
    """``text`` without spaces, which servers lose where they decode token by token."""
    return "".join(text.replace("\u2581", " ").split())  # as SentencePiece writes a space
