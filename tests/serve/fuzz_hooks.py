"""Loaded by schemathesis (SCHEMATHESIS_HOOKS): half of the requests get what lets them through."""

import base64
from pathlib import Path
from zlib import crc32

import schemathesis

SHAPE = Path(__file__).resolve().parents[2] / "src/fusevlm/serve/assets/shape.png"
PICTURE = "data:image/png;base64," + base64.b64encode(SHAPE.read_bytes()).decode()
LAST = {
    "role": "user",
    "content": [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "text", "text": "what shape is it?"},
    ],
}


@schemathesis.hook
def map_body(context, body):
    """Whatever else a request holds stays as it was made."""
    if not isinstance(body, dict) or crc32(repr(body).encode(errors="replace")) % 2:
        return body
    if isinstance(body.get("messages"), list):
        return {**body, "model": "embedded", "messages": [*body["messages"][:20], LAST]}
    if "question" in body and not isinstance(body.get("samples"), list):
        return {**body, "image": PICTURE, "images": [], "samples": None}
    return body
