"""All that methods read of a run's queries, small enough to keep: ``python -m benchmarks.columns``.

``python -m benchmarks.columns RUN --out benchmarks/seeds/seed-1.npz``

One row per query: unit, split, label, what is known of the picture, every baseline's score, the
prior statistics, the evidence, and the leading components of the inputs (fitted on calibration
queries, no labels). The log-det evidence is that of one label-free fit on all calibration queries.
"""

from __future__ import annotations

import argparse
import io
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusevlm import Fuse, Samples, Scores, store
from fusevlm.fuse.competence import COMPONENTS
from fusevlm.pipeline.score import read_scored
from fusevlm.scores import SCORES
from fusevlm.scores.agreement import complement_column, rephrasing_column
from fusevlm.store.runs import read_run
from fusevlm.types import Queries

Floats = np.ndarray[Any, Any]
KEPT = ("severity", "corruption", "kind", "answer_type", "held_out_pair", "unseen_phrasing")
LOG_DET, MARGIN, COMPLEMENT, REPHRASING = "log_det", "margin", "complement", "rephrasing"
FEWER = (4, 8, 16)  # samples, besides all of them


@dataclass(frozen=True, eq=False)
class Columns:
    """A run's queries as plain columns."""

    unit: Floats  # names
    fit: Floats  # calibration query
    wrong: Floats
    nll: Floats  # of the judged answer
    facts: Mapping[str, Floats]
    scores: Mapping[str, Floats]
    prior: Mapping[str, Floats]
    evidence: Mapping[str, Floats]
    inputs: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.wrong)

    def take(self, rows: Floats) -> Columns:
        """Some rows."""
        kinds = ("facts", "scores", "prior", "evidence", "inputs")
        changes: dict[str, Any] = {
            kind: {name: values[rows] for name, values in getattr(self, kind).items()}
            for kind in kinds
        }
        changes |= {name: getattr(self, name)[rows] for name in ("unit", "fit", "wrong", "nll")}
        return replace(self, **changes)

    def arguments(self) -> dict[str, Any]:
        """What :meth:`Fuse.score` takes; :meth:`Fuse.fit` takes ``wrong`` and ``units`` too."""
        samples = [Samples(["-"], answer="-", answer_logprobs=[-value]) for value in self.nll]
        return {"samples": samples, "s": self.prior, "inputs": self.inputs, "extra": self.evidence}


def extract(queries: Queries) -> Columns:
    """The columns of a scored run."""
    fit = np.zeros(len(queries), dtype=np.bool_)
    fit[queries.fit] = True
    known = queries.take(queries.fit)
    found = _label_free(queries, known)
    evidence = {LOG_DET: (found.evidence - found.intercept) / found.slope}
    for n in FEWER:
        found = _label_free(queries.first(n), known.first(n))
        evidence[f"{LOG_DET}_{n}"] = (found.evidence - found.intercept) / found.slope
    margins = [one.answer_margins for one in queries.samples]
    if all(row is not None for row in margins):
        evidence[MARGIN] = -np.array([float(np.min(row)) for row in margins])
    for name, column in ((COMPLEMENT, complement_column), (REPHRASING, rephrasing_column)):
        values = column(queries)
        if not np.isnan(values).all():
            evidence[name] = values
    return Columns(
        unit=np.array(queries.units),
        fit=fit,
        wrong=np.asarray(queries.wrong),
        nll=-np.array([float(np.sum(one.answer_logprobs)) for one in queries.samples]),
        facts={name: np.array(queries.columns[name]) for name in KEPT if name in queries.columns}
        | _tokens(queries),
        scores={name: queries.columns[name] for name in SCORES if name in queries.columns},
        prior=dict(queries.prior),
        evidence=evidence,
        inputs={name: _components(np.asarray(rows), fit) for name, rows in queries.inputs.items()},
    )


def _label_free(queries: Queries, known: Queries) -> Scores:
    """The log-det evidence of all queries, whitened by the calibration queries."""
    bare = {"wrong": None, "evidence": {}, "inputs": {}, "prior": {}, "views": {}}
    fuse = Fuse("paper", intercept="a0", alpha="remainder", normalize="before")
    fuse.fit(replace(known, **bare))
    return fuse.score(replace(queries, **bare, fit=None))


def _tokens(queries: Queries) -> dict[str, Floats]:
    """Tokens of the judged answer, and of its first n samples together."""
    lengths = [[len(row) for row in one.token_logprobs or ()] for one in queries.samples]
    found = {"tokens_0": np.array([len(one.answer_logprobs) for one in queries.samples])}
    for n in (*FEWER, len(lengths[0])):
        found[f"tokens_{n}"] = np.array([sum(row[:n]) for row in lengths])
    return found


def _components(rows: Floats, fit: Floats) -> Floats:
    mean = rows[fit].mean(axis=0)
    axes = np.linalg.svd(rows[fit] - mean, full_matrices=False)[2][:COMPONENTS]
    return np.asarray((rows - mean) @ axes.T)


def save(columns: Columns, path: Path) -> None:
    """Write the columns; floats in single, inputs in half precision."""
    flat: dict[str, Any] = {n: getattr(columns, n) for n in ("unit", "fit", "wrong", "nll")}
    for kind in ("facts", "scores", "prior", "evidence", "inputs"):
        for name, values in getattr(columns, kind).items():
            small = np.float16 if kind == "inputs" else np.float32
            plain = values.astype(small) if values.dtype.kind == "f" else values
            flat[f"{kind}.{name}"] = plain
    content = io.BytesIO()
    np.savez_compressed(content, **flat)
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_atomically(path, content.getvalue())


def load(path: Path) -> Columns:
    """Columns that :func:`save` wrote."""
    flat = np.load(path)
    own: dict[str, Any] = {kind: {} for kind in ("facts", "scores", "prior", "evidence", "inputs")}
    for name in flat.files:
        kind, _, rest = name.partition(".")
        values = flat[name]
        values = values.astype(np.float64) if values.dtype.kind == "f" else values
        if rest:
            own[kind][rest] = values
        else:
            own[name] = values
    return Columns(**own)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    logging.getLogger("fusevlm").setLevel(logging.ERROR)
    states = {"embeddings", "rephrasings", "complement"}
    queries, _ = read_scored(args.run, read_run(args.run), states=states)
    columns = extract(queries)
    save(columns, args.out)
    print(f"{args.out}: {len(columns)} queries, {len(columns.scores)} scores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
