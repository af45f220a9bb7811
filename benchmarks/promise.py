"""Is the promise kept with everything switched on? ``python -m benchmarks.promise``.

Worlds in which P(wrong) of every query is known: prior statistics, inputs for the competence prior,
surprisal, further evidence with gaps. Many calibration sets are drawn;
``Fuse.fit().decide()`` chooses a threshold on each, and its true risk is the mean P(wrong) of a
population's answered queries. A violation is a calibration set after which that is above the wanted
risk. Beside it the preset as it was before: one statistic, no competence, one shape.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from fusevlm import Fuse, Samples
from fusevlm.render.text import layout

Floats = np.ndarray[Any, Any]
RISK, DELTA, POPULATION = 0.1, 0.1, 10_000
OLD: dict[str, Any] = {"competence": False, "shapes": "sqrt", "probability": "model", "z": 2.0}


@dataclass(frozen=True, eq=False)
class World:
    """Some queries, with the true probability that each is wrong."""

    p: Floats
    samples: list[Samples]
    s: dict[str, Floats]
    inputs: Floats
    extra: dict[str, Floats]
    units: list[str]

    def given(self, *, old: bool = False) -> dict[str, Any]:
        """The arguments of Fuse; before, one statistic and no inputs."""
        s = {"s": self.s["a"]} if old else self.s
        return {"samples": self.samples, "s": s, "extra": self.extra,
                "inputs": None if old else self.inputs}  # fmt: skip


def draw(rng: np.random.Generator, size: int, kind: str) -> World:
    """``kind``: informed, noise (nothing tells anything), sparse (few errors), crooked, clustered.

    In the last, three queries share a unit and much of what makes them hard: they are not
    independent, and the exact test assumes that they are.
    """
    per = 3 if kind == "clustered" else 1
    units = np.repeat(np.arange(-(-size // per)), per)[:size]
    place = rng.standard_normal((units.max() + 1, 8))[units]
    x = 0.8 * place + 0.6 * rng.standard_normal((size, 8))
    hard = rng.standard_normal(size)
    level = {"noise": 0.6, "sparse": 2.2}.get(kind, 1.4)  # noise: any answer is a violation
    told = 0.0 if kind == "noise" else 1.0
    u = told * (0.6 * x[:, 0] + 0.8 * hard)
    if kind == "crooked":
        u = np.abs(u) * np.sign(np.sin(3 * x[:, 1])) + 0.3 * hard
    p = ndtr((u - level) / 0.6)
    nll = np.exp(1.2 * hard + 0.8 * rng.standard_normal(size) - 1.5)
    asked = rng.random(size) < 0.5
    return World(
        p,
        [Samples(["-"], answer="-", answer_logprobs=[-value]) for value in nll],
        {name: 0.4 * hard + x[:, k] + rng.standard_normal(size) for k, name in enumerate("abc")},
        x,
        {"asked": np.where(asked, hard + 1.5 * rng.standard_normal(size), np.nan)},
        [str(k) for k in units],
    )


def simulate(kind: str, size: int, repetitions: int, seed: int) -> dict[str, Any]:
    """Violations and mean coverage, now and before."""
    rng = np.random.default_rng([seed, size])
    crowd = draw(rng, POPULATION, kind)
    found: dict[str, list[tuple[bool, float]]] = {"now": [], "before": []}
    for number in range(repetitions):
        known = draw(rng, size, kind)
        wrong = rng.random(size) < known.p
        for name in found:
            old = name == "before"
            fuse = Fuse("practical", seed=number, **(OLD if old else {}))
            fuse.fit(**known.given(old=old), wrong=wrong, units=known.units)
            answered = fuse.decide(**crowd.given(old=old), risk=RISK, delta=DELTA).answer
            risk = crowd.p[answered].mean() if answered.any() else 0.0
            found[name].append((bool(risk > RISK), float(answered.mean())))
    return {name: tuple(np.mean(rows, axis=0)) for name, rows in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200, 500, 2000])
    worlds = ["informed", "noise", "sparse", "crooked", "clustered"]
    parser.add_argument("--worlds", nargs="+", default=worlds)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    logging.getLogger("fusevlm").setLevel(logging.CRITICAL)
    bar = DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / args.repetitions)
    rows, worst = [], 0.0
    for kind in args.worlds:
        for size in args.sizes:
            found = simulate(kind, size, args.repetitions, args.seed)
            (now, covered), (before, less) = found["now"], found["before"]
            worst = max(worst, now)
            rows.append((f"{kind}, N = {size}", f"{now:.3f}", f"{before:.3f}", f"{covered:.3f}",
                         f"{less:.3f}"))  # fmt: skip
            print(rows[-1], file=sys.stderr, flush=True)
    print(f"wanted risk {RISK:g}, delta {DELTA:g}, {args.repetitions} calibration sets each; bar "
          f"{bar:.3f}")  # fmt: skip
    head = ["", "violations", "before", "coverage", "coverage before"]
    print(layout(head, rows))
    print("the promise was kept" if worst <= bar else "THE PROMISE WAS NOT KEPT")
    return 0 if worst <= bar else 1


if __name__ == "__main__":
    sys.exit(main())
