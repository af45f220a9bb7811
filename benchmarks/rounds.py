"""As few samples as the decision needs: coverage and cost of FUSE in rounds.

``python -m benchmarks.rounds embedded FILE … [--divisions 100] [--boot 0] [--each 50]``
    Columns of seeds (benchmarks.columns). Certified coverage at 5 and 10 % risk and generated
    tokens of FUSE in rounds (as needed, and for budgets), of FUSE with 20 samples and with none,
    and of every baseline at 20 (all labels for its threshold, or half of them for the start of the
    sequence, as FUSE has it): mean over divisions of all images in halves, the same for all.
    The interval of a difference draws images anew (--boot), with --each divisions of them: the
    fewer, the wider. --jobs 2 are so many processes.
``python -m benchmarks.rounds replay [--data DIR] [--divisions 20]``
    TriviaQA (texts of LLaMA-13B) and FESTA (three VLMs): coverage against answers generated, of
    rounds for budgets, of fixed numbers of samples, and of votes that stop early. *Above a mixture*
    is against all samples for some queries and the fewest for the others, at the same cost.
``python -m benchmarks.rounds promise [--repetitions 400]``
    How often the promised risk is exceeded: by the whole rule, and by a rule that peeks.
``python -m benchmarks.rounds seconds``
    Seconds a question of ``ask`` and of a table, with 20 samples and in rounds, and of sampling
    alone with fixed numbers of samples, in one process.
``python -m benchmarks.rounds server``
    The same of a real language model behind a server: SmolLM2-135M in llama.cpp, asked for
    capitals (make .venv/.slow).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import blackbox
from benchmarks.columns import FEWER, LOG_DET, Columns, load
from benchmarks.confirm import STATISTICS, _repeat, baseline, chosen, halves
from fusevlm import Fuse, Samples
from fusevlm.fuse.probability import fit_score_map
from fusevlm.fuse.rounds import Rounds, Tier, usual_tiers
from fusevlm.fuse.thresholds import learn_then_test
from fusevlm.render.text import layout
from fusevlm.scorer import Features, Scorer
from fusevlm.scores import label_free
from fusevlm.scores.votes import VOTES, voted
from fusevlm.types import Queries

Floats = np.ndarray[Any, Any]
RISKS, DELTA, N, CAP = (0.05, 0.1), 0.1, 20, 0.5
BUDGETS = (None, 0.0, 1.0, 2.0, 4.0, 8.0, 20.0)
TIERS = usual_tiers(N, sizes=FEWER)
FIXED, NONE = "practical, 20 samples", "practical, no sample"
HALVED = ", half the labels for the start"
REACHED = "share that reaches each tier"
SIZES = (0, 1, 2, 4, 8, 16, 20, 32, 50)  # samples whose seconds are told


def named(budget: float | None) -> str:
    return "rounds, as needed" if budget is None else f"rounds, {budget:g} wanted"


# ------------------------------------------------------------------------------------- embedded


def tables(columns: Columns) -> list[Queries]:
    """The queries at each tier: evidence of so many samples."""
    samples = [Samples([], answer="-", answer_logprobs=[-value]) for value in columns.nll]
    found = []
    for tier in TIERS:
        name = LOG_DET if tier.samples == N else f"{LOG_DET}_{tier.samples}"
        own = chosen(columns, STATISTICS, (name,) if tier.samples else ())
        found.append(
            Queries(
                [str(k) for k in range(len(own))], samples, own.wrong, prior=own.prior,
                evidence={"log_det": own.evidence[name]} if tier.samples else {},
                inputs=own.inputs, units=[str(u) for u in own.unit],
            )
        )  # fmt: skip
    return found


def tokens(columns: Columns, samples: Floats) -> Floats:
    """Generated for each query: the answer and so many samples."""
    found = columns.facts["tokens_0"].astype(float)
    for n in (*FEWER, N):
        found = found + np.where(samples == n, columns.facts[f"tokens_{n}"], 0)
    return np.asarray(found)


def judged(
    columns: Columns,
    at: Sequence[Queries],
    seed: int,
    names: Sequence[str] = (),
    budgets: Sequence[float | None] = (None,),
) -> dict[str, Floats]:
    """[risks, 3] of each method: coverage, tokens a query, and the errors among its answers.

    ``at`` are the :func:`tables` of the columns, which are divided in halves by the seed. Beside
    the methods [risks, tiers]: the share of queries that reach each tier, as needed.
    """
    known, rest = halves(columns.unit, seed)
    calibration, test = ([table.take(rows) for table in at] for rows in (known, rest))
    new, wrong = columns.take(rest), columns.wrong[rest]
    found: dict[str, list[tuple[float, ...]]] = {}

    def note(name: str, answered: Floats, spent: float) -> None:
        errors = float(wrong[answered].mean()) if answered.any() else 0.0
        found.setdefault(name, []).append((float(np.mean(answered)), spent, errors))

    rounds = Rounds(TIERS).fit(calibration)
    scored = rounds.score(test)
    sizes = np.array([tier.samples for tier in rounds.fitted.tiers])
    for risk in RISKS:
        for budget in budgets:
            one = rounds.decide(scored, risk=risk, delta=DELTA, samples=budget)
            note(named(budget), one.answer, float(tokens(new, sizes[one.tier]).mean()))
            if budget is None:
                reached = tuple(float(np.mean(one.tier >= k)) for k in range(len(sizes)))
                found.setdefault(REACHED, []).append(reached)
    whole = float(tokens(new, np.full(len(new), N)).mean())
    alone = float(tokens(new, np.zeros(len(new))).mean())
    for name, tier, spent in ((FIXED, -1, whole), (NONE, 0, alone)):
        fuse = Fuse().fit(calibration[tier])
        scores = fuse.score(test[tier])
        for risk in RISKS:
            note(name, fuse.decide(scores, risk=risk, delta=DELTA).answer, spent)
    old = columns.take(known) if names else columns
    for name in names:
        for label, halved in ((name, False), (f"{name}{HALVED}", True)):
            form = baseline(old, new, name, halved=halved)
            for risk in RISKS:
                note(label, form.u <= form.theta[risk], alone if name == "g_nll" else whole)
    return {name: np.array(rows) for name, rows in found.items()}


def embedded(seeds: Sequence[Columns], n_divisions: int, n_boot: int, each: int, jobs: int) -> str:
    names = list(label_free(list(seeds[0].scores)))
    known = [(columns, tables(columns)) for columns in seeds]
    work = [partial(judged, *one, d, names, BUDGETS) for one in known for d in range(n_divisions)]
    table: dict[str, list[Floats]] = {}
    for one in _each(work, "divisions", jobs):
        for name, rows in one.items():
            table.setdefault(name, []).append(rows)
    mean = {name: np.mean(rows, axis=0) for name, rows in table.items()}
    reached, full = mean.pop(REACHED), mean[FIXED][0, 1]
    bare = {name: name.removesuffix(HALVED) in names for name in mean}
    order = sorted(mean, key=lambda n: (bare[n], -mean[n][0, 0] if bare[n] else 0))
    lines = [
        (
            name, f"{mean[name][0, 0]:.3f}", f"{mean[name][1, 0]:.3f}", f"{mean[name][0, 2]:.3f}",
            f"{mean[name][0, 1]:.1f}", f"{full / mean[name][0, 1]:.1f}×",
        )
        for name in order
    ]  # fmt: skip
    head = ("", "certified at 5 %", "at 10 %", "observed at 5 %", "tokens", "fewer")
    shares = [
        (f"at {risk:.0%}", *(f"{share:.3f}" for share in reached[r]))
        for r, risk in enumerate(RISKS)
    ]
    tiers = (f"{tier.samples} samples" for tier in TIERS)
    parts = [layout(head, lines), layout((f"{named(None)}: {REACHED}", *tiers), shares)]
    if n_boot:
        parts.append(_intervals(seeds, table, each, n_boot, jobs))
    return "\n\n".join(parts)


def _intervals(
    seeds: Sequence[Columns],
    table: Mapping[str, Sequence[Floats]],
    each: int,
    n_boot: int,
    jobs: int,
) -> str:
    """Differences of certified coverage, with intervals over images drawn anew."""
    rng = np.random.default_rng(0)
    images = np.unique(seeds[0].unit)
    draws = [rng.choice(images, len(images)) for _ in range(n_boot)]
    work = [partial(_drawn, seeds, own, 1000 * b, each) for b, own in enumerate(draws)]
    found = list(_each(work, "draws of images", jobs))
    lines = []
    for name in (FIXED, NONE):
        own = [a[:, 0] - b[:, 0] for a, b in zip(table[named(None)], table[name], strict=True)]
        low, high = np.quantile([one[name] for one in found], [0.025, 0.975], axis=0)
        cells = [f"{np.mean(own, axis=0)[r]:+.3f} [{low[r]:+.3f}, {high[r]:+.3f}]"
                 for r in range(len(RISKS))]  # fmt: skip
        lines.append((f"{named(None)} − {name}", *cells))
    return layout(("certified coverage", "at 5 %", "at 10 %"), lines)


def _drawn(
    seeds: Sequence[Columns], images: Floats, first: int, n_divisions: int
) -> dict[str, Floats]:
    """Mean differences [risks] over the divisions of some images, of which some are there twice."""
    rows: dict[str, list[Floats]] = {FIXED: [], NONE: []}
    for columns in seeds:
        own = _repeat(columns, images)
        at = tables(own)
        for d in range(n_divisions):
            one = judged(own, at, first + d)
            for name, values in rows.items():
                values.append(one[named(None)][:, 0] - one[name][:, 0])
    return {name: np.mean(values, axis=0) for name, values in rows.items()}


_WORK: list[Callable[[], Any]] = []  # what a forked process inherits, and need not be sent


def _each(work: Sequence[Callable[[], Any]], what: str, jobs: int) -> Iterator[Any]:
    """The results of some work, in its order, by so many processes."""
    _WORK[:] = work
    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        for done, one in enumerate(pool.map(_called, range(len(work))), 1):
            _progress(what, done, len(work))
            yield one


def _called(number: int) -> Any:
    return _WORK[number]()


# --------------------------------------------------------------------------------------- replay


def replay_tables(task: blackbox.Task, tiers: Sequence[Tier], inputs: Any) -> list[Queries]:
    found = []
    for tier in tiers:
        rows = [replace(r, samples=r.samples.first(tier.samples)) for r in task.rows if r.samples]
        table = Scorer(Fuse(), Features(evidence=tier.extra)).table(rows)
        wrong = [bool(row.wrong) for row in rows]
        found.append(replace(table, wrong=wrong, units=task.units, inputs=inputs))
    return found


def replay_tiers(task: blackbox.Task) -> list[Tier]:
    """Of FESTA five answers to the negated statement, as its data has them."""
    if "complement" in task.rows[0].columns:
        return list(usual_tiers(10, {"complement": 5.0}, sizes=(1, 2, 5)))
    assert task.rows[0].samples is not None
    return list(usual_tiers(len(task.rows[0].samples), sizes=(1, 2, 4, 8, 16)))


def replay(tasks: Sequence[blackbox.Task], divisions: int, vectors: Any) -> str:
    found: dict[tuple[str, str], list[tuple[float, float, int, int]]] = {}  # as Noted
    for task in tasks:
        tiers = replay_tiers(task)
        inputs = {} if vectors is None else {"text": vectors([r.query.question for r in task.rows])}
        whole = replay_tables(task, tiers, inputs)
        votes = {name: voted(name, whole[-1]) for name in VOTES}
        for seed in range(divisions):
            fit, rest = blackbox.divided(task, seed)
            known, new = ([table.take(rows) for table in whole] for rows in (fit, rest))
            wrong = new[0].wrong

            def note(
                name: str, answers: Any, yes: Floats, wrong: Floats = wrong,
                kind: str = task.name.split()[0],
            ) -> None:  # fmt: skip
                row = (float(np.mean(answers)), float(yes.mean()), int(wrong[yes].sum()),
                       int(yes.sum()))  # fmt: skip
                found.setdefault((kind, name), []).append(row)

            rounds = Rounds(tiers).fit(known)
            scored = rounds.score(new)
            for budget in (None, 0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 12.0, 100.0):
                one = rounds.decide(scored, risk=task.risk, delta=DELTA, samples=budget)
                note(named(budget), one.answers, one.answer)
            for tier, own, other in zip(tiers, known, new, strict=True):
                if tier in rounds.fitted.tiers:
                    one = Rounds([tier]).fit([own]).decide([other], risk=task.risk, delta=DELTA)
                    note(f"fixed: {tier.name}", one.answers, one.answer)
            for name, (used, u) in votes.items():
                theta = learn_then_test(u[fit], known[0].wrong, risk=task.risk, delta=DELTA)
                note(name, used[rest] + 1, theta.answers(u[rest]))
                to_p = fit_score_map("auto", u[fit], known[0].wrong)
                assert to_p is not None
                below = to_p(u[rest]) <= CAP  # as FUSE answers nothing that is likelier wrong
                note(f"{name}, capped", used[rest] + 1, theta.answers(u[rest]) & below)
    ends = _ends({name: rows for (_, name), rows in found.items()})
    lines = [
        (
            task, name, f"{np.mean([r[0] for r in rows]):.2f}",
            f"{np.mean([r[1] for r in rows]):.3f}",
            f"{np.mean([r[1] == 0 for r in rows]):.2f}",
            f"{sum(r[2] for r in rows) / max(1, sum(r[3] for r in rows)):.3f}",
            _above(rows, *ends),
        )
        for (task, name), rows in found.items()
    ]  # fmt: skip
    head = ("", "rule", "answers", "certified at .3", "nothing", "observed risk", "above a mixture")
    return layout(head, lines)


Noted = Sequence[tuple[float, float, int, int]]  # answers, coverage, errors, answered


def _ends(found: Mapping[str, Noted]) -> tuple[Noted, Noted]:
    """The cheapest and the dearest fixed number of samples, of those in all divisions."""
    most = max(map(len, found.values()))
    fixed = [v for name, v in found.items() if name.startswith("fixed") and len(v) == most]
    fixed.sort(key=lambda rows: rows[0][0])
    return fixed[0], fixed[-1]


def _above(rows: Noted, cheap: Noted, dear: Noted) -> str:
    """Coverage above that of drawing all samples for some queries and the fewest for the others.

    For as many that the mixture costs the same; ± the standard error over divisions.
    """
    if len(rows) < len(cheap):
        return ""
    cost, low, high = (float(np.mean([r[0] for r in one])) for one in (rows, cheap, dear))
    share = np.clip((cost - low) / (high - low), 0.0, 1.0)
    own, first, last = (np.array([r[1] for r in one]) for one in (rows, cheap, dear))
    gains = own - (1.0 - share) * first - share * last
    return f"{gains.mean():+.3f} ± {gains.std() / np.sqrt(len(gains)):.3f}"


# -------------------------------------------------------------------------------------- promise


def promise(repetitions: int) -> str:
    from tests.fuse.test_stopping import naive, rounds_of, run, world

    lines = []
    for case in ("informed", "crooked", "blind"):
        for size in (60, 200, 1000):
            options = {"crooked": case == "crooked", "noise": (1.2, 3.0, 3.0, 3.0)}
            fresh_wrong, fresh, variance = world(6000, 99, **options)
            over, peeked, shares, spent = 0, 0, [], []
            for k in range(repetitions):
                tuning = world(size, 10_000 + k, **options)[:2]
                kept = world(size, 50_000 + k, **options)[:2]
                apart = case != "blind"
                rounds = rounds_of(tuning if apart else kept, kept, variance, apart=apart)
                plan = rounds.plan(0.1, DELTA, 3.0 if k % 2 else None)
                answered, answers = run(rounds, fresh, plan)
                over += bool(answered.any()) and fresh_wrong[answered].mean() > 0.1
                looked = naive(kept, fresh, 0.1, DELTA)
                peeked += bool(looked.any()) and fresh_wrong[looked].mean() > 0.1
                shares.append(answered.mean())
                spent.append(answers.mean())
            lines.append(
                (case, str(size), f"{over / repetitions:.3f}", f"{peeked / repetitions:.3f}",
                 f"{np.mean(shares):.3f}", f"{np.mean(spent):.2f} of 17")
            )  # fmt: skip
    bar = DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / repetitions)
    head = ("world", "labels", "exceeded", "peeking", "coverage", "answers")
    return f"{layout(head, lines)}\n\nbar {bar:.3f}, {repetitions} calibration sets each"


# -------------------------------------------------------------------------------------- seconds


def seconds(count: int) -> str:
    import fusevlm
    from fusevlm.data.questions import queries

    assistant = fusevlm.load()
    asked = [replace(q, id=str(k)) for k, q in enumerate(queries("test", limit=count))]
    ways: dict[str, Callable[[], Any]] = {
        "ask, 20 samples": lambda: [assistant.ask(q.images[0], q.question) for q in asked],
        "ask --fast": lambda: [
            assistant.ask(q.images[0], q.question, samples="as needed") for q in asked
        ],
        "ask --samples 4": lambda: [
            assistant.ask(q.images[0], q.question, samples=4.0) for q in asked
        ],
        "table, 20 samples": lambda: _batches(assistant, asked, None),
        "table, --fast": lambda: _batches(assistant, asked, "as needed"),
        "table, --samples 4": lambda: _batches(assistant, asked, 4.0),
        **{
            f"sampling, {n} samples": lambda n=n: _sampled(assistant.model, asked, n) for n in SIZES
        },
    }
    for way in ways.values():  # plans are made once
        way()
    took = {name: [] for name in ways}  # type: ignore[var-annotated]
    for _ in range(3):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            took[name].append((time.perf_counter() - start) / count)
    best = {name: min(values) for name, values in took.items()}
    lines = []
    for name, value in best.items():
        whole = best[f"{name.partition(',')[0].split()[0]}, 20 samples"]
        lines.append((name, f"{1000 * value:.1f}", f"{whole / value:.2f}×"))
    return layout(("", "ms a question", "faster"), lines)


SERVER = """
[data]
source = "files"
calibration = "calibration.jsonl"
test = "test.jsonl"
[sample]
model = "openai:smollm2@{url}"
n = {n}
temperature = "1.0"
max_new_tokens = 12
[server]
concurrency = {slots}
[embed]
towers = "minilm"
[adapter]
source = "none"
[calibrate]
methods = ["practical", "g_nll", "frequency_answer"]
[evaluate]
risks = [{risk}]
risk = {risk}
[report]
figures = ["roc"]
"""


def server(count: int, n: int = 16, risk: float = 0.3) -> str:
    """A run, then its test questions asked again: with n samples each, and in rounds."""
    import json
    from tempfile import TemporaryDirectory

    from tests.models import capitals
    from tests.models.real_servers import counting, llama_cpp

    import fusevlm
    from fusevlm.cli import main as run
    from fusevlm.data.correctness import is_wrong
    from fusevlm.data.tables import read_queries

    asked = capitals.rows(every=True)
    ways = {f"{n} samples": None, "as needed": "as needed", "4 on average": 4.0, "none": 0.0}
    lines = []
    with TemporaryDirectory() as name, llama_cpp(slots=n) as url, counting(url) as proxy:
        home = Path(name)
        for split, some in {"calibration": asked[::2], "test": asked[1::2]}.items():
            (home / f"{split}.jsonl").write_text("\n".join(map(json.dumps, some)))
        (home / "own.toml").write_text(SERVER.format(url=proxy.url, n=n, slots=n, risk=risk))
        with redirect_stdout(sys.stderr):
            run(["run", str(home / "own.toml"), "--run", str(home / "run"), "--quiet"])
        assistant = fusevlm.load(home / "run")
        questions = read_queries(str(home / "test.jsonl"))[:count]
        assistant.ask(None, questions[0].question, risk=risk)  # towers are loaded once
        for name, samples in ways.items():
            calls, start = proxy.calls, time.perf_counter()
            told = [
                assistant.ask(None, query.question, risk=risk, samples=samples)
                for query in questions
            ]
            took = (time.perf_counter() - start) / len(told)
            pairs = zip(questions, told, strict=True)
            given = [(q, one) for q, one in pairs if one.decision == "answer"]
            wrong = [is_wrong(one.answer, q.references) for q, one in given]
            lines.append(
                (
                    name, f"{took:.2f}", f"{(proxy.calls - calls) / len(told):.2f}",
                    f"{np.mean([one.generated for one in told]):.2f}",
                    f"{len(given) / len(told):.2f}",
                    f"{np.mean(wrong):.2f}" if given else "–",
                )
            )  # fmt: skip
    head = ("", "s a question", "calls", "answers", f"answered at {risk:g}", "of them wrong")
    return layout(head, lines)


def _sampled(model: Any, asked: Sequence[Any], n: int) -> None:
    from fusevlm.models.temperatures import parse

    heat = parse("mct", n, 0)
    for start in range(0, len(asked), 16):
        list(model.sample(asked[start : start + 16], n, heat, 0))


def _batches(assistant: Any, asked: Sequence[Any], samples: Any) -> None:
    for start in range(0, len(asked), 16):
        assistant.ask_all(asked[start : start + 16], samples=samples)


def _progress(what: str, done: int, total: int) -> None:
    if done % max(1, total // 10) == 0:
        print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("embedded", "replay", "promise", "seconds", "server"))
    parser.add_argument("files", type=Path, nargs="*")
    default = os.environ.get("FUSEVLM_TEST_DATA")
    parser.add_argument("--data", type=Path, default=default and Path(default))
    parser.add_argument("--divisions", type=int)
    parser.add_argument("--boot", type=int, default=0)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--questions", type=int, default=48)
    args = parser.parse_args(arguments)
    logging.getLogger("fusevlm").setLevel(logging.CRITICAL)
    if args.part == "embedded":
        seeds = [load(path) for path in args.files]
        print(embedded(seeds, args.divisions or 100, args.boot, args.each, args.jobs))
    elif args.part == "promise":
        print(promise(args.repetitions))
    elif args.part == "seconds":
        print(seconds(args.questions))
    elif args.part == "server":
        print(server(args.questions))
    else:
        from benchmarks.mmbench import vectors_of

        def vectors(texts: Sequence[str]) -> Floats:
            known = vectors_of(list(dict.fromkeys(texts)), None)
            return np.stack([known[text] for text in texts])

        print(replay(blackbox.triviaqa(args.data), args.divisions or 20, vectors) + "\n")
        print(replay(blackbox.festa_tasks(args.data), args.divisions or 20, None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
