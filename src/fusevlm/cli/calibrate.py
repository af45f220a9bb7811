"""``fusevlm calibrate RUN``: every method fitted on the calibration queries."""

from __future__ import annotations

import argparse

from fusevlm.cli.stages import add_single, run_single

EPILOG = """\
examples:
  fusevlm calibrate runs/demo
  fusevlm calibrate runs/demo --redo --set calibrate.methods='["practical", "umpire"]'"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_single(parser)


def run(args: argparse.Namespace) -> int:
    return run_single("calibrate", args)
