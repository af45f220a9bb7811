"""FUSE against every baseline on committed columns: ``python -m benchmarks.confirm FILE …``.

Each file is a seed's queries (see ``benchmarks.columns``): calibration queries, on which methods
learn, and others, on which they are judged. Printed, over all seeds together and each by itself:

- AUROC of ``practical`` minus that of every baseline and of *stacked*. Images are drawn anew for
  all seeds at once, calibration images too, and ``practical`` and *stacked* are fitted anew on
  them; p-values are of a normal approximation with that spread, and Holm's.
- Certified coverage at 5 and 10 % risk, mean over divisions of all images in halves. A label-free
  baseline spends all labels on its threshold, on the same sequence of coverages.
- Expected calibration error above its floor (labels redrawn from P), and the Brier score.
- Within each severity, against the better of prior and evidence alone.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.columns import Columns, load
from fusevlm import Fuse, metrics
from fusevlm.fuse import probability, thresholds
from fusevlm.fuse.estimator import divide
from fusevlm.maths.logistic import choose_ridge, fit_linear, unit_folds
from fusevlm.pipeline.measure import holm
from fusevlm.render.text import layout
from fusevlm.scores import label_free

Floats = np.ndarray[Any, Any]
RISKS, DELTA = (0.05, 0.1), 0.1
PRACTICAL, STACKED, PRIOR, EVIDENCE = "practical", "stacked", "prior alone", "evidence alone"
OLD = "practical before"
STATISTICS = ("s", "s_image", "s_text", "disagreement", "reconstruction", "latent_distance")
FURTHER = ("log_det",)  # beside the surprisal
# what this issue added, taken away again; or more of it
ABLATIONS: dict[str, dict[str, Any]] = {
    "one s": {"keep": ("s",)},
    "no competence": {"competence": False},
    "√ surprisal alone": {"shapes": "sqrt"},
    "surprisal alone as evidence": {"evidence": ()},
    "+ margin": {"evidence": (*FURTHER, "margin")},
    "+ complement": {"evidence": (*FURTHER, "complement")},
    "+ rephrasing": {"evidence": (*FURTHER, "rephrasing")},
    "+ Mahalanobis": {"keep": (*STATISTICS, "mahalanobis_image", "mahalanobis_text")},
    "+ Laplace": {"keep": (*STATISTICS, "laplace_image", "laplace_text")},
    "sources independent": {"sources": "independent"},
    OLD: {"keep": ("s",), "competence": False, "shapes": "sqrt", "probability": "model"},
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Judged:
    """A method on test queries."""

    u: Floats
    p: Floats
    theta: dict[float, float]


def chosen(columns: Columns, keep: Sequence[str], evidence: Sequence[str]) -> Columns:
    """The columns with some prior statistics and evidence only."""
    prior = {name: columns.prior[name] for name in keep}
    return replace(columns, prior=prior, evidence={n: columns.evidence[n] for n in evidence})


def practical(
    known: Columns,
    rest: Columns,
    *,
    keep: Sequence[str] = STATISTICS,
    evidence: Sequence[str] = FURTHER,
    **options: Any,
) -> Judged:
    """``Fuse`` on columns."""
    known, rest = chosen(known, keep, evidence), chosen(rest, keep, evidence)
    fuse = Fuse("practical", **options)
    fuse.fit(**known.arguments(), wrong=known.wrong, units=known.unit)
    scores = fuse.score(**rest.arguments())
    theta = {risk: fuse.threshold(risk=risk, delta=DELTA).threshold for risk in RISKS}
    return Judged(scores.u, fuse.predict_proba(scores), theta)


def one_source(known: Columns, rest: Columns, source: str) -> Floats:
    """Prior or evidence alone."""
    fuse = Fuse("practical")
    known, rest = (chosen(columns, STATISTICS, FURTHER) for columns in (known, rest))
    if source == EVIDENCE:
        known, rest = (replace(c, prior={}, inputs={}) for c in (known, rest))
        fuse.fit(**known.arguments(), wrong=known.wrong, units=known.unit)
        return np.asarray(fuse.score(**rest.arguments()).u)
    fuse.fit(**known.arguments(), wrong=known.wrong, units=known.unit)
    return np.asarray(fuse.score(**rest.arguments()).m0)


def baseline(known: Columns, rest: Columns, name: str, *, halved: bool = False) -> Judged:
    """A label-free score: the same map to P(wrong), all labels for map and threshold.

    ``halved``: half of the labels choose the candidates, as they do for ``Fuse``.
    """
    u, v = known.scores[name], rest.scores[name]
    to_p = probability.fit_score_map("auto", u, known.wrong)
    assert to_p is not None
    tune, held = divide([str(unit) for unit in known.unit], 0.5, 0)
    theta = {}
    for risk in RISKS:
        rows, grid = slice(None), None
        if halved:
            rows, wrong = held, known.wrong[tune]
            grid = thresholds.candidate_grid(u[tune], len(held), risk, DELTA, wrong=wrong)
        theta[risk] = thresholds.learn_then_test(
            u[rows], known.wrong[rows], risk=risk, delta=DELTA, grid=grid
        ).threshold
    return Judged(v, to_p(v), theta)


def stacked(known: Columns, rest: Columns) -> Floats:
    """Logistic regression on all response-side columns with all labels."""
    X, Y = (np.column_stack(list(columns.scores.values())) for columns in (known, rest))
    wrong = known.wrong.astype(np.float64)
    ridge = choose_ridge(X, wrong, unit_folds(list(known.unit), 5, 0))
    return np.asarray(fit_linear(X, wrong, ridge)(Y))


def auroc(u: Floats, wrong: Floats) -> float:
    return float(metrics.auroc(u, wrong))


def differences(
    seeds: Sequence[Columns], names: Sequence[str], n_boot: int, progress: Callable[[int], None]
) -> dict[str, Floats]:
    """[n_boot + 1, seeds] of AUROC differences; the first row is of the queries as they are.

    Calibration queries keep their unit's own name when drawn twice: copies must not be told apart
    by folds.
    """
    found: dict[str, list[list[float]]] = {name: [] for name in (*names, STACKED)}
    rng = np.random.default_rng(0)
    for b in range(n_boot + 1):
        progress(b)
        images = {part: np.unique(seeds[0].unit[seeds[0].fit == part]) for part in (True, False)}
        if b:
            images = {part: rng.choice(own, len(own)) for part, own in images.items()}
        row: dict[str, list[float]] = {name: [] for name in found}
        for columns in seeds:
            known, rest = columns.take(columns.fit), columns.take(~columns.fit)
            if b:
                known = _repeat(known, images[True])
                rest = _repeat(rest, images[False])
            best = auroc(practical(known, rest).u, rest.wrong)
            for name in names:
                row[name].append(best - auroc(rest.scores[name], rest.wrong))
            row[STACKED].append(best - auroc(stacked(known, rest), rest.wrong))
        for name, values in row.items():
            found[name].append(values)
    return {name: np.array(values) for name, values in found.items()}


def _repeat(columns: Columns, images: Floats) -> Columns:
    rows = [np.flatnonzero(columns.unit == name) for name in images]
    return columns.take(np.concatenate(rows))


def interval(values: Floats) -> tuple[float, float]:
    low, high = np.nanquantile(values, [0.025, 0.975])
    return float(low), float(high)


def report_differences(seeds: Sequence[Columns], labels: Sequence[str], n_boot: int) -> list[str]:
    """The first line of Must show."""
    names = list(seeds[0].scores)
    found = differences(seeds, names, n_boot, _progress("bootstrap", n_boot + 1))
    from scipy.stats import norm

    p = {
        name: float(norm.sf(v[0].mean() / max(v[1:].mean(axis=1).std(), 1e-9)))
        for name, v in found.items()
    }
    adjusted = holm(p)
    free = set(label_free(names))
    rows = []
    for name in sorted(found, key=lambda n: found[n][0].mean()):
        v = found[name]
        each = [
            f"{v[0, k]:+.3f} [{interval(v[1:, k])[0]:+.3f}, {interval(v[1:, k])[1]:+.3f}]"
            for k in range(v.shape[1])
        ]
        low, high = interval(v[1:].mean(axis=1))
        kind = "label-free" if name in free else "labels"
        rows.append(
            (name, kind, f"{v[0].mean():+.3f} [{low:+.3f}, {high:+.3f}]",
             f"{adjusted[name]:.2g}", *each)
        )  # fmt: skip
    best = min(found[n][0].mean() for n in free)
    return [
        layout(["practical minus", "", "pooled", "Holm p", *labels], rows),
        f"above the best label-free baseline by {best:+.3f}",
    ]


def halves(unit: Floats, seed: int) -> tuple[Floats, Floats]:
    """Rows of all images in two halves, whatever they were before."""
    names = np.unique(unit)
    first = np.random.default_rng(seed).permutation(names)[: len(names) // 2]
    known = np.isin(unit, first)
    return np.flatnonzero(known), np.flatnonzero(~known)


def divided(columns: Columns, seed: int) -> tuple[Columns, Columns]:
    """The columns in two halves."""
    known, rest = halves(columns.unit, seed)
    return columns.take(known), columns.take(rest)


def report_divisions(
    seeds: Sequence[Columns], labels: Sequence[str], n_divisions: int, n_probability: int
) -> list[str]:
    """Certified coverage, and how true P(wrong) is."""
    names = list(label_free(list(seeds[0].scores)))
    methods = [PRACTICAL, OLD, *names]
    coverage = np.zeros((len(methods), len(seeds), len(RISKS), n_divisions))
    nothing, truth = np.zeros_like(coverage), np.zeros((len(methods), len(seeds), n_divisions, 3))
    progress = _progress("divisions", n_divisions * len(seeds))
    for k, columns in enumerate(seeds):
        for d in range(n_divisions):
            progress(k * n_divisions + d)
            known, rest = divided(columns, d)
            for m, name in enumerate(methods):
                if name in names:
                    found = baseline(known, rest, name)
                else:
                    found = practical(known, rest, **(ABLATIONS[OLD] if name == OLD else {}))
                for r, risk in enumerate(RISKS):
                    coverage[m, k, r, d] = np.mean(found.u <= found.theta[risk])
                    nothing[m, k, r, d] = np.isinf(found.theta[risk])
                if d < n_probability:
                    truth[m, k, d] = _truth(found.p, rest.wrong, d)
    rows = []
    for m, name in enumerate(methods):
        cover = coverage[m].mean(axis=(0, 2))
        ece, floor, brier = truth[m, :, :n_probability].mean(axis=(0, 1))
        each = [
            f"{coverage[m, k, 0].mean():.2f} ({nothing[m, k, 0].mean():.0%})"
            for k in range(len(seeds))
        ]
        rows.append((name, *(f"{c:.3f}" for c in cover), *each, f"{ece:.3f}", f"{ece - floor:+.3f}",
                     f"{brier:.4f}"))  # fmt: skip
    head = ["", "at 5 %", "at 10 %", *(f"{label}: at 5 % (nothing)" for label in labels)]
    best = coverage[2:].mean(axis=(1, 3)).max(axis=0)
    own = coverage[0].mean(axis=(0, 2))
    rows = [*rows[:2], *sorted(rows[2:], key=lambda row: row[1], reverse=True)]
    return [
        layout([*head, "ECE", "above floor", "Brier"], rows),
        f"certified coverage above the best label-free baseline: {own[0] - best[0]:+.3f} at 5 %, "
        f"{own[1] - best[1]:+.3f} at 10 %",
    ]


def _truth(p: Floats, wrong: Floats, seed: int) -> tuple[float, float, float]:
    rng = np.random.default_rng([seed, 5])
    floor = np.mean([metrics.ece(p, rng.random(len(p)) < p) for _ in range(20)])
    return float(metrics.ece(p, wrong)), float(floor), float(np.mean((p - wrong) ** 2))


def report_severities(seeds: Sequence[Columns], n_boot: int) -> list[str]:
    """Within each severity, minus the better of the two sources."""
    rows = []
    rng = np.random.default_rng(1)
    judged = []
    for columns in seeds:
        known, rest = columns.take(columns.fit), columns.take(~columns.fit)
        u = {PRACTICAL: practical(known, rest).u}
        u |= {source: one_source(known, rest, source) for source in (PRIOR, EVIDENCE)}
        judged.append((rest, u))
    images = np.unique(judged[0][0].unit)
    draws = [images, *(rng.choice(images, len(images)) for _ in range(n_boot))]
    for level in np.unique(judged[0][0].facts["severity"]):
        table = np.array([[_within(rest, u, level, own) for rest, u in judged] for own in draws])
        mean = np.nanmean(table, axis=1)  # [draws, methods]
        better = 1 + int(np.argmax(mean[0, 1:]))
        low, high = interval((mean[:, 0] - mean[:, better])[1:])
        rows.append((f"severity {level}", *(f"{x:.3f}" for x in mean[0]),
                     f"{mean[0, 0] - mean[0, better]:+.3f} [{low:+.3f}, {high:+.3f}]"))  # fmt: skip
    return [layout(["AUROC", PRACTICAL, PRIOR, EVIDENCE, "minus the better"], rows)]


def _within(rest: Columns, u: dict[str, Floats], level: Any, images: Floats) -> list[float]:
    rows = np.concatenate([np.flatnonzero(rest.unit == name) for name in images])
    rows = rows[rest.facts["severity"][rows] == level]
    wrong = rest.wrong[rows]
    if wrong.all() or not wrong.any():
        return [np.nan] * len(u)
    return [auroc(values[rows], wrong) for values in u.values()]


def report_ablations(seeds: Sequence[Columns], labels: Sequence[str]) -> list[str]:
    """What each part contributes."""
    rows = []
    for name, options in {PRACTICAL: {}, **ABLATIONS}.items():
        values = []
        for columns in seeds:
            known, rest = columns.take(columns.fit), columns.take(~columns.fit)
            values.append(auroc(practical(known, rest, **options).u, rest.wrong))
        rows.append((name, f"{np.mean(values):.3f}", *(f"{v:.3f}" for v in values)))
    return [layout(["AUROC", "mean", *labels], rows)]


def _progress(what: str, total: int) -> Callable[[int], None]:
    def show(done: int) -> None:
        if done % max(1, total // 10) == 0:
            print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)

    return show


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--boot", type=int, default=200, help="draws of images (200)")
    parser.add_argument("--divisions", type=int, default=100, help="for certified coverage (100)")
    parser.add_argument("--probability", type=int, default=20, help="of them, for ECE (20)")
    parser.add_argument("--parts", nargs="+", default=["ablations", "severities", "auroc", "risk"])
    given = parser.parse_args(arguments)
    logging.getLogger("fusevlm").setLevel(logging.ERROR)
    seeds, labels = [load(path) for path in given.files], [path.stem for path in given.files]
    for label, columns in zip(labels, seeds, strict=True):
        n = int(columns.fit.sum())
        print(
            f"{label}: {n} calibration and {len(columns) - n} other queries, "
            f"{columns.wrong[~columns.fit].mean():.3f} wrong, {len(columns.scores)} scores; prior "
            f"{', '.join(columns.prior)}; evidence {', '.join(columns.evidence)}; inputs "
            f"{', '.join(columns.inputs)}"
        )
    blocks = {
        "ablations": lambda: report_ablations(seeds, labels),
        "severities": lambda: report_severities(seeds, given.boot),
        "auroc": lambda: report_differences(seeds, labels, given.boot),
        "risk": lambda: report_divisions(seeds, labels, given.divisions, given.probability),
    }
    for part in given.parts:
        print("", *blocks[part](), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
