"""Risk and coverage among out-of-distribution queries: ``python -m benchmarks.outside runs/demo``.

Held-out pairs and unseen phrasings of a run's test queries, decided by the whole rule, by θ alone
(no cap, no novelty), by θ chosen for each group, and by the preset as it was before issue H; each
fitted on the run's own calibration queries. In brackets 95 % over resampled images.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.promise import ALONE, OLD
from fusevlm import Fuse, Queries
from fusevlm.pipeline.score import read_scored
from fusevlm.render.text import layout
from fusevlm.store.runs import read_run

RESAMPLES = 1000


def outside(queries: Queries) -> np.ndarray[Any, Any]:
    """Which queries show a held-out pair or use an unseen phrasing."""
    pair, words = (np.asarray(queries.columns[k]) for k in ("held_out_pair", "unseen_phrasing"))
    return np.asarray(pair.astype(bool) | words.astype(bool))


def risk_and_coverage(queries: Queries, answer: Any, rows: Any, seed: int = 0) -> list[str]:
    """Both among some rows, with intervals."""
    units = np.unique(np.asarray(queries.units)[rows], return_inverse=True)[1]
    wrong, said = queries.wrong[rows] & answer[rows], answer[rows]
    errors, answered, size = (np.bincount(units, values) for values in
                              (wrong, said, np.ones(len(units))))  # fmt: skip
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(size), (RESAMPLES, len(size)))
    found = []
    for top, below in ((errors, answered), (answered, size)):
        spread = top[drawn].sum(1) / np.maximum(below[drawn].sum(1), 1)
        low, high = np.quantile(spread, [0.025, 0.975])
        share = top.sum() / max(below.sum(), 1)
        found.append(f"{share:.3f} [{low:.3f}, {high:.3f}]")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print one table for each wanted risk."""
    parser = argparse.ArgumentParser(prog="benchmarks.outside")
    parser.add_argument("run", type=Path)
    parser.add_argument("--risks", type=float, nargs="+", default=[0.2, 0.05])
    args = parser.parse_args(argv)
    logging.getLogger("fusevlm").setLevel(logging.CRITICAL)
    whole, _ = read_scored(args.run, read_run(args.run), states={"embeddings"})
    calibration, test = whole.split()
    forms = {
        "the whole rule": (Fuse(), {}),
        "θ alone": (Fuse(**ALONE), {}),
        "before issue H": (Fuse(**OLD), {"inputs": {}, "views": {}}),
    }
    rows: dict[float, list[list[str]]] = {risk: [] for risk in args.risks}
    known = ["outside" if out else "inside" for out in outside(calibration)]
    asked = ["outside" if out else "inside" for out in outside(test)]
    for name, (fuse, changes) in forms.items():
        given, new = (replace(q, **changes) for q in (calibration, test))
        if changes:
            given, new = (replace(q, prior={"s": q.s}) for q in (given, new))
        fuse.fit(given, groups=known)
        scores = fuse.score(new)
        for risk in args.risks:
            plain = fuse.decide(scores, risk=risk).answer
            rows[risk].append([name, *_all(test, plain)])
            if name == "the whole rule":
                split = fuse.decide(scores, risk=risk, groups=asked).answer
                rows[risk].append(["θ per group", *_all(test, split)])
    for risk in args.risks:
        print(f"\nwanted risk {risk:g}; {int(outside(test).sum())} of {len(test)} test queries are "
              f"out of distribution")  # fmt: skip
        print(layout(["", "risk outside", "coverage outside", "risk, all", "coverage, all"],
                     rows[risk]))  # fmt: skip
    return 0


def _all(test: Queries, answer: Any) -> list[str]:
    every = np.full(len(test), True)
    return [
        *risk_and_coverage(test, answer, outside(test)),
        *risk_and_coverage(test, answer, every),
    ]


if __name__ == "__main__":
    raise SystemExit(main())
