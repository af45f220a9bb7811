"""Does the promised risk hold on real outputs? ``python -m benchmarks.guarantee RUN``.

FUSE is fitted on the calibration queries of a run; its test queries are then the population, whose
risk at any threshold is known. 500 of them are drawn with replacement 1,000 times, a threshold is
chosen on each draw; a violation is a draw whose threshold has a larger risk in the population.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fusevlm.fuse import thresholds
from fusevlm.fuse.estimator import Fuse
from fusevlm.pipeline.score import read_scored
from fusevlm.render.text import layout
from fusevlm.store.runs import read_run


def population(run: Path, preset: str) -> tuple[Fuse, np.ndarray, np.ndarray]:
    queries, _ = read_scored(run, read_run(run), states={"embeddings"})
    fit, rest = queries.split()
    fuse = Fuse(preset, threshold_share=0.0).fit(fit)
    return fuse, fuse.score(rest).u, rest.wrong


def draws(
    u: np.ndarray,
    wrong: np.ndarray,
    choose: Callable[[np.ndarray, np.ndarray], float],
    args: argparse.Namespace,
) -> tuple[float, float]:
    """Share of draws whose population risk exceeds the promise, and mean coverage."""
    rng = np.random.default_rng(args.seed)
    over, covered = 0, 0.0
    for _ in range(args.repetitions):
        index = rng.integers(len(u), size=args.size)
        answered = u <= choose(u[index], wrong[index])
        over += bool(answered.any()) and wrong[answered].mean() > args.risk
        covered += answered.mean()
    return over / args.repetitions, covered / args.repetitions


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--risk", type=float, default=0.2)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--size", type=int, default=500)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.getLogger("fusevlm").setLevel(logging.ERROR)
    rows = []
    for preset in ("practical", "paper"):
        fuse, u, wrong = population(args.run, preset)
        grid = thresholds.candidate_grid(fuse.model.u, args.size, args.risk, args.delta)

        def tested(u: np.ndarray, wrong: np.ndarray, grid: np.ndarray = grid) -> float:
            return thresholds.learn_then_test(
                u, wrong, risk=args.risk, delta=args.delta, grid=grid
            ).threshold

        def literal(u: np.ndarray, wrong: np.ndarray) -> float:
            return thresholds.empirical(u, wrong, risk=args.risk).threshold

        for rule, choose in (("Learn-then-Test", tested), ("the paper's rule", literal)):
            rows.append((f"{preset}, {rule}", *draws(u, wrong, choose, args)))
    bar = args.delta + 3 * np.sqrt(args.delta * (1 - args.delta) / args.repetitions)
    print(f"population {len(u)} queries, base risk {wrong.mean():.4f}; promised risk {args.risk:g}")
    print(layout(["", "violations", "mean coverage"], rows))
    print(f"bar for Learn-then-Test: delta + 3 standard errors = {bar:.4f}")
    kept = all(row[1] <= bar for row in rows if "Learn" in row[0])
    print("the guarantee held" if kept else "THE GUARANTEE DID NOT HOLD")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
