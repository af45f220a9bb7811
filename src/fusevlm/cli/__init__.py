"""The ``fusevlm`` command: a verb a module, imported only when that verb is used."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from fusevlm import __version__
from fusevlm.errors import FuseError

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

# verb: (one line for --help, module with add_arguments and run)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("all of FUSE on a small real model that comes with fusevlm", "fusevlm.cli.demo"),
    "ask": ("an answer to a question about an image, and whether to trust it", "fusevlm.cli.ask"),
    "run": ("the whole pipeline from one config, resumable", "fusevlm.cli.run"),
    "sample": ("sample answers of a vision-language model into a run folder", "fusevlm.cli.sample"),
    "embed": ("embed images and questions with CLIP-like towers", "fusevlm.cli.embed"),
    "adapter": ("the prior's GP adapter: train on pairs, apply to queries", "fusevlm.cli.adapter"),
    "score": ("scores and labels of a run, without any model", "fusevlm.cli.score"),
    "calibrate": ("fit every method on a run's calibration queries", "fusevlm.cli.calibrate"),
    "evaluate": ("measure every method on a run's test queries", "fusevlm.cli.evaluate"),
    "report": ("plots and one HTML page of a run", "fusevlm.cli.report"),
    "bench": ("datasets × models × methods: the paper's tables", "fusevlm.cli.bench"),
    "ls": ("list run folders and where they stand", "fusevlm.cli.ls"),
    "validate": ("check a config and what it needs, without loading a model",
                 "fusevlm.cli.validate"),
    "metrics": ("evaluate a table of scores and labels, with intervals", "fusevlm.cli.metrics"),
    "threshold": ("choose when to answer, at a risk you state", "fusevlm.cli.threshold"),
    "moments": ("Wishart log-det moments a0(d, n) and v(d, n)", "fusevlm.cli.moments"),
}  # fmt: skip

EPILOG = """\
examples:
  fusevlm demo
  fusevlm ask picture.png "what color is the shape?"
  fusevlm run own-vlm.toml --run runs/llava
  fusevlm threshold scores.csv --risk 0.2 --delta 0.1

exit codes: 0 done, 1 the work failed (the message says why), 2 wrong usage,
  3 done but some queries failed, 130 interrupted (run the same command again to go on)
"""


class Command(Protocol):
    """What a module named in COMMANDS provides."""

    EPILOG: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((word for word in words if not word.startswith("-")), None)
    verb = verb if verb in COMMANDS else None
    command = None if verb is None else cast(Command, import_module(COMMANDS[verb][1]))
    args = _parser(verb, command).parse_args(words)
    if command is None:
        _parser(None, None).print_help()
        return EXIT_USAGE
    logging.basicConfig(
        level=logging.ERROR if args.quiet else logging.WARNING, format="%(levelname)s: %(message)s"
    )
    try:
        return command.run(args)
    except FuseError as error:
        print(f"fusevlm {verb}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        again = shlex.join(["fusevlm", *[word for word in words if word != "--fresh"]])
        print(f"\ninterrupted; what is done is kept. Go on with: {again}", file=sys.stderr)
        return EXIT_INTERRUPTED


def _parser(verb: str | None, command: Command | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fusevlm",
        description="When to trust a vision-language model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fusevlm {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (line, _) in COMMANDS.items():
        chosen = command if name == verb else None
        sub = verbs.add_parser(
            name,
            help=line,
            description=line[0].upper() + line[1:] + ".",
            epilog=chosen.EPILOG if chosen else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--quiet", action="store_true", help="print results and errors only")
        if chosen:
            chosen.add_arguments(sub)
    return parser
