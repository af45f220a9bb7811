"""``fusevlm threshold FILE``."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from typing import Any

from fusevlm import thresholds
from fusevlm.cli.tables import add_table_arguments, score_columns
from fusevlm.render.text import layout

EPILOG = """\
examples:
  fusevlm threshold scores.csv --risk 0.2 --delta 0.1
  fusevlm threshold scores.csv --risk 0.1 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser)
    parser.add_argument("--risk", type=float, default=0.2, help="wanted error rate (0.2)")
    parser.add_argument("--delta", type=float, default=0.1, help="chance to miss it (0.1)")
    parser.add_argument("--rows", type=int, default=10, help="rows of the risk table (10)")


def run(args: argparse.Namespace) -> int:
    u, wrong, _ = score_columns(args)
    found = [
        thresholds.learn_then_test(u, wrong, risk=args.risk, delta=args.delta),
        thresholds.clopper_pearson(u, wrong, risk=args.risk, delta=args.delta),
        thresholds.paper_bound(u, wrong, risk=args.risk, delta=args.delta),
        thresholds.empirical(u, wrong, risk=args.risk),
    ]
    table = thresholds.risk_table(u, wrong, delta=args.delta, n_rows=args.rows)
    if args.json:
        rules = [_json_ready(asdict(rule)) for rule in found]
        print(json.dumps({"rules": rules, "table": table.rows()}, indent=1))
        return 0
    print(f"answer iff score ≤ threshold; wanted risk {args.risk:g}, delta {args.delta:g}")
    print(
        layout(
            ("rule", "threshold", "coverage", "empirical risk", "guaranteed risk"),
            [
                (
                    t.rule,
                    t.threshold if t.feasible else "abstain",
                    t.coverage,
                    t.empirical_risk,
                    t.guaranteed_risk,
                )
                for t in found
            ],
        )
    )
    print(f"\nguaranteed risks below hold together with probability {1 - args.delta:g}")
    header = ("threshold", "coverage", "empirical risk", "guaranteed risk")
    print(layout(header, [tuple(row.values()) for row in table.rows()]))
    return 0


def _json_ready(record: dict[str, Any]) -> dict[str, Any]:
    """−inf (always abstain) has no place in JSON; null says it."""
    return {
        key: None if isinstance(value, float) and math.isinf(value) else value
        for key, value in record.items()
    }
