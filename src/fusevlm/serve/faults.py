"""All that a request can meet with: one table of codes, each with its status and message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# code: (HTTP status, message, when)
FAULTS: dict[str, tuple[int, str, str]] = {
    "malformed_json": (
        400, "the body cannot be read as JSON{where}.",
        "no JSON, or too deep",
    ),
    "wrong_token": (
        401, "no valid token; send the header 'Authorization: Bearer TOKEN'.",
        "a wrong token, or none",
    ),
    "nothing_here": (
        404, "nothing is here; GET /openapi.json lists the paths.",
        "an unknown path",
    ),
    "unknown_model": (
        404, "no model is called {name!r} here; GET /v1/models names it.",
        "a chat with another model",
    ),
    "no_model": (
        404, "this server has no model: it judges samples (POST /v1/score).",
        "asking of `--model none`",
    ),
    "unknown_answer": (
        404, "no answer has this id; the last {known} are known.",
        "feedback on, or another risk for, an answer that was forgotten or never given",
    ),
    "no_feedback": (
        404, "feedback is not kept here: it needs fusevlm serve --feedback FILE.",
        "feedback without a table",
    ),
    "wrong_method": (
        405, "this path does not take that method; GET /openapi.json tells which.",
        "GET for POST and the like; CORS preflights",
    ),
    "slow_request": (
        408, "the request did not come whole within {seconds:g} s.",
        "a slow client",
    ),
    "other_risk": (
        409, "its samples were drawn for one risk; ask again at the other.",
        "another risk for an answer drawn as needed",
    ),
    "told_otherwise": (
        409, "feedback on this answer is kept already, and says the opposite.",
        "feedback that contradicts itself",
    ),
    "too_large": (
        413, "the request is larger than {mb:g} MB; send a smaller picture.",
        "50 MB",
    ),
    "too_many_pixels": (
        413, "{words}",
        "a picture of too many pixels: bombs, seen by their header",
    ),
    "not_json": (
        415, "the body must be JSON; send the header 'Content-Type: application/json'.",
        "a form, or a text from another site",
    ),
    "other_host": (
        421, "this server answers to its own name; another was in the header Host.",
        "a server on the loopback under a foreign name (DNS rebinding)",
    ),
    "invalid": (
        422, "{where}: {what}.",
        "wrong types, values out of range, unknown fields",
    ),
    "not_a_data_url": (
        422,
        "a picture must be a data URL such as data:image/png;base64,…; no address is fetched and "
        "no file is read.",
        "an address or a path as a picture",
    ),
    "not_a_picture": (
        422, "{words}",
        "text, SVG, PostScript, a broken header",
    ),
    "cannot_ask": (
        422, "{words}",
        "what the model or the fit cannot take: no picture, half a picture, too long a question",
    ),
    "busy": (
        429, "too many queries are waiting; try again in {wait} s.",
        "a full queue; with the header Retry-After",
    ),
    "server_failed": (
        500, "the server failed; its log knows why, by the id of this request.",
        "a bug, a full disk",
    ),
    "no_answer": (
        502, "the model gave no answer; that may pass. Try again later.",
        "an upstream that is down, or answers nonsense",
    ),
    "not_ready": (
        503, "{words}",
        "GET /readyz of a server that is ending, full, or whose upstream was down just now; "
        "what a server that has to end cannot finish",
    ),
    "too_slow": (
        504, "there was no answer within {seconds:g} s.",
        "an answer that takes too long",
    ),
}  # fmt: skip
LEFT = 499  # in logs and metrics: the client went before it was answered
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
PLACE = re.compile(r"\{(\w+)[^}]*\}")  # of what a message is filled with
LONGEST = 400  # characters of a message


class Fault(Exception):
    """What a request is answered with instead of what it wanted."""

    def __init__(self, code: str, headers: Mapping[str, str] | None = None, **facts: Any) -> None:
        self.code, self.headers = code, dict(headers or {})
        self.status, template, _ = FAULTS[code]
        self.message = cleaned(template.format(**facts))
        super().__init__(self.message)

    def body(self, request_id: str = "") -> dict[str, Any]:
        """As clients of OpenAI's expect it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        told = {"message": self.message, "type": kind, "code": self.code, "param": None}
        return {"error": {**told, "request_id": request_id}}


def cleaned(text: str) -> str:
    """``text`` in one line of printable characters, not longer than a message should be."""
    line = UNPRINTABLE.sub("\ufffd", " ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def busy(wait: int) -> Fault:
    """Too much is under way: come back later."""
    return Fault("busy", {"Retry-After": str(wait)}, wait=wait)


def table() -> str:
    """Every fault as a row of Markdown; docs/serve.md holds it."""
    rows = []
    for code, (status, text, when) in FAULTS.items():
        message = PLACE.sub(lambda found: f"*{found[1]}*", text)
        rows.append(f"| {status} | `{code}` | {when} | {message} |")
    return "\n".join(["| status | code | when | message |", "|---|---|---|---|", *rows]) + "\n"
