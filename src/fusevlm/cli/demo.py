"""``fusevlm demo``: all of FUSE on the embedded models; with ``--simulation`` the mathematics."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

EPILOG = """\
examples:
  fusevlm demo
  fusevlm demo --limit 200
  fusevlm demo --simulation

nothing is downloaded: a small vision-language model, its towers and its prior come with fusevlm"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--limit", type=int, default=2000, help="queries, a quarter of them to calibrate (2000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of sampling and splits (0)")
    parser.add_argument("--out", metavar="DIR", help="run folder (runs/demo…)")
    parser.add_argument("--redo", metavar="STAGE", help="remove it and those after it first")
    parser.add_argument(
        "--simulation", action="store_true", help="simulated responses with a known truth instead"
    )


def run(args: argparse.Namespace) -> int:
    if args.simulation:
        from fusevlm.cli.simulation import run_simulation

        return run_simulation(args)
    return _demo(args)


def _demo(args: argparse.Namespace) -> int:
    # before numpy and torch are loaded: small models are faster on one thread, and the figures
    # depend on how many there are
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from fusevlm import checks
    from fusevlm.cli import EXIT_INTERRUPTED
    from fusevlm.cli.stages import bring_up_to_date, print_summary
    from fusevlm.config import demo_config
    from fusevlm.logs import library_quiet

    config = demo_config(args.limit, args.seed)
    for module, extra in (
        ("easy_vqa", "embedded"),
        ("torch", "embedded"),
        ("transformers", "embedded"),
        ("matplotlib", "report"),
    ):
        checks.extra(module, "the demo", extra)
    folder = Path(args.out) if args.out else Path("runs") / _name(args.limit, args.seed)
    words = ["demo", "--limit", str(args.limit), "--seed", str(args.seed), "--out", str(folder)]
    with library_quiet():  # the tables show it: an inert prior, drift, a poor intercept
        code = bring_up_to_date(folder, config, command=words, quiet=args.quiet, redo=args.redo)
    if code != EXIT_INTERRUPTED:
        print_summary(folder, times=True)
    return code


def _name(limit: int, seed: int) -> str:
    """Another limit or seed is another run."""
    return "demo" + (f"-{limit}" if limit != 2000 else "") + (f"-seed{seed}" if seed else "")
