"""Texts alone, or texts with log-probabilities, of real models: FUSE against the baselines.

``python -m benchmarks.blackbox [--data DIR] [--divisions 20] [--only NAME]``

    triviaqa  LLaMA-13B, 500 questions: the first sample is judged, 19 others are the samples
    festa     three VLMs on 100 statements of VSR: 10 samples, one of each of ten changes of the
              picture, and 5 to the negated statement (``+ complement``); statements stay together
    mmbench   26 VLMs, 20 options drawn from each model's own distribution; the likeliest is judged,
              500 questions to calibrate; risk .1

Divisions into halves (MMBench: 500 questions and the rest) by unit, the same for all methods. FUSE
keeps half of its labels for the threshold, baselines use all of theirs. AUROC, ECE (15 bins) and
the coverage that is certified at the risk, means over divisions (and models); ``nothing``: the
share of divisions in which nothing was certified; ``risk``: of all that was answered.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import festa, mmbench
from fusevlm import Fuse, Samples, metrics
from fusevlm.baselines import baseline
from fusevlm.data.sampled import Sampled
from fusevlm.fuse import probability
from fusevlm.fuse.thresholds import learn_then_test
from fusevlm.render.text import layout
from fusevlm.scorer import Features, Scorer
from fusevlm.types import Queries, Query

Floats = np.ndarray[Any, Any]
TEXTS = ("frequency_answer", "frequency_top", "distinct", "semantic_entropy_discrete")
SIMILAR = ("kernel_language_entropy", "degree_matrix", "eccentricity", "eigv")
LOGPROBS = ("g_nll", "ntl", "ln_entropy", "semantic_entropy_rao", "clm_max")
DELTA = 0.1


@dataclass(frozen=True)
class Task:
    """One model's rows, what they share, and the risk that is wanted."""

    name: str
    rows: list[Sampled]
    units: list[str]
    risk: float
    calibration: int | None = None  # units; half of them if None
    similar: bool = True  # whether baselines by similarity are computed


def triviaqa(data: Path) -> list[Task]:
    rows = []
    lines = (data / "uqnlg_triviaqa_llama13b" / "samples.jsonl").read_text().splitlines()
    for one in map(json.loads, lines):
        first, *rest = one["samples"]
        rows.append(
            Sampled(
                Query(one["id"], one["question"]),
                Samples(rest, answer=first),
                not one["sample_contains_reference"][0],
            )
        )
    return [Task("triviaqa", rows, [row.query.id for row in rows], 0.3)]


def festa_tasks(data: Path) -> list[Task]:
    tasks = []
    models = festa.load(data / festa.FOLDER)
    for number, (name, model) in enumerate(models.items()):
        rng = np.random.default_rng([0, number])
        same = festa._drawn(model.same, 10, rng)
        kept = festa._drawn(model.kept, 5, rng).mean(axis=1)
        rows = [
            Sampled(
                Query(f"{i}", f"statement {i}"),
                Samples(["A" if yes else "B" for yes in same[i]], answer="A"),
                bool(model.wrong[i]),
                columns={"complement": float(kept[i])},
            )
            for i in range(len(same))
        ]
        tasks.append(Task(f"festa {name}", rows, [row.query.id for row in rows], 0.3))
    return tasks


def mmbench_tasks(data: Path, cache: Path | None) -> list[Task]:
    from benchmarks.real_vlms import texts

    folder = data / mmbench.FOLDER
    bench, written = mmbench.load(folder), texts(folder)
    tasks = []
    for name, logits in bench.logits.items():
        log_p = mmbench.log_softmax(logits)
        drawn, best = mmbench.draw(log_p, 20, 0), log_p.argmax(axis=1)
        rows = [
            Sampled(
                Query(str(i), written[i]),
                Samples(
                    ["ABCDEF"[k] for k in drawn[i]], [[log_p[i, k]] for k in drawn[i]],
                    answer="ABCDEF"[best[i]], answer_logprobs=[log_p[i, best[i]]],
                ),
                bool(best[i] != bench.gold[i]),
            )
            for i in range(len(log_p))
        ]  # fmt: skip
        units = [str(q) for q in bench.question]
        tasks.append(Task(f"mmbench {name}", rows, units, 0.1, calibration=500, similar=False))
    return tasks


def tables(task: Task, vectors: Callable[[Sequence[str]], Floats] | None) -> dict[str, Queries]:
    """What each form of FUSE is given: texts alone, with log-probabilities, with the complement."""
    found: dict[str, Queries] = {}
    complement = "complement" in task.rows[0].columns
    logprobs = task.rows[0].samples is not None and task.rows[0].samples.token_logprobs is not None
    inputs = {} if vectors is None else {"text": vectors([r.query.question for r in task.rows])}

    def made(rows: list[Sampled], **features: Any) -> Queries:
        table = Scorer(Fuse(), Features(**features)).table(rows)
        wrong = [bool(row.wrong) for row in rows]
        return replace(table, wrong=wrong, units=task.units, inputs=inputs)

    texts = [replace(r, samples=_texts(r.samples)) for r in task.rows]
    found["FUSE, texts"] = found["FUSE, texts, no cap"] = made(texts)
    if inputs:
        found["FUSE, texts, no competence"] = replace(found["FUSE, texts"], inputs={})
    if task.similar and not complement:
        found["FUSE, texts, meanings by sentences"] = made(texts, meanings="sentences")
    if complement:
        found["FUSE, texts + complement"] = made(texts, evidence=("complement",))
    if logprobs:
        found["FUSE, log-probs"] = made(task.rows)
        found["FUSE, log-probs, no texts"] = replace(found["FUSE, log-probs"], evidence={})
    return found


def _texts(samples: Samples | None) -> Samples:
    assert samples is not None
    return Samples(samples.texts, answer=samples.answer)


def columns(task: Task) -> dict[str, Floats]:
    """The baselines' scores."""
    samples = [row.samples for row in task.rows if row.samples is not None]
    names = list(TEXTS) + (list(LOGPROBS) if samples[0].token_logprobs is not None else [])
    found = {name: np.asarray(baseline(name, samples)) for name in names}
    if task.similar and "festa" not in task.name:
        for name in SIMILAR:
            found[f"{name} (sentences)"] = np.asarray(baseline(name, samples, meanings="sentences"))
    if "complement" in task.rows[0].columns:
        share = np.array([row.number("complement") for row in task.rows])
        found["failure to flip"] = share
        found["mean of both"] = 0.5 * (share + found["frequency_answer"])
    return found


def divided(task: Task, seed: int) -> tuple[Floats, Floats]:
    """Rows of calibration and test."""
    names = list(dict.fromkeys(task.units))
    order = np.random.default_rng([seed, 1]).permutation(len(names))
    known = {names[k] for k in order[: task.calibration or len(names) // 2]}
    mine = np.array([unit in known for unit in task.units])
    return np.flatnonzero(mine), np.flatnonzero(~mine)


@dataclass(frozen=True)
class Found:
    auroc: float
    ece: float
    coverage: float
    errors: int
    answered: int
    nothing: bool


def of_fuse(queries: Queries, fit: Floats, rest: Floats, risk: float, **options: Any) -> Found:
    fuse = Fuse(**options).fit(queries.take(fit))
    test = queries.take(rest)
    scores = fuse.score(test)
    decided = fuse.decide(scores, risk=risk, delta=DELTA)
    return _found(scores.u, fuse.predict_proba(scores), decided.answer, test.wrong)


def of_baseline(u: Floats, wrong: Floats, fit: Floats, rest: Floats, risk: float) -> Found:
    chosen = probability.fit_score_map("auto", u[fit], wrong[fit])
    theta = learn_then_test(u[fit], wrong[fit], risk=risk, delta=DELTA)
    p = u[rest] if chosen is None else chosen(u[rest])
    return _found(u[rest], p, theta.answers(u[rest]), wrong[rest])


def _found(u: Floats, p: Floats, answer: Floats, wrong: Floats) -> Found:
    return Found(
        metrics.auroc(u, wrong), metrics.ece(p, wrong), float(np.mean(answer)),
        int(np.sum(wrong[answer])), int(np.sum(answer)), not bool(np.any(answer)),
    )  # fmt: skip


def measure(tasks: Sequence[Task], divisions: int, cache: Path | None) -> str:
    found: dict[str, list[Found]] = {}
    known: dict[str, Floats] = {}

    def vectors(texts: Sequence[str]) -> Floats:
        new = [text for text in texts if text not in known]
        if new:
            known.update(mmbench.vectors_of(new, cache))
        return np.stack([known[text] for text in texts])

    for task in tasks:
        wrong = np.array([bool(row.wrong) for row in task.rows])
        given = tables(task, None if "festa" in task.name else vectors)
        scores = columns(task)
        for seed in range(divisions):
            fit, rest = divided(task, seed)
            for name, queries in given.items():
                own = {"cap": 1.0} if "no cap" in name else {}
                found.setdefault(name, []).append(of_fuse(queries, fit, rest, task.risk, **own))
            for name, u in scores.items():
                found.setdefault(name, []).append(of_baseline(u, wrong, fit, rest, task.risk))
        print(f"{task.name}: {len(wrong)} rows, {wrong.mean():.1%} wrong", file=sys.stderr)
    rows = [
        (
            name, np.mean([f.auroc for f in own]), np.mean([f.ece for f in own]),
            np.mean([f.coverage for f in own]), np.mean([f.nothing for f in own]),
            sum(f.errors for f in own) / max(1, sum(f.answered for f in own)),
        )
        for name, own in found.items()
    ]  # fmt: skip
    header = ("method", "AUROC", "ECE", f"certified at {tasks[0].risk:g}", "nothing", "risk")
    return layout(header, [(n, *(f"{v:.3f}" for v in values)) for n, *values in rows])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("FUSEVLM_TEST_DATA")
    parser.add_argument("--data", type=Path, default=default and Path(default))
    parser.add_argument("--divisions", type=int, default=20)
    parser.add_argument("--only", choices=("triviaqa", "festa", "mmbench"))
    parser.add_argument("--cache", type=Path, help="keep the texts' vectors in this file")
    args = parser.parse_args(arguments)
    if args.data is None:
        parser.error("name the folder of the data with --data, or set FUSEVLM_TEST_DATA")
    logging.getLogger("fusevlm").setLevel(logging.ERROR)
    sources: dict[str, Callable[[], list[Task]]] = {
        "triviaqa": lambda: triviaqa(args.data),
        "festa": lambda: festa_tasks(args.data),
        "mmbench": lambda: mmbench_tasks(args.data, args.cache),
    }
    for name, source in sources.items():
        if args.only in (None, name):
            few = max(1, args.divisions // 10) if name == "mmbench" else args.divisions
            print(f"{name}, {few} divisions")
            print(measure(source(), few, args.cache) + "\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
