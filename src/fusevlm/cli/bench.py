"""``fusevlm bench CONFIG``."""

from __future__ import annotations

import argparse
import shlex
from contextlib import nullcontext

from fusevlm.cli import EXIT_INTERRUPTED, EXIT_OK, EXIT_PARTIAL, Verb
from fusevlm.cli.progress import progress_line
from fusevlm.cli.runs import (
    LIMIT_HELP,
    SET_HELP,
    add_trials,
    print_dry_run,
    print_stand_ins,
    rehearsal_folder,
    run_folder,
    say_unless,
)
from fusevlm.cli.terminal import tell
from fusevlm.errors import library_quiet

EPILOG = """\
examples:
  fusevlm bench configs/embedded.toml
  fusevlm bench configs/embedded.toml --out runs/trial --limit 100 --set sample.n=10
  fusevlm bench configs/paper.toml --dry-run --tflops 150
  fusevlm bench configs/paper.toml --rehearse

writes results.json, .md, .csv and .tex and all figures as SVG and PDF; run the same command again
to go on after an interruption"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="TOML file with [[dataset]] and [[model]]")
    parser.add_argument("--out", metavar="DIR", help="folder of runs and results (runs/bench-NAME)")
    parser.add_argument("--redo", metavar="STAGE", help="make this stage of every run again")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument("--limit", type=int, metavar="N", help=LIMIT_HELP)
    add_trials(parser)


def _run(args: argparse.Namespace) -> int:
    from fusevlm.pipeline.bench import read_bench

    bench = read_bench(args.config, args.set, args.limit)
    if args.dry_run:
        methods = len(next(iter(bench.places.values())).calibrate.names())
        tell(f"{bench.name}: {', '.join(bench.places)}; {methods} methods each")
        return print_dry_run(bench.places, args)
    from fusevlm.pipeline.bench import run_bench
    from fusevlm.render.tables import terminal

    out = run_folder(args.out, f"bench-{bench.name}")
    words = ["fusevlm", "bench", args.config, *(["--out", args.out] if args.out else [])]
    words += [word for change in args.set for word in ("--set", change)]
    words += ["--limit", str(args.limit)] if args.limit is not None else []
    if args.rehearse:
        from fusevlm.testing.rehearsal import rehearse_bench, save_log

        out = rehearsal_folder(out, args.redo)
        bench, log = rehearse_bench(bench, out)
        save_log(out, bench.name, log)
        print_stand_ins(log, out, args.quiet)
        words.append("--rehearse")
    again = shlex.join(words)
    try:
        # of random models everything drifts and nothing is calibrated: no need to say so
        with library_quiet() if args.rehearse else nullcontext():
            results = run_bench(
                bench,
                out,
                redo=args.redo,
                say=say_unless(args.quiet),
                progress=lambda what: progress_line(what, quiet=args.quiet),
                redo_command=lambda stage: f"{again} --redo {stage}",
            )
    except KeyboardInterrupt:
        tell(f"\ninterrupted; what is done is kept. Go on with: {again}", error=True)
        return EXIT_INTERRUPTED
    tell(terminal(results))
    tell(f"\nresults: {out / 'results.md'} (also .json, .csv, .tex; it lists the figures)")
    return EXIT_PARTIAL if any(place.n_failed for place in results.places) else EXIT_OK


VERBS = {"bench": Verb(EPILOG, _add, _run)}
