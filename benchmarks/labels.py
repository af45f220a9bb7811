"""Does the promised number of labels do? ``python -m benchmarks.labels``.

``fusevlm.labels_needed`` for 12 settings; then fresh label sets of the promised sizes, drawn here
and not by the planner, each divided in two and taken through ``thresholds.candidate_grid`` and
``thresholds.learn_then_test``. Told is the share of them after which something was certified, and
after which the certified threshold answers the wanted coverage of the population or more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from fusevlm import labels_needed, thresholds
from fusevlm.fuse.labels import LabelPlan
from fusevlm.render.text import layout


@dataclass(frozen=True)
class Setting:
    risk: float
    coverage: float
    error_rate: float
    auroc: float

    def __str__(self) -> str:
        return f"{self.risk:g}, {self.coverage:g}, {self.error_rate:g}, {self.auroc:g}"


SETTINGS = (
    Setting(0.02, 0.5, 0.05, 0.85),
    Setting(0.02, 0.3, 0.10, 0.90),
    Setting(0.02, 0.6, 0.20, 0.97),
    Setting(0.05, 0.8, 0.10, 0.85),
    Setting(0.05, 0.4, 0.20, 0.85),
    Setting(0.05, 0.5, 0.30, 0.95),
    Setting(0.10, 0.6, 0.20, 0.80),
    Setting(0.10, 0.7, 0.20, 0.90),
    Setting(0.10, 0.3, 0.40, 0.90),
    Setting(0.20, 0.9, 0.20, 0.80),
    Setting(0.20, 0.5, 0.40, 0.85),
    Setting(0.20, 0.4, 0.30, 0.70),
)


def certified(setting: Setting, plan: LabelPlan, n: int, rng: np.random.Generator) -> float:
    """Population coverage of the threshold that n fresh labels certify; 0: they certify none."""
    wrong = rng.random(n) < setting.error_rate
    shift = np.sqrt(2.0) * norm.ppf(setting.auroc)
    u = rng.normal(loc=np.where(wrong, shift, 0.0))
    size = round(plan.share * n)
    wanted = {"risk": plan.risk, "delta": plan.delta}
    grid = thresholds.candidate_grid(u[size:], size, **wanted, wrong=wrong[size:])
    theta = thresholds.learn_then_test(u[:size], wrong[:size], **wanted, grid=grid).threshold
    right, mistaken = norm.cdf(theta), norm.cdf(theta - shift)
    return float((1 - setting.error_rate) * right + setting.error_rate * mistaken)


def happened(setting: Setting, plan: LabelPlan, n: int | None, times: int, seed: int) -> np.ndarray:
    if n is None:
        return np.zeros(0)
    rng = np.random.default_rng([seed, n])
    return np.array([certified(setting, plan, n, rng) for _ in range(times)])


def with_error(hits: np.ndarray) -> str:
    if not len(hits):
        return "–"
    share = float(np.mean(hits))
    return f"{share:.3f} ± {2 * np.sqrt(share * (1 - share) / len(hits)):.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--power", type=float, default=0.9)
    parser.add_argument("--delta", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(arguments)
    bar = args.power - 3 * np.sqrt(args.power * (1 - args.power) / args.repetitions)
    rows, least = [], 1.0
    for setting in SETTINGS:
        plan = labels_needed(
            risk=setting.risk,
            coverage=setting.coverage,
            error_rate=setting.error_rate,
            auroc=setting.auroc,
            delta=args.delta,
            power=args.power,
        )
        some = happened(setting, plan, plan.first, args.repetitions, args.seed) > 0
        enough = happened(setting, plan, plan.needed, args.repetitions, args.seed)
        enough = enough >= setting.coverage
        least = min([least, *(float(hits.mean()) for hits in (some, enough) if len(hits))])
        numbers = [
            "–" if n is None else f"{n:,}"
            for n in (plan.least, plan.first, plan.single, plan.needed)
        ]
        rows.append(
            (str(setting), numbers[0], numbers[1], with_error(some), *numbers[2:],
             with_error(enough))
        )  # fmt: skip
        print(rows[-1], file=sys.stderr, flush=True)
    print(
        f"promised: probability {args.power:g} at least; happened in {args.repetitions} fresh "
        f"label sets, ± 2 standard errors; delta {args.delta:g}"
    )
    head = ["risk, coverage, error rate, AUROC", "least", "first", "certified something",
            "single", "needed", "reached the coverage"]  # fmt: skip
    print(layout(head, rows))
    kept = least >= bar
    print(f"bar: {args.power:g} − 3 standard errors = {bar:.3f}; lowest {least:.3f}")
    print("the numbers hold" if kept else "THE NUMBERS DO NOT HOLD")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
