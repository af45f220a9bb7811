"""The ``fusevlm`` command: one table of verbs, each imported only when it is used."""

from __future__ import annotations

import argparse
import logging
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from fusevlm import __version__
from fusevlm.checks import hint
from fusevlm.cli.terminal import nobody_reads, prepare, tell
from fusevlm.errors import FuseError

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

# verb: (one line for --help, module whose VERBS has it)
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("all of FUSE on a small real model that comes with fusevlm", "runs"),
    "ask": ("an answer to a question about an image, and whether to trust it", "ask"),
    "run": ("the whole pipeline from one config, resumable", "runs"),
    "sample": ("samples of the model, and what they rest on", "runs"),
    "embed": ("vectors of images and questions, and what they rest on", "runs"),
    "score": ("scores and labels of a run", "runs"),
    "calibrate": ("every method fitted on a run's calibration queries", "runs"),
    "evaluate": ("every method measured on a run's test queries", "runs"),
    "report": ("plots and one HTML page of a run", "runs"),
    "fit": ("learn from samples you already have when to trust them", "fits"),
    "apply": ("P(wrong), decision and reason for samples you already have", "fits"),
    "serve": ("put a model before people: an endpoint that abstains, and a live page", "serve"),
    "mcp": ("the same for agents: tools of the Model Context Protocol", "serve"),
    "bench": ("datasets × models × methods: the paper's tables", "bench"),
    "adapter": ("the prior's GP adapter: train on pairs, apply to queries", "adapter"),
    "ls": ("list run folders and where they stand", "runs"),
    "verify": ("is a run as it was made? what is damaged, and how to repair it", "runs"),
    "clean": ("remove what runs can do without: stages set aside, and the like", "runs"),
    "cost": ("what a run takes: seconds, bytes, GPU-hours, measured by a short trial", "runs"),
    "validate": ("check a config and what it needs, without loading a model", "runs"),
    "metrics": ("evaluate a table of scores and labels, with intervals", "tables"),
    "threshold": ("choose when to answer, at a risk you state", "tables"),
    "labels": ("how many labels until a risk can be certified", "tables"),
    "moments": ("Wishart log-det moments a0(d, n) and v(d, n)", "tables"),
    "completion": ("a script with which your shell completes all of this", "completion"),
}

EPILOG = """\
examples:
  fusevlm demo
  fusevlm ask picture.png "what color is the shape?"
  fusevlm run own-vlm.toml --run runs/llava
  fusevlm threshold scores.csv --risk 0.2 --delta 0.1

exit codes: 0 done, 1 the work failed (the message says why), 2 wrong usage,
  3 done but some queries failed, 130 interrupted (run the same command again to go on)
"""


@dataclass(frozen=True)
class Verb:
    """What a module of the command line provides for each of its verbs."""

    epilog: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in words if not word.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        tell(f"fusevlm: no command is called {name!r}.{hint(name, COMMANDS)}", error=True)
        return EXIT_USAGE
    verb = None if name is None else verb_of(name)
    parser = _parser(name, verb)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}.{_nearest(unknown, name)}")
    if verb is None:
        _parser(None, None).print_help()
        return EXIT_USAGE
    prepare(logging.ERROR if args.quiet else logging.WARNING)
    try:
        with _terminable():
            code = verb.run(args)
            sys.stdout.flush()
            return code
    except FuseError as error:
        tell(f"fusevlm {name}: {error}", error=True)
        return EXIT_FAILED
    except KeyboardInterrupt:
        again = shlex.join(["fusevlm", *without_redo(words)])
        tell(f"\ninterrupted; what is done is kept. Go on with: {again}", error=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return nobody_reads()
    except OSError as error:  # a full or read-only disk, a folder without rights
        where = f" ({error.filename})" if error.filename else ""
        tell(
            f"fusevlm {name}: {error.strerror or error}{where}. What is finished is kept; mend "
            f"that, then give the same command again.",
            error=True,
        )
        return EXIT_FAILED


@contextmanager
def _terminable() -> Iterator[None]:
    """Meanwhile a polite request to end (SIGTERM) is what Ctrl-C is."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def without_redo(words: Sequence[str]) -> list[str]:
    """The same command again, going on instead of beginning anew."""
    kept: list[str] = []
    skip = False
    for word, after in zip(words, [*words[1:], "-"], strict=True):
        if skip:
            skip = False
        elif word == "--redo":
            skip = not after.startswith("-") and words[0] in ("demo", "run", "bench")
        elif word != "--fresh" and not word.startswith("--redo="):
            kept.append(word)
    return kept


def _nearest(unknown: Sequence[str], name: str | None) -> str:
    """What the first mistyped option may have meant, as a question; else nothing."""
    flag = next((word.partition("=")[0] for word in unknown if word.startswith("--")), None)
    if flag is None or name is None:
        return ""
    from fusevlm.cli.completion import options_of

    found = hint(flag, options_of(name))
    return found if "Did you mean" in found else f" See fusevlm {name} --help."


def verb_of(name: str) -> Verb:
    """What the module of a verb provides for it."""
    found: Verb = import_module(f"fusevlm.cli.{COMMANDS[name][1]}").VERBS[name]
    return found


def _parser(name: str | None, verb: Verb | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fusevlm",
        description="When to trust a vision-language model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fusevlm {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND")
    for other, (line, _) in COMMANDS.items():
        chosen = verb if other == name else None
        sub = verbs.add_parser(
            other,
            help=line,
            description=line[0].upper() + line[1:] + ".",
            epilog=chosen.epilog if chosen else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--quiet", action="store_true", help="print results and errors only")
        if chosen:
            chosen.add_arguments(sub)
    return parser
