"""Does FUSE rank the answers of 26 real VLMs better? ``python -m benchmarks.real_vlms``.

``python -m benchmarks.real_vlms [--part even|odd] [--labelled 250] [--draws 5] [--cache FILE]``

MMBench's distinct questions in file order are divided into even ones (development) and odd ones
(confirmation); rotated copies stay with their question. Of a part, ``--labelled`` questions are
drawn as calibration, with their copies, and the others are judged. A model's softmax over the six
options is its answer distribution; FUSE has the likeliest option's surprisal, the margin to the
second and the entropy as evidence, and sentence vectors of question and options as inputs. All
labels go to the weights (no threshold is asked for). Baselines: G-NLL and the full entropy.

AUROC per model is a mean over draws. Intervals: judged questions drawn anew, the same for all
models, calibration questions of each draw too.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mmbench import FOLDER, MMBench, entropy, load, log_softmax, vectors_of
from fusevlm import Fuse, Samples, metrics
from fusevlm.render.text import layout

Floats = np.ndarray[Any, Any]
G_NLL, ENTROPY, FUSED, PLAIN = "G-NLL", "entropy", "FUSE", "FUSE without inputs"


def places(question: Floats) -> Floats:
    """Each row's question as a number, in the order of the file."""
    names, first = np.unique(question, return_index=True)
    order = {name: k for k, name in enumerate(names[np.argsort(first)])}
    return np.array([order[name] for name in question])


def texts(folder: Path) -> list[str]:
    """Question and options of each row."""
    rows = map(json.loads, (folder / "mmbench_questions.jsonl").read_text().splitlines())
    return [" ".join([row["question"], *(row[o] for o in "ABCD" if row[o])]) for row in rows]


def judged(
    log_p: Floats, wrong: Floats, vectors: Floats, place: Floats, fit: Floats, rest: Floats
) -> dict[str, Floats]:
    """The scores of the judged rows."""
    top = np.sort(log_p, axis=1)
    evidence = {"margin": top[:, -2] - top[:, -1], "entropy": entropy(log_p)}
    nll = -top[:, -1]
    samples = [Samples(["-"], answer="-", answer_logprobs=[-value]) for value in nll]
    found = {G_NLL: nll[rest], ENTROPY: evidence["entropy"][rest]}
    for name, inputs in ((FUSED, vectors), (PLAIN, None)):

        def given(rows: Floats, inputs: Floats | None = inputs) -> dict[str, Any]:
            return {
                "samples": [samples[i] for i in rows],
                "extra": {key: values[rows] for key, values in evidence.items()},
                "inputs": None if inputs is None else inputs[rows],
            }

        fuse = Fuse("practical", threshold_share=0.0)
        fuse.fit(**given(fit), wrong=wrong[fit], units=[str(p) for p in place[fit]])
        found[name] = fuse.score(**given(rest)).u
    return found


def rows_of(place: Floats, questions: Floats) -> Floats:
    """Rows of these questions; a question drawn twice has its rows twice."""
    own: dict[int, list[int]] = {}
    for row, p in enumerate(place):
        own.setdefault(int(p), []).append(row)
    return np.array([row for q in questions for row in own[int(q)]])


def measure(
    bench: MMBench, vectors: Floats, part: int, labelled: int, draws: int, boot: int
) -> Floats:
    """AUROC [boot + 1, models, scores]; the first is of the questions as they are."""
    place = places(bench.question)
    mine = np.unique(place[place % 2 == part])
    found = np.zeros((boot + 1, len(bench.logits), 4))
    rng = np.random.default_rng(0)
    for d in range(draws):
        order = np.random.default_rng([d, 7]).permutation(mine)
        known, others = order[:labelled], order[labelled:]
        anew = [(known, others)]
        anew += [(rng.choice(known, len(known)), rng.choice(others, len(others)))
                 for _ in range(boot)]  # fmt: skip
        for m, logits in enumerate(bench.logits.values()):
            log_p = log_softmax(logits)
            wrong = log_p.argmax(axis=1) != bench.gold
            for b, (first, second) in enumerate(anew):
                fit, rest = rows_of(place, first), rows_of(place, second)
                scores = judged(log_p, wrong, vectors, place, fit, rest)
                found[b, m] += [
                    metrics.auroc(scores[n], wrong[rest]) for n in (G_NLL, ENTROPY, FUSED, PLAIN)
                ]
        print(f"draw {d + 1} of {draws}", file=sys.stderr, flush=True)
    return found / draws


def report(found: Floats, names: Sequence[str]) -> str:
    """A row per model, and the differences with their intervals."""
    head = (G_NLL, ENTROPY, FUSED, PLAIN)
    rows = [(name, *(f"{x:.4f}" for x in row)) for name, row in zip(names, found[0], strict=True)]
    rows.append(("mean", *(f"{x:.4f}" for x in found[0].mean(axis=0))))
    lines = [layout(["AUROC", *head], rows), ""]
    for k, name in ((0, G_NLL), (1, ENTROPY), (3, PLAIN)):
        difference = found[:, :, 2] - found[:, :, k]
        text = f"FUSE minus {name}: {difference[0].mean():+.4f}"
        if len(found) > 1:
            low, high = np.quantile(difference[1:].mean(axis=1), [0.025, 0.975])
            text += f" [{low:+.4f}, {high:+.4f}]"
        ahead = int(np.sum(difference[0] > 0))
        lines.append(f"{text}, ahead on {ahead} of {len(names)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("FUSEVLM_TEST_DATA")
    parser.add_argument("--data", type=Path, default=default and Path(default) / FOLDER)
    parser.add_argument("--part", choices=("even", "odd"), default="even")
    parser.add_argument("--labelled", type=int, default=250, help="questions (250)")
    parser.add_argument("--draws", type=int, default=5, help="of calibration questions (5)")
    parser.add_argument("--boot", type=int, default=40, help="resamples of each draw (40)")
    parser.add_argument("--cache", type=Path, help="keep the texts' vectors in this file")
    args = parser.parse_args(arguments)
    if args.data is None:
        parser.error("name the folder of the logits with --data, or set FUSEVLM_TEST_DATA")
    logging.getLogger("fusevlm").setLevel(logging.ERROR)
    bench, written = load(args.data), texts(args.data)
    known = vectors_of(written, args.cache)
    vectors = np.stack([known[text] for text in written])
    part = ("even", "odd").index(args.part)
    found = measure(bench, vectors, part, args.labelled, args.draws, args.boot)
    print(f"{args.part} questions, {args.labelled} labelled, {args.draws} draws")
    print(report(found, list(bench.logits)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
