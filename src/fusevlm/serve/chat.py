"""OpenAI's chat completions: a conversation as a query, and an answer as a completion or a stream.

The decision is made before the first word goes out: a stream brings an answer that is already
judged. The field ``fusevlm`` tells of it, in the last chunk of a stream.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from fusevlm.render.answer import ANSWER, Answer
from fusevlm.serve.desk import REFUSE
from fusevlm.serve.faults import Fault, cleaned
from fusevlm.serve.limits import PICTURES, QUESTION
from fusevlm.serve.pictures import picture_of
from fusevlm.serve.schemas import ChatMessage, ChatRequest
from fusevlm.types import Query

PIECES = re.compile(r"\s*\S+|\s+$")
HARMLESS = ("user", "metadata", "store", "tool_choice", "parallel_tool_calls")  # change no answer
MOST_TOLD = 20
DONE = "data: [DONE]\n\n"


def query_of(asked: ChatRequest, pixels: int) -> Query:
    """The last turn as a question, those before it as history, pictures of all of them.

    Pictures of earlier turns go with the question: that is where a query has them.
    """
    if asked.tools:
        raise Fault("invalid", where="tools", what="none are called here; leave them out")
    turns = [turn for turn in asked.messages if turn.role in ("user", "assistant")]
    if not turns or asked.messages[-1].role != "user":
        raise Fault("invalid", where="messages", what="the last one must be the user's")
    texts = [_text(turn) for turn in turns]
    if not texts[-1].strip():
        raise Fault("invalid", where="messages", what="the last one has no text")
    if any(len(text) > QUESTION for text in texts):
        what = f"one is longer than {QUESTION} characters"
        raise Fault("invalid", where="messages", what=what)
    urls = [url for turn in turns for url in _pictures(turn)]
    if len(urls) > PICTURES:
        raise Fault("invalid", where="messages", what=f"more than {PICTURES} pictures")
    *history, (_, question) = [(turn.role, text) for turn, text in zip(turns, texts, strict=True)]
    return Query("chat", question, [picture_of(url, pixels) for url in urls], history)


def ignored(asked: ChatRequest) -> list[str]:
    """What of a request is not heeded: the calibration holds for one way to ask."""
    extra = [name for name, value in (asked.model_extra or {}).items() if value is not None]
    found = [cleaned(name)[:40] for name in extra if name not in HARMLESS]
    if any(turn.role in ("system", "developer") for turn in asked.messages):
        found.append("messages of the system")
    return found[:MOST_TOLD]


def said(answer: Answer, on_abstain: str) -> str:
    """What people read: the answer; on abstention the answer with its warning, or a refusal."""
    if answer.decision == ANSWER:
        return answer.answer
    if on_abstain == REFUSE:
        return f"I don't know. {answer.why}"
    wrong = f" P(wrong) {answer.p_wrong:.2f}." if answer.p_wrong == answer.p_wrong else ""
    warning = f"Not certain enough for a risk of {answer.risk:g}: {answer.why}{wrong}"
    return f"{answer.answer}\n\n[{warning}]"


def completion(name: str, model: str, text: str, verdict: dict[str, Any]) -> dict[str, Any]:
    """A whole reply."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        "logprobs": None,
    }
    return {**_head(name, model, "chat.completion"), "choices": [choice], "fusevlm": verdict}


def chunks(name: str, model: str, text: str, verdict: dict[str, Any]) -> Iterator[str]:
    """The same as server-sent events, word by word; the last chunk has the verdict."""
    head = _head(name, model, "chat.completion.chunk")

    def event(delta: dict[str, Any], end: str | None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": end, "logprobs": None}
        return f"data: {json.dumps({**head, 'choices': [choice], **more})}\n\n"

    yield event({"role": "assistant", "content": ""}, None)
    for piece in PIECES.findall(text):
        yield event({"content": piece}, None)
    yield event({}, "stop", fusevlm=verdict)
    yield DONE


def headers_of(name: str, answer: Answer) -> dict[str, str]:
    """The verdict in short, for replies that are not streamed."""
    found = {
        "X-Fusevlm-Id": name,
        "X-Fusevlm-Decision": answer.decision,
        "X-Fusevlm-P-Wrong": f"{answer.p_wrong:.4f}",
        "X-Fusevlm-Reason": answer.reason,
    }
    return {key: value.encode("ascii", "replace").decode() for key, value in found.items()}


def _head(name: str, model: str, kind: str) -> dict[str, Any]:
    return {"id": name, "object": kind, "created": int(time.time()), "model": model}


def _text(turn: ChatMessage) -> str:
    if isinstance(turn.content, str):
        return turn.content
    return "\n".join(part.text or "" for part in turn.content or () if part.type == "text")


def _pictures(turn: ChatMessage) -> Sequence[str]:
    if turn.content is None or isinstance(turn.content, str):
        return ()
    shown = [part for part in turn.content if part.type == "image_url"]
    if any(part.image_url is None for part in shown):
        raise Fault("invalid", where="messages", what="a part of type image_url has no image_url")
    return [part.image_url.url for part in shown if part.image_url is not None]
