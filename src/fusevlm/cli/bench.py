"""``fusevlm bench CONFIG``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from fusevlm.cli.progress import progress_line
from fusevlm.cli.stages import SET_HELP

EPILOG = """\
examples:
  fusevlm bench configs/embedded.toml
  fusevlm bench configs/embedded.toml --out runs/trial --set data.n_test=200 --set sample.n=10
  fusevlm bench configs/paper.toml --dry-run --tflops 150

writes results.json, .md, .csv and .tex and the curves as SVG; run the same command again to go on
after an interruption"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="TOML file with [[dataset]] and [[model]]")
    parser.add_argument("--out", metavar="DIR", help="folder of runs and results (runs/NAME)")
    parser.add_argument("--redo", metavar="STAGE", help="make this stage of every run again")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument("--dry-run", action="store_true", help="check, list needs, estimate time")
    parser.add_argument("--tflops", type=float, default=100.0, help="of the GPU, sustained (100)")


def run(args: argparse.Namespace) -> int:
    from fusevlm.pipeline.bench_config import read_bench

    bench = read_bench(args.config, args.set)
    if args.dry_run:
        from fusevlm.pipeline.cost import report

        methods = len(bench.compare.rows)
        print(f"{bench.name}: {', '.join(bench.places)}; {methods} rows of FUSE beside the scores")
        print(report(bench.places, args.tflops))
        return 0
    from fusevlm.cli import EXIT_INTERRUPTED, EXIT_OK, EXIT_PARTIAL
    from fusevlm.pipeline.bench import run_bench
    from fusevlm.render.tables import terminal

    out = Path(args.out) if args.out else Path("runs") / f"bench-{bench.name}"
    words = ["fusevlm", "bench", args.config, *(["--out", args.out] if args.out else [])]
    words += [word for change in args.set for word in ("--set", change)]
    again = shlex.join(words)
    say: Callable[[str], None] = (lambda text: None) if args.quiet else _say
    try:
        results = run_bench(
            bench,
            out,
            redo=args.redo,
            say=say,
            progress=lambda what: progress_line(what, quiet=args.quiet),
            redo_command=lambda stage: f"{again} --redo {stage}",
        )
    except KeyboardInterrupt:
        print(f"\ninterrupted; what is done is kept. Go on with: {again}", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(terminal(results))
    print(f"\nresults: {out / 'results.md'} (also .json, .csv, .tex and the curves as .svg)")
    return EXIT_PARTIAL if any(place.n_failed for place in results.places) else EXIT_OK


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
