"""What the baseline scores cost beside sampling: ``python -m benchmarks.scores RUN``.

RUN is a run of ``fusevlm bench`` (runs/bench-embedded/easy-vqa). All scores are computed from its
stored samples; the time its stage ``sample`` took is the alternative. Inference pairs are counted
with a judge that goes by the words, since what is asked depends on the texts alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fusevlm.meanings import same_form
from fusevlm.pipeline.score import read_table, timed_scores
from fusevlm.render.text import layout
from fusevlm.scores import NEEDS, SCORES
from fusevlm.semantics.inference import find_meanings, nli_similarity
from fusevlm.store.runs import read_manifest, read_run


class ByWords:
    """Entailment where the words are the same."""

    name = "by words"

    def judge(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        same = [same_form(a) == same_form(b) for a, b in pairs]
        return np.array([[0.0, 0.0, 1.0] if yes else [1.0, 0.0, 0.0] for yes in same])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    args = parser.parse_args()
    config = read_run(args.run)
    queries, _ = read_table(args.run, config, states=set(NEEDS))
    sampling = read_manifest(args.run, "sample")
    assert sampling is not None
    start = time.perf_counter()
    columns, missing, seconds = timed_scores(queries, tuple(SCORES))
    total = time.perf_counter() - start
    n = len(queries.samples[0])
    print(f"{len(queries)} queries × {n} samples; {len(columns)} scores, missing: {missing}")
    print(layout(["score", "seconds"], sorted(seconds.items(), key=lambda kv: -kv[1])))
    share = total / sampling.seconds
    print(f"all scores {total:.2f} s, sampling {sampling.seconds:.1f} s: {share:.1%} (bar 5 %)")

    asked = queries.columns["question"]
    texts = [q.texts for q in queries.samples]
    rows = []
    for what, found in (
        ("meanings", find_meanings(ByWords(), asked, texts).counts),
        ("similarities", nli_similarity(ByWords(), asked, texts).counts),
    ):
        fewer = found.all_pairs / found.judged
        rows.append((what, found.all_pairs, found.distinct, found.judged, f"{fewer:.0f}×"))
    print(layout(["inference pairs", "all", "distinct", "judged", "fewer (bar 5×)"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
