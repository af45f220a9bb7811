"""Is the reason that ``ask`` gives true? Reasons against known causes, on a finished demo.

``python -m benchmarks.reasons [runs/demo] [--page docs/ask.md]``

Causes are known for the embedded queries: a corruption of severity 1–2 or 3–5, a phrasing that was
never seen in training, a colour–shape pair held out of it; and for the pictures of scikit-learn and
questions from elsewhere that are asked here. The table counts the reason (``cause`` of the fit,
with the side of the input) among the queries that are not answered at risk .05, and among all.
With ``--page`` the tables, and ten outputs of ``ask``, one for each kind of query, are put into
that page, between the marks that it has for them.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusevlm.pipeline.data import TEST, read_asked
from fusevlm.pipeline.evaluate import read_predictions
from fusevlm.render.text import layout
from fusevlm.types import Query

NOTHING = "nothing stands out"
REASONS = (
    "aleatoric (picture)", "aleatoric (question)", "aleatoric", "competence", "epistemic",
    "novelty", NOTHING,
)  # fmt: skip
QUESTIONS = Path(__file__).with_name("elsewhere.txt")


def cause_of(query: Query) -> str:
    """What is known to be wrong with a query; the strongest of several."""
    facts = query.metadata
    strange = facts.get("unseen_phrasing"), facts.get("held_out_pair")
    if facts.get("severity", 0) >= 3:
        return "corrupted, severity 3–5" + (" and unseen" if any(strange) else "")
    if facts.get("unseen_phrasing"):
        return "unseen phrasing"
    if facts.get("held_out_pair"):
        return "held-out pair"
    return "corrupted, severity 1–2" if facts.get("severity", 0) >= 1 else "clean"


def reason_of(cause: str, side: str) -> str:
    if not cause:
        return NOTHING
    if cause == "competence":
        return "competence"
    return f"{cause} ({side})" if side and cause == "aleatoric" else cause


def table(rows: dict[str, Counter[str]]) -> str:
    header = ("cause", "queries", *REASONS)
    lines = []
    for cause, counts in rows.items():
        total = sum(counts.values())
        cells = [f"{counts[reason] / total:.0%}" if counts[reason] else "–" for reason in REASONS]
        lines.append((cause, str(total), *cells))
    return layout(header, lines)


def of_run(run: Path) -> dict[str, dict[str, Counter[str]]]:
    found = read_predictions(run)
    queries = {query.id: query for query in read_asked(run, (TEST,))}
    counts: dict[str, dict[str, Counter[str]]] = {"all": {}, "not answered": {}}
    rows = zip(
        found["query_id"], found["practical.cause"], found["practical.side"],
        found["practical.answered_guaranteed"], strict=True,
    )  # fmt: skip
    for name, cause, side, answered in rows:
        known, reason = cause_of(queries[name]), reason_of(cause, side)
        counts["all"].setdefault(known, Counter())[reason] += 1
        if not answered:
            counts["not answered"].setdefault(known, Counter())[reason] += 1
    return {kind: dict(sorted(table.items())) for kind, table in counts.items()}


def elsewhere(assistant: Any) -> dict[str, Counter[str]]:
    """Photographs, and questions that have nothing to do with shapes."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    from fusevlm.data.questions import queries

    own = queries("test", limit=40)
    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    texts = [line for line in QUESTIONS.read_text().splitlines() if line.strip()]
    found: dict[str, Counter[str]] = {}
    asked = [("photograph", photo, query.question) for photo in photos for query in own[:15]]
    asked += [
        ("question from elsewhere", query.images[0], text)
        for text, query in zip(texts, own * 10, strict=False)
    ]
    for kind, picture, text in asked:
        answer = assistant.ask(picture, text)
        found.setdefault(kind, Counter())[reason_of(answer.cause, answer.side)] += 1
    return found


def examples(assistant: Any, run: Path) -> dict[str, str]:
    """Ten outputs of ask, one for each kind of query: its title and what was printed."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    asked = read_asked(run, (TEST,))
    table = read_predictions(run)
    place = {name: k for k, name in enumerate(table["query_id"])}

    def first(wanted: Any, *, answered: bool | None = None) -> Query:
        for query in asked:
            k = place.get(query.id)
            if k is None or not wanted(query.metadata):
                continue
            if answered is None or table["practical.answered_guaranteed"][k] == answered:
                return query
        raise LookupError

    chosen: dict[str, tuple[Any, str]] = {}

    def add(title: str, query: Query) -> None:
        chosen[title] = (query.images[0], query.question)

    plain = lambda m: m["severity"] == 0 and not m["unseen_phrasing"] and not m["held_out_pair"]  # noqa: E731
    add("A clean picture", first(plain, answered=True))
    for kind in ("noise", "blur", "occlusion", "low_contrast", "pixelation"):
        worst = first(lambda m, k=kind: m["corruption"] == k and m["severity"] == 5, answered=False)
        add(f"Corrupted: {kind.replace('_', ' ')}, severity 5", worst)
    add("A phrasing it never saw", first(lambda m: m["unseen_phrasing"] and m["severity"] == 0,
                                         answered=False))  # fmt: skip
    add("A colour–shape pair it never saw", first(lambda m: m["held_out_pair"]
                                                  and m["severity"] == 0))  # fmt: skip
    photo = Image.fromarray(load_sample_images().images[0])
    chosen["A photograph"] = (photo, "what color is the shape?")
    chosen["A question from elsewhere"] = (first(plain).images[0], "what is the capital of France?")
    return {
        title: f'$ fusevlm ask … "{question}"\n{assistant.ask(picture, question)}'
        for title, (picture, question) in chosen.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", type=Path, default=Path("runs/demo"))
    parser.add_argument("--page", type=Path, metavar="FILE", help="put all of it into this page")
    args = parser.parse_args(arguments)
    logging.getLogger("fusevlm").setLevel(logging.ERROR)
    import fusevlm

    found = of_run(args.run)
    assistant = fusevlm.load()
    told = []
    for kind, rows in found.items():
        more = elsewhere(assistant) if kind == "all" else {}
        total = sum(sum(counts.values()) for counts in rows.values())
        told.append(f"{kind} ({total} test queries)\n{table({**rows, **more})}\n")
    print("\n".join(told))
    if args.page:
        outputs = examples(fusevlm.load(args.run), args.run).items()
        parts = [f"### {title}\n\n```text\n{text}\n```\n" for title, text in outputs]
        page = args.page.read_text()
        page = put(page, "reasons", "```text\n" + "\n".join(told) + "```\n")
        args.page.write_text(put(page, "ten questions", "\n".join(parts)))
    return 0


def put(page: str, mark: str, text: str) -> str:
    """The page with ``text`` between ``<!-- mark -->`` and ``<!-- end -->``."""
    head, rest = page.split(f"<!-- {mark} -->\n", 1)
    _, tail = rest.split("<!-- end -->", 1)
    return f"{head}<!-- {mark} -->\n{text}<!-- end -->{tail}"


if __name__ == "__main__":
    sys.exit(main())
