"""``fusevlm validate CONFIG``."""

from __future__ import annotations

import argparse

from fusevlm.cli.stages import SET_HELP

EPILOG = """\
examples:
  fusevlm validate configs/demo.toml
  fusevlm validate own-vlm.toml --run runs/llava --set sample.n=50

exit code 1 says that something is missing"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="TOML file")
    parser.add_argument("--run", metavar="DIR", help="run folder (runs/NAME)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)


def run(args: argparse.Namespace) -> int:
    from fusevlm.cli import EXIT_FAILED, EXIT_OK
    from fusevlm.cli.run import run_folder
    from fusevlm.config import read_config
    from fusevlm.pipeline.validate import validate

    config = read_config(args.config, args.set)
    folder = run_folder(args.run, config.name)
    found = validate(config, folder)
    if not args.quiet:
        print(f"{args.config} → {folder}")
        for line in found.plan:
            print(f"  {line}")
    for problem in found.problems:
        print(f"problem: {problem}")
    print("ready" if not found.problems else f"{len(found.problems)} problem(s)")
    return EXIT_FAILED if found.problems else EXIT_OK
