"""``fusevlm metrics FILE``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from fusevlm import checks
from fusevlm.cli.tables import add_table_arguments, column, score_columns
from fusevlm.metrics import summary
from fusevlm.render.text import layout

EPILOG = """\
examples:
  fusevlm metrics scores.csv
  fusevlm metrics scores.csv --score m_post --probability p_wrong --cluster image_id --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser)
    parser.add_argument("--probability", metavar="COLUMN", help="P(wrong), for ECE and Brier")
    parser.add_argument("--cluster", metavar="COLUMN", help="resample these together (image id)")
    parser.add_argument("--boot", type=int, default=1000, help="resamples (default: 1000)")
    parser.add_argument("--level", type=float, default=0.95, help="of the intervals (0.95)")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    u, wrong, table = score_columns(args)
    p = None
    if args.probability:
        p = checks.vector(column(table, args.probability, args.file), args.probability)
    clusters = column(table, args.cluster, args.file) if args.cluster else None
    found = summary(
        u, wrong, p, clusters=clusters, n_boot=args.boot, level=args.level, seed=args.seed
    )
    if args.json:
        print(json.dumps({name: asdict(value) for name, value in found.items()}, indent=1))
        return 0
    print(f"{len(u)} queries, {int(wrong.sum())} wrong; {args.level:.0%} bootstrap intervals")
    rows = [(name, value.estimate, value.low, value.high) for name, value in found.items()]
    print(layout(("metric", "value", "low", "high"), rows))
    return 0
