"""``fusevlm run CONFIG``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fusevlm.cli.stages import SET_HELP, bring_up_to_date, print_summary

EPILOG = """\
examples:
  fusevlm run configs/demo.toml
  fusevlm run own-vlm.toml --run runs/llava --set sample.n=50
  fusevlm run own-vlm.toml --run runs/llava --redo score --set score.layer=middle

stages: data, sample, embed, adapter, score, calibrate, evaluate, report; finished ones are skipped,
an interrupted one goes on; exit code 3 says that some queries failed"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="TOML file")
    parser.add_argument("--run", metavar="DIR", help="run folder (runs/NAME)")
    parser.add_argument("--only", metavar="STAGE", help="this stage alone")
    parser.add_argument("--redo", metavar="STAGE", help="remove it and those after it first")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)


def run(args: argparse.Namespace) -> int:
    from fusevlm.cli import EXIT_INTERRUPTED
    from fusevlm.config import read_config

    config = read_config(args.config, args.set)
    folder = run_folder(args.run, config.name)
    words = ["run", args.config]
    words += ["--run", args.run] if args.run else []
    words += [word for change in args.set for word in ("--set", change)]
    words += ["--only", args.only] if args.only else []
    code = bring_up_to_date(
        folder, config, command=words, quiet=args.quiet, only=args.only, redo=args.redo
    )
    if code != EXIT_INTERRUPTED and args.only in (None, "evaluate"):
        print_summary(folder, times=args.only is None)
    return code


def run_folder(given: str | None, name: str) -> Path:
    """The folder that was named, or runs/NAME."""
    return Path(given) if given else Path("runs") / name
