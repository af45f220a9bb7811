"""``fusevlm ls``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fusevlm.render.text import layout

EPILOG = "examples:\n  fusevlm ls\n  fusevlm ls experiments"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR",
                        help="a run, or a folder of runs (runs)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from fusevlm.errors import ArtefactError
    from fusevlm.store.runs import is_run, size_of

    home = Path(args.folder)
    if not home.is_dir():
        raise ArtefactError(f"{home} is no folder. Make a run first: fusevlm demo.")
    found = [home] if is_run(home) else sorted(p for p in home.iterdir() if is_run(p))
    if not found:
        print(f"no runs in {home}")
        return 0
    rows = [(str(path), *_standing(path), f"{size_of(path) / 1e6:.1f} MB") for path in found]
    print(layout(("run", "config", "queries", "stages", "size"), rows))
    return 0


def _standing(path: Path) -> tuple[str, str, str]:
    """Config name, number of queries, and where the stages stand."""
    from fusevlm.errors import FuseError
    from fusevlm.pipeline.run import FRESH, MISSING, states
    from fusevlm.store.runs import read_run

    try:
        config = read_run(path)
        found = states(path, config, look_outside=False)
    except FuseError as error:
        return "–", "–", f"damaged: {error}"
    data = found["data"].manifest
    queries = str(sum(data.counts.values())) if data is not None and data.complete else "–"
    fresh = [name for name, state in found.items() if state.kind == FRESH]
    others = [
        f"{name} {state.kind}"
        for name, state in found.items()
        if state.kind not in (FRESH, MISSING)
    ]
    done = "all done" if len(fresh) == len(found) else f"done to {fresh[-1]}" if fresh else "begun"
    return config.name, queries, ", ".join([done, *others])
