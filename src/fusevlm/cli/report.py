"""``fusevlm report RUN``: plots and one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from fusevlm.cli.stages import add_single, run_single

EPILOG = """\
examples:
  fusevlm report runs/demo
  fusevlm report runs/demo --redo --set report.examples=50"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_single(parser)


def run(args: argparse.Namespace) -> int:
    code = run_single("report", args)
    if code == 0:
        print(f"page: {Path(args.run) / 'report' / 'index.html'}")
    return code
