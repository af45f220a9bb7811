"""``fusevlm ask [IMAGE] QUESTION``; many at once from a table, or one after the other."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusevlm import checks
from fusevlm.cli import EXIT_OK, EXIT_PARTIAL, Verb
from fusevlm.cli.progress import progress_line
from fusevlm.cli.terminal import paint, tell
from fusevlm.errors import FuseError, InputError, library_quiet

if TYPE_CHECKING:
    from fusevlm.assistant import Assistant
    from fusevlm.render.answer import Answer

TOGETHER = 16  # questions of a table asked at a time
EPILOG = """\
examples:
  fusevlm ask picture.png "what color is the shape?"
  fusevlm ask picture.png "how many corners are there?" --risk 0.1 --json
  fusevlm ask photo.jpg "what is on the table?" --model runs/own-vlm
  fusevlm ask "what is the capital of Peru?" --model runs/own-llm
  fusevlm ask picture.png "how many corners are there?" --fast
  fusevlm ask --table questions.jsonl --out answers.jsonl --samples 4
  fusevlm ask --talk          one question after the other, the model stays loaded

the model is the embedded one, or that of a run folder with its own calibration. A table has the
columns question and image; answers are JSON lines, one object each, and the same command goes on
where it was interrupted. --fast draws samples in rounds, as many as the decision needs; --samples 4
means four on average. The risk holds all the same."""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="[IMAGE] QUESTION", help="a picture; what to ask"
    )
    parser.add_argument("--model", default="embedded", help="embedded, or a run folder (embedded)")
    parser.add_argument("--risk", type=float, default=0.05, help="wanted error rate (0.05)")
    parser.add_argument("--delta", type=float, default=0.1, help="chance to miss it (0.1)")
    parser.add_argument("-n", type=int, help="sampled answers (20); 0: the answer alone")
    parser.add_argument("--fast", action="store_true", help="as many samples as the decision needs")
    parser.add_argument("--samples", type=float, metavar="X", help="so many, on average")
    parser.add_argument("--seed", type=int, default=0, help="of the sampling (0)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--table", metavar="FILE", help="CSV, JSON lines or Parquet with questions")
    parser.add_argument("--out", metavar="FILE", help="JSON lines of the table's answers")
    parser.add_argument("--talk", action="store_true", help="ask for questions until there is none")


def _run(args: argparse.Namespace) -> int:
    image, question = _words(args)
    terms = _terms(args)
    picture = None
    if image is not None:
        from fusevlm.data.images import load_image

        picture = load_image(image)  # before the models: a wrong path should cost nothing
    asked = _table(args) if args.table else []
    from fusevlm.assistant import load

    with library_quiet():  # the answer itself says what is odd
        if not (args.quiet or args.json):
            _say(f"loading {args.model} …")
        assistant = load(args.model)
        if args.table:
            return _many(assistant, asked, terms, args)
        if args.talk:
            return _talk(assistant, terms, args)
        _show(assistant.ask(picture, question, **terms), args)
    return EXIT_OK


def _words(args: argparse.Namespace) -> tuple[str | None, str]:
    """The picture, if there is one, and the question."""
    if args.table or args.talk:
        if args.words:
            raise InputError("--table and --talk bring their own questions; leave the others out.")
        return None, ""
    if args.out:
        raise InputError("--out goes with --table.")
    if len(args.words) not in (1, 2):
        raise InputError('expected a picture and a question: fusevlm ask picture.png "what is it?"')
    if not args.words[-1].strip():
        raise InputError("the question is empty.")
    if len(args.words) == 1 and os.path.isfile(args.words[0]):
        raise InputError(f'{args.words[0]} is a file; what is asked about it? Add "a question".')
    return (args.words[0] if len(args.words) == 2 else None), args.words[-1]


def _say(text: str) -> None:
    """A line that goes again, on a terminal only."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{text:<60}\r")
        sys.stderr.flush()


def _terms(args: argparse.Namespace) -> dict[str, Any]:
    """On which terms questions are asked; checked before the models are loaded."""
    if (args.n is not None) + args.fast + (args.samples is not None) > 1:
        raise InputError("-n, --fast and --samples exclude each other; give one of them.")
    return {
        "risk": checks.fraction(args.risk, "risk"),
        "delta": checks.fraction(args.delta, "delta"),
        "n": None if args.n is None else checks.count(args.n, "n", least=0),
        "samples": "as needed" if args.fast else args.samples,
        "seed": checks.count(args.seed, "seed", least=0),
    }


def _show(found: Answer, args: argparse.Namespace) -> None:
    if args.json:
        tell(json.dumps(found.as_dict(), indent=1, ensure_ascii=False))
        return
    _say("")
    for line in found.lines():
        paint(line)


def _table(args: argparse.Namespace) -> list[Any]:
    from fusevlm.data.tables import read_queries

    return read_queries(args.table)


def _many(
    assistant: Assistant, asked: list[Any], terms: dict[str, Any], args: argparse.Namespace
) -> int:
    """Answers to a table, as JSON lines on standard output or in a file; a bad row says why.

    What is answered is kept beside the file at once, so that the same command goes on with it.
    """
    from fusevlm.store.files import digest, save
    from fusevlm.store.journal import Journal

    progress = progress_line("ask", quiet=args.quiet or not args.out)
    journal = Journal(f"{args.out}.begun") if args.out else None
    head = digest(json.dumps([args.model, terms], sort_keys=True).encode())[:16]
    lines: dict[str, str] = {}
    for start in range(0, len(asked), TOGETHER):
        some = asked[start : start + TOGETHER]
        known: dict[str, Any] = {}
        if journal is not None:
            known = {q.id: journal.find(f"{head}/{_mark(q)}") for q in some}
        left = [query for query in some if not known.get(query.id)]
        told = assistant.ask_all(left, **terms) if left else []
        fresh = {q.id: _row(q.id, one) for q, one in zip(left, told, strict=True)}
        for query in some:
            lines[query.id] = fresh.get(query.id) or str(known[query.id])
            if journal is not None and query.id in fresh:
                journal.add(f"{head}/{_mark(query)}", lines[query.id])
            if not args.out:
                tell(lines[query.id])
        progress(len(lines), len(asked))
    failed = sum("error" in json.loads(line) for line in lines.values())
    if args.out:
        text = "".join(f"{line}\n" for line in lines.values())
        save(Path(args.out), text.encode(errors="backslashreplace"))
        tell(f"{len(lines)} answers, {failed} failed: {args.out}")
    if journal is not None:
        journal.remove()
    return EXIT_PARTIAL if failed else EXIT_OK


def _mark(query: Any) -> str:
    """What a query is known by in the journal: its id, question and pictures."""
    from fusevlm.store.files import digest

    return digest(repr([query.id, query.question, [str(i) for i in query.images]]).encode())[:24]


def _row(name: str, found: Any) -> str:
    told = {"error": str(found)} if isinstance(found, FuseError) else found.as_dict()
    return json.dumps({"id": name, **told}, ensure_ascii=False)


def _talk(assistant: Assistant, terms: dict[str, Any], args: argparse.Namespace) -> int:
    """Question after question; an empty one ends it, an empty picture is the one before."""
    from fusevlm.data.images import load_image

    picture: Any = None
    for name, question in _turns():
        try:
            picture = load_image(name) if name else picture
            _show(assistant.ask(picture, question, **terms), args)
        except FuseError as error:
            tell(f"{error}", error=True)
        tell()
    return EXIT_OK


def _turns() -> Iterator[tuple[str, str]]:
    """(picture, question) as they are typed, or come from a pipe: two lines each."""
    prompt = sys.stdin.isatty()
    while True:
        words = []
        for what in ("picture (empty: the one before, or none): ", "question (empty: the end): "):
            if prompt:
                sys.stderr.write(what)
                sys.stderr.flush()
            words.append(sys.stdin.readline())
        if not words[1].strip():
            return
        yield words[0].strip(), words[1].strip()


VERBS = {"ask": Verb(EPILOG, _add, _run)}
