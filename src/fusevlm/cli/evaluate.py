"""``fusevlm evaluate RUN``: every method on the test queries, with intervals."""

from __future__ import annotations

import argparse
from pathlib import Path

from fusevlm.cli.stages import add_single, print_summary, run_single

EPILOG = """\
examples:
  fusevlm evaluate runs/demo
  fusevlm evaluate runs/demo --redo --set evaluate.risk=0.1"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_single(parser)


def run(args: argparse.Namespace) -> int:
    code = run_single("evaluate", args)
    if code == 0:
        print_summary(Path(args.run), times=False)
    return code
