"""Response-level scores on real answer distributions: 26 VLMs on MMBench.

``python -m benchmarks.mmbench [--data DIR] [--n 20] [--seed 0] [--cache FILE]``

Each model's softmax over the six options of a question (E is "I don't know", F "None of the above")
is its answer distribution. n options are drawn from it; a response is the option's text, its only
token's log-probability that of the option, its embedding the sentence encoder's vector of the text.
The judged answer is the most likely option. Scores that calibrate do so on a fifth of the
questions, chosen with all their rotated copies; every figure is of the others.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fusevlm import Fuse, Samples, metrics, store
from fusevlm.errors import ArtefactError
from fusevlm.meanings import by_string
from fusevlm.scores import SCORES, compute_scores
from fusevlm.semantics.sentences import similarity
from fusevlm.types import Queries, Semantics

Floats = npt.NDArray[np.float64]
FOLDER = "vlm_uncertainty_bench_mmbench"
EXTRA_OPTIONS = ("I don't know", "None of the above")
COPIES = 1_000_000  # a rotated copy has the index of its question plus a multiple of this
FIT_SHARE = 0.2
FULL = "entropy (full)"  # of the distribution itself, not of the n draws
EVIDENCE, PRACTICAL = "FUSE evidence", "FUSE practical"
HEADLINE = (  # of the registry, by name; the others are in the ranking
    "g_nll", "frequency_answer", "semantic_entropy_rao", "semantic_entropy_discrete", "umpire",
    "eigenscore_last", "kernel_language_entropy", "degree_matrix",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class MMBench:
    """N questions with six option texts each, the right one, and each model's logits [N, 6]."""

    question: npt.NDArray[np.int64]  # [N] the same for a question and its rotated copies
    options: list[list[str]]
    gold: npt.NDArray[np.int64]
    logits: Mapping[str, Floats]

    def limited(self, limit: int | None) -> MMBench:
        """The first ``limit`` questions."""
        logits = {name: rows[:limit] for name, rows in self.logits.items()}
        return MMBench(
            self.question[:limit], self.options[:limit], self.gold[:limit], logits
        )  # fmt: skip


def load(folder: Path) -> MMBench:
    try:
        lines = (folder / "mmbench_questions.jsonl").read_text().splitlines()
        arrays = np.load(folder / "mmbench_logits_ABCDEF.npz")
    except OSError as error:
        raise ArtefactError(
            f"{folder} does not hold the MMBench logits: {error}. Name the folder with --data, or "
            f"its parent with the environment variable FUSEVLM_TEST_DATA."
        ) from error
    rows = [json.loads(line) for line in lines]
    # a missing option was shown to the models as pandas writes it
    options = [[row[o] or "nan" for o in "ABCD"] + list(EXTRA_OPTIONS) for row in rows]
    logits = {name: arrays[name].astype(np.float64) for name in arrays if name != "gold"}
    question = np.array([row["index"] % COPIES for row in rows])
    return MMBench(question, options, arrays["gold"].astype(np.int64), logits)


def log_softmax(logits: Floats) -> Floats:
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


def entropy(log_p: Floats) -> Floats:
    return -(np.exp(log_p) * log_p).sum(axis=1)


def draw(log_p: Floats, n: int, seed: int) -> npt.NDArray[np.int64]:
    """n options per question [N, n]; all models share the uniform numbers, so they compare."""
    u = np.random.default_rng(seed).random((len(log_p), n))
    steps = np.exp(log_p).cumsum(axis=1)[:, None, :-1]
    return (u[:, :, None] >= steps).sum(axis=2)


def vectors_of(texts: Sequence[str], cache: Path | None) -> dict[str, Floats]:
    """Unit vectors of the texts by the packaged sentence encoder, kept in ``cache`` if named."""
    known: dict[str, Floats] = {}
    if cache is not None and cache.exists():
        kept = np.load(cache)
        known = dict(zip(kept["texts"].tolist(), kept["vectors"].astype(np.float64), strict=True))
    new = sorted(set(texts) - known.keys(), key=lambda text: (len(text), text))
    if new:
        from fusevlm.models.towers import SentenceEncoder

        found = SentenceEncoder.load().texts(new).vectors
        known |= dict(zip(new, found.astype(np.float64), strict=True))
        if cache is not None:
            content = io.BytesIO()
            rows = np.stack(list(known.values())).astype(np.float32)
            np.savez(content, texts=np.array(list(known)), vectors=rows)
            store.write_atomically(cache, content.getvalue())
    return known


def calibration_rows(question: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """Rows of a fifth of the questions, each with all its copies."""
    names = np.unique(question)
    chosen = np.random.default_rng([seed, 1]).permutation(names)[: round(FIT_SHARE * len(names))]
    return np.flatnonzero(np.isin(question, chosen))


def said(
    bench: MMBench, log_p: Floats, drawn: npt.NDArray[np.int64], vectors: Mapping[str, Floats]
) -> list[Samples]:
    """What a model says to each question: the drawn options, and its most likely one."""
    found = []
    for options, row, kept in zip(bench.options, log_p, drawn, strict=True):
        best = int(row.argmax())
        found.append(
            Samples(
                texts=[options[k] for k in kept],
                token_logprobs=[[row[k]] for k in kept],
                embeddings=np.stack([vectors[options[k]] for k in kept]),
                answer=options[best],
                answer_logprobs=[row[best]],
            )
        )
    return found


def measure(
    bench: MMBench, model: str, n: int, seed: int, vectors: Mapping[str, Floats]
) -> tuple[dict[str, float], dict[str, str]]:
    """Accuracy and the AUROC of every score of one model; and why some scores are missing."""
    log_p = log_softmax(bench.logits[model])
    wrong = log_p.argmax(axis=1) != bench.gold
    fit = calibration_rows(bench.question, seed)
    rest = np.setdiff1d(np.arange(len(wrong)), fit)
    drawn = draw(log_p, n, seed)
    samples = said(bench, log_p, drawn, vectors)
    semantics = [
        Semantics(
            by_string(one.texts),
            similarity([*one.texts, one.answer], np.vstack([one.embeddings, vectors[one.answer]])),
        )
        for one in samples
    ]
    queries = Queries(
        [str(i) for i in range(len(samples))],
        samples,
        wrong,
        fit=fit,
        semantics=semantics,
        sample_wrong=list(drawn != bench.gold[:, None]),
    )
    columns, missing = compute_scores(queries)
    columns = {FULL: entropy(log_p)} | {SCORES[name].title: u for name, u in columns.items()}
    known = [samples[i] for i in fit]
    paper = Fuse("paper", z=2.0).fit(known)
    columns[EVIDENCE] = paper.score(samples).evidence
    columns[PRACTICAL] = Fuse("practical").fit(known, wrong[fit]).score(samples).u
    aurocs = {name: metrics.auroc(u[rest], wrong[rest]) for name, u in columns.items()}
    return {"accuracy": 1.0 - float(wrong[rest].mean()), **aurocs}, missing


def table(rows: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> str:
    lines = [f"| model | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for model, row in rows.items():
        lines.append(f"| {model} | " + " | ".join(f"{row[name]:.4f}" for name in names) + " |")
    means = (np.mean([row[name] for row in rows.values()]) for name in names)
    return "\n".join([*lines, "| **mean** | " + " | ".join(f"{m:.4f}" for m in means) + " |"])


def ranking(rows: Mapping[str, Mapping[str, float]]) -> str:
    """All scores by their mean AUROC over models."""
    names = [name for name in next(iter(rows.values())) if name != "accuracy"]
    values = {name: np.array([row[name] for row in rows.values()]) for name in names}
    lines = ["| score | mean AUROC | lowest | highest |", "|---|---|---|---|"]
    for name in sorted(names, key=lambda name: -values[name].mean()):
        u = values[name]
        lines.append(f"| {name} | {u.mean():.4f} | {u.min():.4f} | {u.max():.4f} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    default = os.environ.get("FUSEVLM_TEST_DATA")
    parser.add_argument("--data", type=Path, default=default and Path(default) / FOLDER)
    parser.add_argument("--n", type=int, default=20, help="samples per question")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="keep the option texts' vectors in this file")
    parser.add_argument("--limit", type=int, help="only the first questions")
    parser.add_argument("--models", nargs="+", help="only these")
    args = parser.parse_args(argv)
    if args.data is None:
        parser.error("name the folder of the logits with --data, or set FUSEVLM_TEST_DATA")
    bench = load(args.data).limited(args.limit)
    unknown = set(args.models or ()) - bench.logits.keys()
    if unknown:
        parser.error(
            f"no logits of {', '.join(sorted(unknown))}; models: {', '.join(bench.logits)}"
        )
    vectors = vectors_of([text for row in bench.options for text in row], args.cache)
    rows: dict[str, dict[str, float]] = {}
    missing: dict[str, str] = {}
    for model in args.models or bench.logits:
        rows[model], without = measure(bench, model, args.n, args.seed, vectors)
        missing |= without
        print(f"{model} done", file=sys.stderr, flush=True)
    shown = ["accuracy", FULL, *(SCORES[name].title for name in HEADLINE), EVIDENCE, PRACTICAL]
    print(table(rows, shown), ranking(rows), sep="\n\n")
    if missing:
        print("\nNot computed:", *(f"{name} ({why})" for name, why in missing.items()), sep="\n- ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
