"""Where the sequence of tests should begin: ``python -m benchmarks.starts FILE … [--data DIR]``.

Certified coverage on other queries (δ = .1), mean over divisions, for starts of the sequence:

    20 %            of the tuning scores
    errors seen     where the tuning labels, one error added, promise the first test most power
    present         ``thresholds.first_coverage``: a rising rate, the middle of what is nearly best
    no sequence     the largest threshold whose own test succeeds: more than can be promised

of FUSE and of all label-free baselines on seeds' columns (benchmarks.columns), and of FUSE on the
answers of others (benchmarks.blackbox: TriviaQA, MMBench) where their folder is named.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import blackbox, mmbench
from benchmarks.columns import load
from benchmarks.confirm import FURTHER, STATISTICS, chosen, divided
from fusevlm import Fuse
from fusevlm.fuse.estimator import divide
from fusevlm.fuse.kept import below_cap
from fusevlm.fuse.thresholds import candidate_grid, learn_then_test, least_answers
from fusevlm.maths import bounds
from fusevlm.render.text import layout

Floats = np.ndarray[Any, Any]
DELTA = 0.1


@dataclass(frozen=True, eq=False)
class Division:
    """Scores and labels of queries that tune, that test thresholds, and of others."""

    tuning: Floats  # ascending
    tuning_wrong: Floats
    kept: Floats
    kept_wrong: Floats
    new: Floats
    limit: float = np.inf  # above it nothing is answered


def at_twenty(one: Division, risk: float) -> Floats:
    return candidate_grid(one.tuning, len(one.kept), risk, DELTA, limit=one.limit)


def errors_seen(one: Division, risk: float) -> Floats:
    size = len(one.kept)
    coverage = np.linspace(min(1.5 * least_answers(risk, DELTA) / size, 1.0), 1.0, 41)
    known = np.maximum(1, np.round(coverage * len(one.tuning)).astype(int))
    answered = np.maximum(1, np.round(coverage * size).astype(int))
    rate = np.minimum(1.0, (np.cumsum(one.tuning_wrong)[known - 1] + 1.0) / (known + 1.0))
    power = bounds.power_of_test(answered, rate, risk, DELTA)
    start = coverage[int(np.argmax(power >= power.max() - 1e-3))]
    return np.unique(np.quantile(one.tuning, np.linspace(start, 1.0, 161)))


def present(one: Division, risk: float) -> Floats:
    return candidate_grid(
        one.tuning, len(one.kept), risk, DELTA, wrong=one.tuning_wrong, limit=one.limit
    )


STARTS: dict[str, Callable[[Division, float], Floats]] = {
    "20 %": at_twenty, "errors seen": errors_seen, "present": present,
}  # fmt: skip


def sequence(one: Division, grid: Floats, risk: float) -> float:
    grid = grid[grid <= one.limit]
    if not len(grid):
        return 0.0
    theta = learn_then_test(one.kept, one.kept_wrong, risk=risk, delta=DELTA, grid=grid)
    return float(theta.answers(one.new).mean())


def no_sequence(one: Division, risk: float) -> float:
    order = np.argsort(one.kept)
    grid = np.quantile(one.tuning, np.linspace(0.02, 1.0, 161))
    grid = grid[grid <= one.limit]
    answered = np.searchsorted(one.kept[order], grid, side="right")
    errors = np.concatenate([[0], np.cumsum(one.kept_wrong[order])])[answered]
    passed = grid[bounds.binomial_p_value(errors, answered, risk) <= DELTA]
    return float(np.mean(one.new <= passed.max())) if len(passed) else 0.0


def of_fit(fuse: Fuse, new: Floats) -> Division:
    model, kept = fuse.model, fuse._threshold_data
    assert model.tuned is not None
    assert kept is not None
    u, wrong = model.tuned.T
    limit = float(np.max(below_cap(model, fuse.options, u), initial=-np.inf))
    return Division(u, wrong, kept.u, kept.wrong, new, limit)


def of_columns(path: Path, divisions: int) -> Iterator[tuple[str, Division]]:
    columns = load(path)
    from fusevlm.scores import label_free

    for seed in range(divisions):
        known, rest = divided(columns, seed)
        own, other = (chosen(part, STATISTICS, FURTHER) for part in (known, rest))
        fuse = Fuse().fit(**own.arguments(), wrong=own.wrong, units=own.unit)
        yield f"{path.stem}: FUSE", of_fit(fuse, fuse.score(**other.arguments()).u)
        tune, held = divide([str(unit) for unit in known.unit], 0.5, 0)
        for name in label_free(list(columns.scores)):
            u = known.scores[name]
            order = tune[np.argsort(u[tune], kind="stable")]
            division = Division(
                u[order], known.wrong[order].astype(float), u[held], known.wrong[held],
                rest.scores[name],
            )  # fmt: skip
            yield f"{path.stem}: baselines", division


def of_tasks(data: Path, divisions: int) -> Iterator[tuple[str, Division]]:
    tasks = [*blackbox.triviaqa(data), *blackbox.mmbench_tasks(data, None)[::3]]
    for task in tasks:
        trivia = task.name == "triviaqa"
        given = blackbox.tables(task, _vectors if trivia else None)
        table = given["FUSE, texts" if trivia else "FUSE, log-probs"]
        for seed in range(divisions if trivia else max(1, divisions // 25)):
            fit, rest = blackbox.divided(task, seed)
            fuse = Fuse().fit(table.take(fit))
            yield task.name.split()[0], of_fit(fuse, fuse.score(table.take(rest)).u)


def _vectors(texts: Sequence[str]) -> Floats:
    known = mmbench.vectors_of(list(dict.fromkeys(texts)), None)
    return np.stack([known[text] for text in texts])


RISKS = {"triviaqa": (0.2, 0.3), "mmbench": (0.05, 0.1)}


def measure(found: Iterator[tuple[str, Division]]) -> list[tuple[str, ...]]:
    table: dict[tuple[str, float], list[list[float]]] = {}
    for name, one in found:
        for risk in RISKS.get(name, (0.03, 0.05, 0.1)):
            row = [sequence(one, start(one, risk), risk) for start in STARTS.values()]
            table.setdefault((name, risk), []).append([*row, no_sequence(one, risk)])
    rows = []
    for (name, risk), values in table.items():
        mean, none = np.mean(values, axis=0), np.mean(np.array(values) == 0, axis=0)
        cells = (f"{m:.3f} ({n:.2f})" for m, n in zip(mean, none, strict=True))
        rows.append((name, f"{risk:g}", *cells))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*")
    default = os.environ.get("FUSEVLM_TEST_DATA")
    parser.add_argument("--data", type=Path, default=default and Path(default))
    parser.add_argument("--divisions", type=int, default=100)
    args = parser.parse_args(arguments)
    logging.getLogger("fusevlm").setLevel(logging.CRITICAL)
    rows: list[tuple[str, ...]] = []
    for path in args.files:
        rows += measure(of_columns(path, args.divisions))
    if args.data is not None:
        rows += measure(of_tasks(args.data, args.divisions))
    print(layout(("in brackets: nothing", "risk", *STARTS, "no sequence"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
