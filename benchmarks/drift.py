"""Is drift found, and only drift? ``python -m benchmarks.drift [--statistics] [--run RUN]``.

Simulated columns: a difficulty that a prior statistic s and the evidence see, the latter skewed,
with ties or with gaps, and components of inputs. Batches and streams without drift should seldom be
called drifted; the cases are those in which the earlier warning was silent (s constant, s flipped,
all queries easy) and more. ``--statistics`` compares what a column could be tested with instead.

``--run`` asks ``Fuse.check_drift`` and ``Fuse.monitor`` themselves, on the calibration queries of a
finished run: two thirds of the images are fitted on, batches are drawn from the others, in many
random divisions.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import Fuse, Queries
from fusevlm.fuse.drift import Reference, check, ranks, standardised
from fusevlm.fuse.monitor import Monitor
from fusevlm.fuse.watch import first_of_units
from fusevlm.pipeline.score import read_scored
from fusevlm.render.text import layout
from fusevlm.store.runs import read_run

Floats = np.ndarray[Any, Any]
Columns = dict[str, Floats]
Draw = Callable[[np.random.Generator, int], Columns]  # columns of queries, from a Fuse or from here

N_REFERENCE, LEVEL = 750, 0.05
SIZES = (10, 20, 50, 100, 200, 500)
EVIDENCE = ("surprisal", "logdet", "agreement", "complement")
PAIRS = tuple(("s", name) for name in EVIDENCE)


def usual(rng: np.random.Generator, size: int, *, hard: Floats | None = None) -> Columns:
    """Columns of queries of the calibration's kind; ``hard`` is their difficulty."""
    u = rng.standard_normal(size) if hard is None else hard

    def seen(rho: float) -> Floats:
        return np.asarray(rho * u + np.sqrt(1 - rho**2) * rng.standard_normal(size))

    asked = rng.random(size) < 0.5
    inputs = rng.standard_normal((size, 4))
    return {
        "s": 0.6 * seen(0.7) + 0.8 * inputs[:, 0],
        "surprisal": np.exp(seen(0.8)),
        "logdet": seen(0.7),
        "agreement": np.floor(6 / (1 + np.exp(-2 * seen(0.6)))) / 5,
        "complement": np.where(asked, seen(0.4), np.nan),
        **{f"image {k}": inputs[:, k] for k in range(4)},
    }


def changed(**changes: Callable[[Floats, np.random.Generator], Floats]) -> Draw:
    """The usual columns, some of them changed."""

    def draw(rng: np.random.Generator, size: int) -> Columns:
        columns = usual(rng, size)
        new = {name.replace("_", " "): change for name, change in changes.items()}
        return {k: new[k](v, rng) if k in new else v for k, v in columns.items()}

    return draw


def mixed(rng: np.random.Generator, size: int) -> Columns:
    """30 % of the queries from elsewhere: hard, and with another kind of image."""
    foreign = rng.random(size) < 0.3
    columns = usual(rng, size, hard=rng.standard_normal(size) + 1.5 * foreign)
    return {**columns, "image 2": columns["image 2"] + 2.5 * foreign}


CASES: Mapping[str, Draw] = {
    "s constant": changed(s=lambda v, rng: np.zeros_like(v)),
    "s flipped": changed(s=lambda v, rng: -v),
    "all queries easy": lambda rng, n: usual(rng, n, hard=-np.abs(rng.standard_normal(n))),
    "s shuffled": changed(s=lambda v, rng: rng.permutation(v)),
    "evidence 0.7 sd higher": changed(logdet=lambda v, rng: v + 0.7),
    "spread doubled": changed(s=lambda v, rng: 2 * v),
    "one input 1 sd off": changed(image_2=lambda v, rng: v + 1),
    "30 % from elsewhere": mixed,
    "two-humped": changed(logdet=lambda v, rng: 0.3 * v + 0.95 * rng.choice([-1, 1], len(v))),
    "asked of all": lambda rng, n: {
        **(c := usual(rng, n)),
        "complement": 0.4 * c["logdet"] + rng.normal(size=n),
    },
}


def reference_of(columns: Columns) -> Reference:
    return Reference(tuple(columns), np.column_stack(list(columns.values())), PAIRS)


def rejected(draw: Draw, size: int, repetitions: int, seed: int, permutations: int = 199) -> float:
    """The share of batches that are called drifted, each with a reference of its own."""
    rng = np.random.default_rng([seed, size])
    found = 0
    for k in range(repetitions):
        reference = reference_of(usual(rng, N_REFERENCE))
        batch = check(reference, draw(rng, size), level=LEVEL, permutations=permutations, seed=k)
        found += batch.drifted
    return found / repetitions


def delays(draw: Draw, streams: int, looks: int, seed: int, before: int = 0) -> Floats:
    """Queries until the alarm, after ``before`` without drift; inf where there was none."""
    rng = np.random.default_rng(seed)
    found = np.full(streams, np.inf)
    for k in range(streams):
        monitor = Monitor(reference_of(usual(rng, N_REFERENCE)), level=LEVEL, seed=k)
        if before:
            monitor.update(usual(rng, before))
        columns = draw(rng, looks)
        for start in range(0, looks, 100):
            state = monitor.update({name: v[start : start + 100] for name, v in columns.items()})
            if state.since is not None:
                found[k] = state.since - before
                break
    return found


def power_of_statistics(size: int = 50, repetitions: int = 60) -> str:
    """Detected shares with Kolmogorov–Smirnov, Cramér–von Mises and polynomials of ranks.

    Columns alone, without pairs and gaps; each statistic over its permutation mean and deviation,
    the highest of the columns counts.
    """
    methods = ("KS", "CvM", "P₁…P₂", "P₁…P₃", "P₁…P₄")
    rows = []
    for name, draw in {"none": usual, **CASES}.items():
        rng = np.random.default_rng(5)
        p = np.array([_p_values(rng, draw, size) for _ in range(repetitions)])
        rows.append([name, *(p <= LEVEL).mean(axis=0)])
    return layout(["case", *methods], rows)


def _p_values(rng: np.random.Generator, draw: Draw, size: int, B: int = 199) -> list[float]:
    """p by each statistic."""
    from numpy.polynomial.legendre import legvander

    before, now = usual(rng, N_REFERENCE), draw(rng, size)
    is_new = np.r_[np.zeros(N_REFERENCE), np.ones(size)]
    chosen = np.vstack([is_new, rng.permuted(np.tile(is_new, (B, 1)), axis=1)])
    found: dict[str, list[Floats]] = {}
    for name in before:
        x = np.nan_to_num(ranks(np.r_[before[name], now[name]]))
        order = np.argsort(x, kind="stable")
        last = np.r_[np.diff(x[order]) > 0, True]
        F = np.cumsum(chosen[:, order] / size, axis=1)[:, last]
        G = np.cumsum((1 - chosen[:, order]) / N_REFERENCE, axis=1)[:, last]
        found.setdefault("KS", []).append(np.abs(F - G).max(axis=1))
        mass = np.diff(np.r_[0, np.flatnonzero(last) + 1])
        found.setdefault("CvM", []).append((F - G) ** 2 @ mass)
        T = standardised(legvander(x, 4)[:, 1:], chosen)
        for k in (2, 3, 4):
            found.setdefault(f"P{k}", []).append(T[:, :k].max(axis=1))
    highest = []
    for name, parts in found.items():
        values = np.column_stack(parts)
        if name in ("KS", "CvM"):
            values = (values - values.mean(axis=0)) / values.std(axis=0)
        highest.append(values.max(axis=1))
    return [float((top >= top[0] * (1 - 1e-9)).mean()) for top in highest]


Change = Callable[[Queries, np.random.Generator], Queries]


def _moved(name: str, change: Callable[[Floats], Floats]) -> Change:
    return lambda q, rng: replace(q, prior={**q.prior, name: change(q.prior[name])})


def _among(chosen: Callable[[Queries], Any]) -> Change:
    """Only the queries that are chosen, some of them again: a bootstrap of units."""

    def draw(q: Queries, rng: np.random.Generator) -> Queries:
        rows = np.flatnonzero(chosen(q))
        return _again(q, rng.choice(rows, len(q)))

    return draw


def _again(q: Queries, rows: Any) -> Queries:
    """Some rows, each as a unit of its own."""
    names = [str(k) for k in range(len(rows))]
    return Queries(
        names,
        [q.samples[i] for i in rows],
        prior={k: np.asarray(v)[rows] for k, v in q.prior.items()},
        evidence={k: np.asarray(v)[rows] for k, v in q.evidence.items()},
        inputs={k: np.asarray(v)[rows] for k, v in q.inputs.items()},
    )


def _surprisal(q: Queries) -> Floats:
    return np.array([-sum(one.answer_logprobs) for one in q.samples])


OF_A_RUN: Mapping[str, Change] = {
    "s constant": _moved("s", lambda v: np.full_like(v, np.median(v))),
    "s flipped": _moved("s", lambda v: 2 * np.median(v) - v),
    "all queries easy": _among(lambda q: _surprisal(q) <= np.median(_surprisal(q))),
    "s of another query": lambda q, rng: replace(
        q, prior={**q.prior, "s": rng.permutation(q.prior["s"])}
    ),
    "severity 4 and 5 only": _among(lambda q: np.asarray(q.columns["severity"]) >= 4),
    "yes/no questions only": _among(lambda q: np.asarray(q.columns["answer_type"]) == "yes/no"),
    "clean pictures only": _among(lambda q: np.asarray(q.columns["severity"]) == 0),
    "another image encoder": lambda q, rng: replace(
        q, inputs={**q.inputs, "image": np.roll(q.inputs["image"], 1, axis=1)}
    ),
}


def of_a_run(run: Path, divisions: int, batches: int) -> str:
    """The same through ``Fuse``; a table."""
    logging.getLogger("fusevlm").setLevel(logging.CRITICAL)
    whole, _ = read_scored(run, read_run(run), states={"embeddings"})
    known = whole.split()[0]
    units = np.asarray(known.units)
    rng = np.random.default_rng(0)
    false, alarms = [], []
    found: dict[str, dict[int, list[bool]]] = {name: {} for name in OF_A_RUN}
    delay: dict[str, list[float]] = {name: [] for name in OF_A_RUN}
    for number in range(divisions):
        names = rng.permutation(np.unique(units))
        kept = np.isin(units, names[: 2 * len(names) // 3])
        fuse = Fuse(seed=number).fit(replace(known.take(kept), columns={}, views={}))
        rest = known.take(~kept)
        first = rest.take(first_of_units(rest.units or ()))
        options: dict[str, Any] = {"level": LEVEL, "permutations": 199}
        for k in range(batches):
            some = first.take(rng.choice(len(first), 50, replace=False))
            false.append(fuse.check_drift(some, seed=k, **options).drifted)
        alarms.append(fuse.monitor(level=LEVEL, seed=number).update(first).alarm)
        if number >= 10:
            continue
        for name, change in OF_A_RUN.items():
            moved = change(first, rng)
            for size in (10, 20, 50, 100, 200):
                some = moved.take(rng.choice(len(moved), min(size, len(moved)), replace=False))
                found[name].setdefault(size, []).append(fuse.check_drift(some, **options).drifted)
            state = fuse.monitor(level=LEVEL, seed=number).update(moved)
            delay[name].append(np.inf if state.since is None else state.since)
    rows = [["no drift", f"{np.mean(false):.3f} of {len(false)} batches of 50",
             f"{np.mean(alarms):.3f} of {len(alarms)} streams of {len(first)}"]]  # fmt: skip
    for name, shares in found.items():
        enough = next((n for n, hits in shares.items() if np.mean(hits) >= 0.8), None)
        rows.append([name, "more than 200" if enough is None else str(enough),
                     f"{np.median(delay[name]):g}"])  # fmt: skip
    return layout(["case", "check: queries for 80 %", "monitor: median delay"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--statistics", action="store_true", help="compare statistics instead")
    parser.add_argument("--repetitions", type=int, default=20, help="batches per case and size")
    parser.add_argument("--streams", type=int, default=100, help="without drift, 10,000 looks each")
    parser.add_argument("--run", type=Path, help="through Fuse, on the queries of this run")
    parser.add_argument("--divisions", type=int, default=50, help="of a run, 10 batches each")
    args = parser.parse_args()
    if args.run is not None:
        print(of_a_run(args.run, args.divisions, 10))
        return 0
    if args.statistics:
        print(power_of_statistics())
        return 0
    rows: list[list[Any]] = []
    for size in (20, 200):
        share = rejected(usual, size, 250, seed=size)
        rows.append([f"no drift, {size} queries", f"{share:.3f} of 250 batches", "–", "–"])
    silent = delays(usual, args.streams, 10_000, seed=1)
    alarms = float(np.isfinite(silent).mean())
    rows.append(["no drift, 10,000 looks", "–", f"{alarms:.3f} of {args.streams} streams", "–"])
    for name, draw in CASES.items():
        enough = next(
            (n for n in SIZES if rejected(draw, n, args.repetitions, seed=7) >= 0.8), None
        )
        early, late = (
            float(np.median(delays(draw, 11, 3000, seed=3, before=b))) for b in (0, 2000)
        )
        rows.append([name, "more than 500" if enough is None else str(enough),
                     f"{early:g}", f"{late:g}"])  # fmt: skip
    header = ["case", "check: queries for 80 %", "monitor: median delay", "after 2,000 others"]
    print(layout(header, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
