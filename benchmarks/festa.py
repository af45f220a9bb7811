"""Is the negated question worth its cost? Three VLMs on VSR, sampled by FESTA.

``python -m benchmarks.festa [--part dev|confirm] [--data DIR] [--draws 50] [--seed 0]``

Each statement was sampled under 56 equivalent changes and under 56 with the statement negated. At
the cost of ten samples, one of each of ten changes, three scores of the greedy answer:

    equivalent  ten equivalent: the share that disagrees with it
    both        five equivalent and five negated: mean of disagreement and failure to flip
    negated     five negated: the share that fails to flip (half the cost)

AUROC against ``wrong``, the mean over the models and over seeded draws of changes and samples; the
95 % interval of both − equivalent by resampling statements, which all models share. Development
uses the first 50 statements, the others confirm.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fusevlm.errors import ArtefactError, InputError
from fusevlm.metrics.discrimination import auroc_counts

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
FOLDER = "festa_vsr"
PARTS = {"dev": slice(0, 50), "confirm": slice(50, None)}
COST = 10
EQUIVALENT, BOTH, NEGATED = "equivalent", "both", "negated"
SCORES = (EQUIVALENT, BOTH, NEGATED)


@dataclass(frozen=True, eq=False)
class Model:
    """What one model said to N statements.

    wrong  [N] was the greedy answer wrong
    same   [N, V, S] does each sample under each equivalent change repeat the greedy answer
    kept   the same under each change with the statement negated: it failed to flip
    """

    wrong: Bools
    same: Bools
    kept: Bools

    def part(self, rows: slice) -> Model:
        return Model(self.wrong[rows], self.same[rows], self.kept[rows])


def load(folder: Path) -> dict[str, Model]:
    """All models, their statements in the order of the file and the same for all."""
    asked, negated = (_rows(folder / f"{name}.jsonl") for name in ("equivalent", "complementary"))
    found, ids = {}, None
    for name, rows in asked.items():
        own = [row["id"] for row in rows]
        others = {row["id"]: row for row in negated.get(name, ())}
        if (ids or own) != own or set(own) != set(others):
            raise ArtefactError(f"{folder}: the statements of {name} are not those of the others.")
        ids = own
        found[name] = Model(
            np.array([row["wrong"] for row in rows]),
            np.array([_repeats(row, row["answer"]) for row in rows]),
            np.array([_repeats(others[row["id"]], row["answer"]) for row in rows]),
        )
    return found


def _rows(path: Path) -> dict[str, list[dict[str, object]]]:
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ArtefactError(
            f"cannot read {path}: {error.strerror}. Name the folder with --data, or its parent "
            f"with the environment variable FUSEVLM_TEST_DATA."
        ) from error
    found: dict[str, list[dict[str, object]]] = {}
    for row in map(json.loads, lines):
        found.setdefault(row["model"], []).append(row)
    return found


def _repeats(row: Mapping[str, object], answer: object) -> list[list[bool]]:
    variants: Sequence[Mapping[str, Sequence[str]]] = row["variants"]  # type: ignore[assignment]
    return [[said == answer for said in variant["samples"]] for variant in variants]


def scores(model: Model, rng: np.random.Generator) -> dict[str, Floats]:
    """[N] of each score, from one draw."""
    disagrees = 1.0 - _drawn(model.same, COST, rng)
    fails = _drawn(model.kept, COST // 2, rng).mean(axis=1)
    half = disagrees[:, : COST // 2].mean(axis=1)
    return {
        EQUIVALENT: disagrees.mean(axis=1),
        BOTH: 0.5 * (half + fails),
        NEGATED: fails,
    }


def _drawn(table: Bools, k: int, rng: np.random.Generator) -> Floats:
    """[N, k] one random sample under each of k different random changes of every statement."""
    N, V, S = table.shape
    if k > V:
        raise InputError(f"{k} changes are wanted of a statement that has {V}.")
    change = rng.permuted(np.tile(np.arange(V), (N, 1)), axis=1)[:, :k]
    sample = rng.integers(S, size=(N, k))
    return table[np.arange(N)[:, None], change, sample].astype(np.float64)


@dataclass(frozen=True, eq=False)
class Result:
    """AUROC by model and score, and both − equivalent of the mean over models."""

    auroc: Mapping[str, Mapping[str, float]]
    difference: float
    low: float
    high: float


def measure(models: Mapping[str, Model], draws: int, seed: int, boot: int = 2000) -> Result:
    """Means over the draws. Every resample of statements is used for all draws and models."""
    rng = np.random.default_rng(seed)
    N = len(next(iter(models.values())).wrong)
    counts = np.vstack([np.ones(N, int), rng.multinomial(N, np.full(N, 1 / N), size=boot)])
    found = {name: {score: np.zeros(boot + 1) for score in SCORES} for name in models}
    for _ in range(draws):
        for name, model in models.items():
            for score, u in scores(model, rng).items():
                found[name][score] += auroc_counts(u, model.wrong, counts) / draws
    gaps = [rows[BOTH] - rows[EQUIVALENT] for rows in found.values()]
    gap = np.mean(gaps, axis=0)  # NaN where a model has no wrong, or no right, answer
    low, high = np.nanpercentile(gap[1:], [2.5, 97.5])
    values = {n: {k: float(v[0]) for k, v in rows.items()} for n, rows in found.items()}
    return Result(values, float(gap[0]), float(low), float(high))


def table(result: Result, models: Mapping[str, Model]) -> str:
    lines = [f"| model | wrong | {' | '.join(SCORES)} |", "|---" * (len(SCORES) + 2) + "|"]
    for name, row in result.auroc.items():
        cells = " | ".join(f"{row[score]:.3f}" for score in SCORES)
        lines.append(f"| {name} | {models[name].wrong.mean():.2f} | {cells} |")
    means = [np.mean([row[score] for row in result.auroc.values()]) for score in SCORES]
    lines.append(f"| **mean** | | {' | '.join(f'{m:.3f}' for m in means)} |")
    gap = f"{result.difference:+.3f} [{result.low:+.3f}, {result.high:+.3f}]"
    return "\n".join([*lines, "", f"{BOTH} − {EQUIVALENT}: {gap} (95 %, statements resampled)"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("FUSEVLM_TEST_DATA")
    parser.add_argument("--part", choices=list(PARTS), default="dev")
    parser.add_argument("--data", type=Path, default=default and Path(default) / FOLDER)
    parser.add_argument("--draws", type=int, default=50, help="of changes and samples")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    if args.data is None:
        parser.error("name the folder with --data, or set FUSEVLM_TEST_DATA")
    models = {name: model.part(PARTS[args.part]) for name, model in load(args.data).items()}
    size = len(next(iter(models.values())).wrong)
    print(f"{args.part}: {size} statements, {args.draws} draws\n")
    print(table(measure(models, args.draws, args.seed), models))
    return 0


if __name__ == "__main__":
    sys.exit(main())
