"""The live page: one file with style, script and examples in it, so that it needs no network."""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fusevlm import __version__
from fusevlm.embedded import EMBEDDED
from fusevlm.render import page as report
from fusevlm.serve.limits import QUESTION

if TYPE_CHECKING:
    from fusevlm.serve.desk import Desk

ASSETS = Path(__file__).parent / "assets"
RISKS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
BLURRED = 5  # severity


@dataclass(frozen=True)
class Example:
    """Something to try on the page."""

    name: str
    about: str
    question: str
    image: str  # a data URL
    alt: str


def live_page(desk: Desk) -> tuple[str, str]:
    """The page before a desk, and the policy that lets nothing else run or load in it."""
    offer = desk.offer
    data = {
        "risk": offer.risk,
        "risks": sorted({*RISKS, offer.risk}),
        "rounds": desk.rounds,
        "feedback": desk.keeps_feedback,
        "examples": [vars(one) for one in examples()] if _embedded(desk) else [],
    }
    style = report.ASSETS.joinpath("report.css").read_text("utf-8") + _read("live.css")
    script = _read("live.js")
    parts = {
        "style": style,
        "script": script,
        "data": report.as_json(data),
        "name": escape(offer.name),
        "version": __version__,
        "longest": str(QUESTION),
    }
    # split first, so that nothing that is put in is taken for a place
    pieces = _read("live.html").split("{{")
    page = pieces[0]
    for piece in pieces[1:]:
        name, _, rest = piece.partition("}}")
        page += parts[name] + rest
    return page, policy(style, script)


def _embedded(desk: Desk) -> bool:
    """Whether it is the model that the examples are for."""
    settings = getattr(desk.answerer, "sample", None)
    return getattr(settings, "model", "") == EMBEDDED


def policy(style: str, script: str) -> str:
    """Content-Security-Policy: this style and this script, pictures in the page, this server."""
    allowed = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


@cache
def examples() -> tuple[Example, ...]:
    """Four queries for the embedded model: known, blurred, from elsewhere, in other words."""
    from fusevlm.data.pictures import as_image, corrupt

    shape = (ASSETS / "shape.png").read_bytes()
    clean = _pixels(shape)
    blurred = as_image(corrupt(clean, "blur", BLURRED, (0,)))
    usual, circle = "what shape is in the image?", "a teal circle"
    return (
        Example("Clean", "a picture and a question as it knows them", usual, _url(shape), circle),
        Example(
            "Blurred", "the same picture, out of focus", usual, _url(_png(blurred)),
            f"{circle}, blurred",
        ),
        Example(
            "From elsewhere", "a picture unlike any it was calibrated on", "where is the sun?",
            _url(_png(as_image(landscape()))), "hills at sunset",
        ),
        Example(
            "Unseen phrasing", "words that its training never used", "which shape does it have?",
            _url(shape), circle,
        ),
    )  # fmt: skip


def landscape() -> Any:
    """Hills at sunset, [120, 160, 3]: drawn here, so that it is nobody's."""
    y, x = np.mgrid[0:120, 0:160] / np.array([120.0, 160.0])[:, None, None]
    pixels = np.stack([250 - 120 * y, 170 + 20 * y - 60 * abs(x - 0.5), 120 + 90 * y], axis=-1)
    sun = (x - 0.68) ** 2 * (4 / 3) ** 2 + (y - 0.42) ** 2 < 0.006
    far, near = y > 0.62 + 0.06 * np.sin(6 * x + 1), y > 0.75 + 0.05 * np.sin(9 * x)
    pixels[sun] = [255, 236, 170]
    pixels[far] = np.stack([70 + 40 * x, 90 + 30 * y, 110 - 20 * x], axis=-1)[far]
    pixels[near] = np.stack([40 + 20 * x, 80 - 20 * y, 50 + 10 * x], axis=-1)[near]
    return np.rint(pixels).astype(np.uint8)


def _pixels(data: bytes) -> Any:
    from fusevlm.data.images import load_image

    return np.asarray(load_image(data))


def _png(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _read(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")
