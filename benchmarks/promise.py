"""Is the promise kept with everything switched on? ``python -m benchmarks.promise``.

Worlds in which P(wrong) of every query is known: prior statistics, inputs for the competence prior,
surprisal, further evidence with gaps, views of image and question for novelty, two groups. Many
calibration sets are drawn; ``Fuse.fit().decide()`` chooses a threshold on each, and its true risk
is the mean P(wrong) of a population's answered queries. A violation is a calibration set after
which that is above the wanted risk; by group, one after which it is above it in either group.
Beside the whole rule: θ alone (no cap, no novelty), and the preset as it was before issue H (one
statistic, no competence, one shape, no rule but θ).
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
RISK, DELTA, POPULATION = 0.1, 0.1, 5_000
ALONE: dict[str, Any] = {"cap": 1.0, "novelty_level": 0.0}
OLD = {**ALONE, "competence": False, "shapes": "sqrt", "probability": "model", "z": 2.0}
FORMS = {"now": {}, "θ alone": ALONE, "before": OLD}
BY_GROUP = "by group"


@dataclass(frozen=True, eq=False)
class World:
    """Some queries, with the true probability that each is wrong."""

    p: Floats
    samples: list[Samples]
    s: dict[str, Floats]
    inputs: Floats
    extra: dict[str, Floats]
    units: list[str]
    groups: list[str]

    def given(self, *, old: bool = False) -> dict[str, Any]:
        """The arguments of Fuse; before, one statistic and no inputs."""
        if old:
            return {"samples": self.samples, "s": {"s": self.s["a"]}, "extra": self.extra}
        views = {"image": self.inputs[:, :5], "question": self.inputs[:, 5:]}
        return {"samples": self.samples, "s": self.s, "extra": self.extra, "inputs": self.inputs,
                "views": views}  # fmt: skip


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
        ["night" if value > 0.5 else "day" for value in x[:, 2]],
    )


def simulate(kind: str, size: int, repetitions: int, seed: int) -> dict[str, Any]:
    """Violations and mean coverage, now and before."""
    rng = np.random.default_rng([seed, size])
    crowd = draw(rng, POPULATION, kind)
    found: dict[str, list[tuple[bool, float]]] = {name: [] for name in (*FORMS, BY_GROUP)}
    groups = np.array(crowd.groups)
    for number in range(repetitions):
        known = draw(rng, size, kind)
        wrong = rng.random(size) < known.p
        for name, options in FORMS.items():
            old = name == "before"
            fuse = Fuse("practical", seed=number, **options)
            fuse.fit(**known.given(old=old), wrong=wrong, units=known.units, groups=known.groups)
            scores = fuse.score(**crowd.given(old=old))
            answered = fuse.decide(scores, risk=RISK, delta=DELTA).answer
            found[name].append((_risk(crowd.p, answered) > RISK, float(answered.mean())))
            if name == "now":
                answered = fuse.decide(scores, risk=RISK, delta=DELTA, groups=crowd.groups).answer
                worst = max(_risk(crowd.p, answered & (groups == g)) for g in set(crowd.groups))
                found[BY_GROUP].append((worst > RISK, float(answered.mean())))
    return {name: tuple(np.mean(rows, axis=0)) for name, rows in found.items()}


def _risk(p: Floats, answered: Floats) -> float:
    return float(p[answered].mean()) if answered.any() else 0.0


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
            worst = max(worst, found["now"][0], found[BY_GROUP][0])
            figures = [f"{violated:.3f} / {covered:.3f}" for violated, covered in found.values()]
            rows.append((f"{kind}, N = {size}", *figures))
            print(rows[-1], file=sys.stderr, flush=True)
    print(f"wanted risk {RISK:g}, delta {DELTA:g}, {args.repetitions} calibration sets each; bar "
          f"{bar:.3f}")  # fmt: skip
    head = ["violations / coverage", "the whole rule", *list(FORMS)[1:], BY_GROUP]
    print(layout(head, rows))
    print("the promise was kept" if worst <= bar else "THE PROMISE WAS NOT KEPT")
    return 0 if worst <= bar else 1


if __name__ == "__main__":
    sys.exit(main())
