"""Run benchmarks and print one table: ``python -m benchmarks [NAME …] [--json FILE]``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

# adapter, clip, drift, festa, guarantee, labels, mmbench, novelty, scores are commands of their
# own: python -m benchmarks.NAME
NAMES = ("imports", "evidence", "sampling", "ask", "annotations", "pairs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="all of them by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    args = parser.parse_args()
    rows = []
    for name in args.names or NAMES:
        for row in import_module(f"benchmarks.{name}").run():
            rows.append(row)
            limit = "at most" if row.at_most else "at least"
            wanted = "" if row.target is None else f"({limit} {row.target:g}: {row.met})"
            print(f"{row.name}: {row.value:.4g} {row.unit} {wanted} {row.detail}", flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
