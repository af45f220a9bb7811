"""Tables of scores and labels: ``metrics``, ``threshold``, ``labels``; and ``moments``."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from typing import Any

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.cli import Verb
from fusevlm.cli.terminal import tell
from fusevlm.errors import InputError
from fusevlm.fuse import thresholds
from fusevlm.fuse.labels import labels_needed
from fusevlm.maths.wishart import scatter_moments
from fusevlm.metrics import auroc, summary
from fusevlm.render.text import layout
from fusevlm.store import read_table

FILE_HELP = "CSV, JSON-lines or Parquet with one row per query"


def add_table_arguments(parser: argparse.ArgumentParser, file: str = "file") -> None:
    """The file and its two columns, as ``metrics``, ``threshold`` and ``labels`` share them."""
    parser.add_argument(file, help=FILE_HELP)
    parser.add_argument("--score", default="u", metavar="COLUMN", help="score (default: u)")
    parser.add_argument("--wrong", default="wrong", metavar="COLUMN", help="0/1 (default: wrong)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def score_columns(args: argparse.Namespace) -> tuple[FloatArray, BoolArray, dict[str, list[Any]]]:
    """Score and label columns of the file, and all of its columns."""
    table = read_table(args.file)
    u = checks.vector(column(table, args.score, args.file), args.score)
    words = {"true": 1, "false": 0}  # as pandas writes booleans into CSV
    labels = [words.get(str(v).lower(), v) for v in column(table, args.wrong, args.file)]
    wrong = checks.labels(labels, args.wrong, length=len(u))
    return u, wrong, table


def column(table: dict[str, list[Any]], name: str, file: str) -> list[Any]:
    """One column, or an error that lists those there are."""
    if name not in table:
        raise InputError(f"{file} has no column {name!r}.{checks.hint(name, table)}")
    return table[name]


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser)
    parser.add_argument("--probability", metavar="COLUMN", help="P(wrong), for ECE and Brier")
    parser.add_argument("--unit", metavar="COLUMN", help="resample these together (image id)")
    parser.add_argument("--boot", type=int, default=1000, help="resamples (default: 1000)")
    parser.add_argument("--level", type=float, default=0.95, help="of the intervals (0.95)")
    parser.add_argument("--seed", type=int, default=0)


def _metrics(args: argparse.Namespace) -> int:
    u, wrong, table = score_columns(args)
    p = None
    if args.probability:
        p = checks.vector(column(table, args.probability, args.file), args.probability)
    units = column(table, args.unit, args.file) if args.unit else None
    found = summary(u, wrong, p, units=units, n_boot=args.boot, level=args.level, seed=args.seed)
    if args.json:
        tell(json.dumps({name: asdict(value) for name, value in found.items()}, indent=1))
        return 0
    tell(f"{len(u)} queries, {int(wrong.sum())} wrong; {args.level:.0%} bootstrap intervals")
    rows = [(name, value.estimate, value.low, value.high) for name, value in found.items()]
    tell(layout(("metric", "value", "low", "high"), rows))
    return 0


def _add_threshold(parser: argparse.ArgumentParser) -> None:
    add_table_arguments(parser)
    parser.add_argument("--risk", type=float, default=0.2, help="wanted error rate (0.2)")
    parser.add_argument("--delta", type=float, default=0.1, help="chance to miss it (0.1)")
    parser.add_argument("--rows", type=int, default=10, help="rows of the risk table (10)")


def _threshold(args: argparse.Namespace) -> int:
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
        tell(json.dumps({"rules": rules, "table": table.rows()}, indent=1))
        return 0
    tell(f"answer iff score ≤ threshold; wanted risk {args.risk:g}, delta {args.delta:g}")
    tell(
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
    tell(f"\nguaranteed risks below hold together with probability {1 - args.delta:g}")
    header = ("threshold", "coverage", "empirical risk", "guaranteed risk")
    tell(layout(header, [tuple(row.values()) for row in table.rows()]))
    return 0


def _json_ready(record: dict[str, Any]) -> dict[str, Any]:
    """−inf (always abstain) has no place in JSON; null says it."""
    return {
        key: None if isinstance(value, float) and math.isinf(value) else value
        for key, value in record.items()
    }


def _add_labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--risk", type=float, required=True, help="wanted error rate")
    parser.add_argument("--delta", type=float, default=0.1, help="chance to miss it (0.1)")
    parser.add_argument("--coverage", type=float, default=0.5, help="share to be answered (0.5)")
    parser.add_argument("--error-rate", type=float, metavar="RATE", help="over all queries")
    parser.add_argument("--auroc", type=float, help="of the score (0.85)")
    parser.add_argument("--power", type=float, default=0.9, help="chance to succeed (0.9)")
    parser.add_argument("--share", type=float, default=0.5, help="kept for the threshold (0.5)")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (0)")
    add_table_arguments(parser, "--file")


def _labels(args: argparse.Namespace) -> int:
    rate, ranking = args.error_rate, args.auroc
    if args.file is not None:
        u, wrong, _ = score_columns(args)
        wrong = checks.both_classes(wrong, "a plan")
        rate = float(wrong.mean()) if rate is None else rate
        ranking = auroc(u, wrong) if ranking is None else ranking
    if rate is None:
        raise InputError(
            "how often is the model wrong? Pass --error-rate 0.2, or --file scores.csv with the "
            "scores and labels of a few queries."
        )
    plan = labels_needed(
        risk=args.risk,
        delta=args.delta,
        coverage=args.coverage,
        error_rate=rate,
        auroc=0.85 if ranking is None else ranking,
        power=args.power,
        share=args.share,
        seed=args.seed,
    )
    tell(json.dumps(asdict(plan) | {"possible": plan.possible}, indent=1) if args.json else plan)
    return 0


def _add_moments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("d", type=int, help="features of a response embedding")
    parser.add_argument("n", type=int, help="sampled responses; n > d uses the d×d scatter")


def _moments(args: argparse.Namespace) -> int:
    a0, v = scatter_moments(args.n, args.d)
    slope = min(args.n, args.d)
    tell(f"a0 = {a0:.12g}\nv = {v:.12g}\nslope = {slope}\nslope²/v = {slope**2 / v:.6g}")
    return 0


VERBS = {
    "metrics": Verb(
        "examples:\n  fusevlm metrics scores.csv\n  fusevlm metrics scores.csv --score m_post "
        "--probability p_wrong --unit image_id --json",
        _add_metrics,
        _metrics,
    ),
    "threshold": Verb(
        "examples:\n  fusevlm threshold scores.csv --risk 0.2 --delta 0.1\n"
        "  fusevlm threshold scores.csv --risk 0.1 --json",
        _add_threshold,
        _threshold,
    ),
    "labels": Verb(
        "examples:\n  fusevlm labels --risk 0.05 --delta 0.1 --coverage 0.6 --error-rate 0.2\n"
        "  fusevlm labels --risk 0.1 --file pilot.csv --json",
        _add_labels,
        _labels,
    ),
    "moments": Verb("example:\n  fusevlm moments 5120 50", _add_moments, _moments),
}
