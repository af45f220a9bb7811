"""What fusing costs: ``python -m benchmarks.fusing RUN``.

Seconds of fit and score on the calibration and test queries of a finished run, for ``practical``,
for each part taken away, and for the preset as it was before (one statistic, √ surprisal, no
competence); ratios to the last, and the fit's share of sampling the calibration queries. The best
of several repetitions, one after the other in one process.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fusevlm import Fuse
from fusevlm.pipeline.score import read_scored
from fusevlm.render.text import layout
from fusevlm.store.runs import read_manifest, read_run
from fusevlm.types import Queries

BEFORE = "before"
FORMS: dict[str, dict[str, Any]] = {
    "practical": {},
    "without competence": {"competence": False},
    "√ surprisal alone": {"shapes": "sqrt"},
    BEFORE: {"competence": False, "shapes": "sqrt", "probability": "model", "z": 2.0},
}


def least(action: Callable[[], object], repetitions: int) -> float:
    """Seconds of the fastest repetition."""
    found = []
    for _ in range(repetitions):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return min(found)


def given(queries: Queries, name: str) -> Queries:
    """Before, one statistic and no inputs."""
    return replace(queries, prior={"s": queries.s}, inputs={}) if name == BEFORE else queries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    logging.getLogger("fusevlm").setLevel(logging.CRITICAL)
    queries, _ = read_scored(args.run, read_run(args.run), states={"embeddings"})
    known, rest = queries.split()
    sampling = read_manifest(args.run, "sample").seconds * len(known) / len(queries)
    seconds = {}
    for name, options in FORMS.items():
        fit, test = given(known, name), given(rest, name)
        fuse = Fuse("practical", **options).fit(fit)
        seconds[name] = (
            least(lambda f=fit, o=options: Fuse("practical", **o).fit(f), args.repetitions),
            least(lambda f=fuse, t=test: f.score(t), args.repetitions),
        )
    fit_before, score_before = seconds[BEFORE]
    rows = [
        (name, f"{fit:.2f}", f"{fit / fit_before:.2f}", f"{fit / sampling:.1%}",
         f"{1e3 * score / len(rest):.3f}", f"{score / score_before:.2f}")
        for name, (fit, score) in seconds.items()
    ]  # fmt: skip
    print(f"{len(known)} calibration and {len(rest)} test queries; sampling the former took "
          f"{sampling:.0f} s")  # fmt: skip
    head = ["", "fit, s", "ratio", "of sampling", "score, ms/query", "ratio"]
    print(layout(head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
