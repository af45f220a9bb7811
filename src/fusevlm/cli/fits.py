"""Samples that are already there: ``fit TABLE --out FIT`` and ``apply FIT TABLE``."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusevlm import checks
from fusevlm.cli import EXIT_OK, EXIT_PARTIAL, Verb
from fusevlm.cli.progress import progress_line
from fusevlm.cli.terminal import tell
from fusevlm.errors import InputError, library_quiet
from fusevlm.render.text import layout
from fusevlm.settings import MINILM, NONE

if TYPE_CHECKING:
    from fusevlm.data.sampled import Sampled
    from fusevlm.scorer import Judged, Scorer

COLUMNS = """\
a table (CSV, JSON lines, Parquet) has a row per query. Columns: samples (a list of texts; in CSV
  JSON); question; logprobs (a list of lists); answer (else the most frequent sample is judged),
  answer_logprobs; wrong (0/1) or references (the right answers); id; image"""
RISKS = (0.05, 0.1, 0.2, 0.3)
COLUMNAR, LINES = (".csv", ".parquet"), (".jsonl", ".ndjson")  # endings of what apply writes
# what apply writes, in this order; --all adds the rest of what `ask --json` has
SHOWN = ("answer", "decision", "reason", "why", "p_wrong", "u", "novelty")


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="form", default="table", metavar="TOOL",
        help="the file is a log: inspect (inspect_ai) or lmms-eval",
    )  # fmt: skip
    parser.add_argument("--images", metavar="DIR", help="folder of the pictures (the table's)")
    parser.add_argument("--outside", action="store_true", help="pictures may lie anywhere")
    parser.add_argument(
        "--criterion", default="exact_match", metavar="NAME",
        help="what references tell: exact_match (the default), exact_match_majority, vqa_accuracy, "
        "rouge_l",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="N", help="the first so many rows")
    parser.add_argument("--delta", type=float, default=0.1, help="chance to miss the risk (0.1)")


def _add_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", metavar="TABLE", help="labelled queries with samples")
    parser.add_argument("--out", metavar="FIT", required=True, help="folder to write")
    _add_shared(parser)
    parser.add_argument(
        "--towers", default="auto", metavar="NAME",
        help="minilm: vectors of the question; a CLIP's folder or hub name: of picture and "
        "question; none (auto: minilm where it is installed)",
    )  # fmt: skip
    parser.add_argument(
        "--meanings", default="strings", metavar="HOW",
        help="what says the same: strings, sentences, or an inference model's folder or name",
    )  # fmt: skip
    for flag, line in (
        ("--prior", "a column that is a prior statistic (repeatable)"),
        ("--evidence", "a column that is evidence, larger = less sure (repeatable)"),
    ):
        parser.add_argument(flag, action="append", default=[], metavar="COLUMN", help=line)
    parser.add_argument("--unit", default="", metavar="COLUMN", help="equal values stay together")
    parser.add_argument("--seed", type=int, default=0, help="of the split (0)")


def _add_apply(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fit", metavar="FIT", help="folder that fusevlm fit wrote")
    parser.add_argument("table", metavar="TABLE", help="queries with samples")
    parser.add_argument("--out", metavar="FILE", help=".jsonl, .csv or .parquet (standard output)")
    _add_shared(parser)
    parser.add_argument("--risk", type=float, default=0.05, help="wanted error rate (0.05)")
    parser.add_argument("--all", action="store_true", help="all that ask --json tells")


def _read(args: argparse.Namespace) -> list[Sampled]:
    from fusevlm.data.sampled import read_sampled

    return read_sampled(
        args.table, args.images, form=args.form, criterion=args.criterion, outside=args.outside,
        limit=args.limit,
    )  # fmt: skip


def _fit(args: argparse.Namespace) -> int:
    from fusevlm.scorer import Scorer

    checks.fraction(args.delta, "delta")
    rows = _read(args)
    _check_columns(rows, [*args.prior, *args.evidence, *([args.unit] if args.unit else [])])
    with library_quiet():  # what a fit has to do without is said below
        found = Scorer.fit(
            rows, towers=args.towers, meanings=args.meanings, prior=args.prior,
            evidence=args.evidence, unit=args.unit, seed=args.seed,
            progress=progress_line("vectors", quiet=args.quiet),
        )  # fmt: skip
    found.save(args.out)
    known = [row for row in rows if row.wrong is not None]
    wrong = sum(bool(row.wrong) for row in known)
    tell(f"{len(known)} labelled queries, {wrong / len(known):.1%} wrong")
    _tell_of_errors(rows)
    _tell_of_fit(found, known)
    tell(found.fuse)
    tell(f"\nwith probability {1 - args.delta:g}, of queries like these")
    tell(layout(("risk at most", "answered"), _promises(found, args.delta)))
    tell(f"\nfit: {args.out}   next: fusevlm apply {args.out} TABLE --risk 0.1")
    return EXIT_OK


def _tell_of_fit(scorer: Scorer, rows: Sequence[Sampled]) -> None:
    """What a fit has to do without."""
    model = scorer.fuse.model
    vector = model.vector
    bare = sum(not row.query.images for row in rows)
    if 0 < bare < len(rows) and scorer.features.towers not in (NONE, MINILM):
        tell(f"{bare} of {len(rows)} rows have no picture: none is looked at", error=True)
    if vector is not None and not vector.labelled:
        tell("too few right or wrong answers to set the weights: fixed ones are used", error=True)
    if scorer.features.towers == NONE:
        tell("no vectors of the questions: no competence, no novelty (--towers)", error=True)
    elif model.competence is None:
        tell("competence is silent: too few labels, or the questions say too little", error=True)


def _promises(scorer: Scorer, delta: float) -> list[tuple[str, str]]:
    rows = []
    with library_quiet():  # the table says what cannot be certified
        for risk in RISKS:
            theta = scorer.fuse.threshold(risk=risk, delta=delta)
            share = f"{theta.coverage:.0%}" if theta.feasible else "nothing certified"
            rows.append((f"{risk:g}", share))
    return rows


def _check_columns(rows: Sequence[Sampled], names: Sequence[str]) -> None:
    there = {name for row in rows for name in row.columns}
    for name in names:
        if name not in there:
            raise InputError(f"the table has no column {name!r}.{checks.hint(name, there)}")


def _tell_of_errors(rows: Sequence[Sampled]) -> None:
    """How many rows were left out, and why the first of each kind."""
    failed = [row for row in rows if row.error]
    if failed:
        tell(f"{len(failed)} rows cannot be read; the first: {failed[0].error}", error=True)
    unknown = sum(row.wrong is None and not row.error for row in rows)
    if unknown:
        tell(f"{unknown} rows have no label and were left out", error=True)


def _apply(args: argparse.Namespace) -> int:
    from fusevlm.scorer import Scorer

    checks.fraction(args.risk, "risk")  # what costs nothing to say is said first
    checks.fraction(args.delta, "delta")
    if args.out:
        _ending(Path(args.out))
    scorer, rows = Scorer.load(args.fit), _read(args)
    features = scorer.features
    _check_columns(rows, [*features.prior, *features.evidence])
    progress = progress_line("apply", quiet=args.quiet or not args.out)
    found = scorer.judge(rows, risk=args.risk, delta=args.delta, progress=progress)
    table = [_line(one, all_=args.all) for one in found]
    if args.out:
        _save(Path(args.out), table)
        _tell_result(found, args)
    else:
        for line in table:
            tell(json.dumps(line, ensure_ascii=False))
    return EXIT_PARTIAL if any(one.answer is None for one in found) else EXIT_OK


def _line(judged: Judged, *, all_: bool) -> dict[str, Any]:
    row = judged.row
    known = {} if row.wrong is None else {"wrong": row.wrong}
    if judged.answer is None:
        return {"id": row.query.id, "error": row.error}
    told = judged.answer.as_dict()
    told = told if all_ else {name: told[name] for name in SHOWN}
    return {"id": row.query.id, **told, **known}


def _save(path: Path, table: Sequence[Mapping[str, Any]]) -> None:
    """By its ending; nested values are JSON in CSV and Parquet."""
    from fusevlm.store.files import save
    from fusevlm.store.tables import save_columns

    if _ending(path) in COLUMNAR:
        names = dict.fromkeys(name for line in table for name in line)
        save_columns(path, {name: [_flat(line.get(name)) for line in table] for name in names})
    else:
        lines = [json.dumps(line, ensure_ascii=False) for line in table]
        save(path, ("\n".join(lines) + "\n").encode(errors="backslashreplace"))


def _ending(path: Path) -> str:
    if path.suffix not in (*COLUMNAR, *LINES):
        raise InputError(f"--out is {path}; expected an ending .jsonl, .csv or .parquet.")
    return path.suffix


def _flat(value: Any) -> Any:
    nested = isinstance(value, Mapping | list | tuple)
    return json.dumps(value, ensure_ascii=False) if nested else value


def _tell_result(found: Sequence[Judged], args: argparse.Namespace) -> None:
    """How many were answered, why the others were not, and the risk where labels tell it."""
    told = [(one.row, one.answer) for one in found if one.answer is not None]
    answered = [row for row, answer in told if answer.decision == "answer"]
    tell(f"{len(told)} queries, {len(answered)} answered at risk {args.risk:g}: {args.out}")
    reasons = Counter(answer.reason for _, answer in told if answer.reason)
    for reason, count in reasons.most_common():
        tell(f"  {count} not: {reason}")
    failed = [one.row for one in found if one.answer is None]
    if failed:
        tell(f"{len(failed)} failed; the first: {failed[0].error}", error=True)
    known = [row.wrong for row in answered]
    if known and all(label is not None for label in known):
        tell(f"of those answered, {sum(map(bool, known)) / len(known):.1%} are wrong")


VERBS = {
    "fit": Verb(
        f"examples:\n  fusevlm fit labelled.jsonl --out fits/mine\n"
        f"  fusevlm fit answers.csv --out fits/mine --meanings sentences --unit image_id\n"
        f"  fusevlm fit logs/2026_task.eval --from inspect --out fits/mine\n\n{COLUMNS}",
        _add_fit,
        _fit,
    ),
    "apply": Verb(
        f"examples:\n  fusevlm apply fits/mine new.jsonl --out judged.jsonl --risk 0.1\n"
        f"  fusevlm apply fits/mine new.csv --all\n\n{COLUMNS}",
        _add_apply,
        _apply,
    ),
}
