"""Score tables as the commands read them, and tables as they print them."""

from __future__ import annotations

import argparse
from typing import Any

from fusevlm import checks
from fusevlm.checks import BoolArray, FloatArray
from fusevlm.errors import InputError
from fusevlm.store import read_table

FILE_HELP = "CSV, JSON-lines or Parquet with one row per query"


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """The file and its two columns, as ``metrics`` and ``threshold`` share them."""
    parser.add_argument("file", help=FILE_HELP)
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
        raise InputError(f"{file} has no column {name!r}; it has {', '.join(map(str, table))}.")
    return table[name]
