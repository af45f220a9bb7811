"""The ``fusevlm`` command: a verb a module, imported only when that verb is used."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from fusevlm import __version__
from fusevlm.errors import FuseError

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

# verb: (one line for --help, module with add_arguments and run)
COMMANDS: dict[str, tuple[str, str]] = {
    "adapter": ("the prior's GP adapter: train on pairs, apply to queries", "fusevlm.cli.adapter"),
    "demo": ("walk through FUSE on simulated responses with a known truth", "fusevlm.cli.demo"),
    "sample": ("sample answers of a vision-language model into a run folder", "fusevlm.cli.sample"),
    "embed": ("embed images and questions with CLIP-like towers", "fusevlm.cli.embed"),
    "metrics": ("evaluate a table of scores and labels, with intervals", "fusevlm.cli.metrics"),
    "threshold": ("choose when to answer, at a risk you state", "fusevlm.cli.threshold"),
    "moments": ("Wishart log-det moments a0(d, n) and v(d, n)", "fusevlm.cli.moments"),
}

EPILOG = """\
examples:
  fusevlm demo
  fusevlm metrics scores.csv --json
  fusevlm threshold scores.csv --risk 0.2 --delta 0.1
  fusevlm moments 5120 50

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
    verb = next((word for word in words if word in COMMANDS), None)
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
        print(f"fusevlm {verb}: interrupted", file=sys.stderr)
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
