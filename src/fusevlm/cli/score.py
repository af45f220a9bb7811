"""``fusevlm score RUN``: scores and labels of every query, from stored answers; loads no model."""

from __future__ import annotations

import argparse

from fusevlm.cli.stages import add_single, run_single

EPILOG = """\
examples:
  fusevlm score runs/demo
  fusevlm score runs/demo --redo --set score.layer=middle"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_single(parser)


def run(args: argparse.Namespace) -> int:
    return run_single("score", args)
