"""An answer as people read it: what was decided and why, on a terminal, in a notebook, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from fusevlm import displays

ANSWER, ABSTAIN = "answer", "abstain"
VERSION = 2  # of the JSON form
WIDTH = 24  # cells of a bar
BARS = {  # what each bar is about
    "aleatoric": "the picture and the question, before any answer",
    "epistemic": "its answers",
    "competence": "how often it went wrong on the like",
    "novelty": "unlike the calibration",
}
HIGH, HIGH_NOVELTY = 0.9, 0.99  # from which a bar is marked
LONGEST = 60  # characters of a neighbour's question or answer
MOST_SAMPLES = 5  # different ones that are shown
Line = Sequence[tuple[str, str]]  # pieces of text with their style
GOOD, BAD, DIM, BOLD, PLAIN = "good", "bad", "dim", "bold", ""


@dataclass(frozen=True, repr=False)
class Answer:
    """An answer, whether to trust it, and why.

    ``print`` shows it as ``fusevlm ask`` does, a notebook with its bars; ``as_dict`` is its JSON.

    question    what was asked
    answer      the judged answer; shown also where the decision is to abstain
    decision    answer or abstain
    reason      of abstaining, as Decisions has it; empty where the answer is given
    why         the same in a sentence, and what stands out where the answer is given
    cause       novelty, aleatoric, competence, epistemic, or nothing
    side        of the input that it is about: picture, question, or neither
    p_wrong     the probability that this answer is wrong
    risk        wanted error rate of the set of all answers that are given
    delta       the chance that it does not hold
    u           the score u*, which is compared with the threshold
    m0          prior mean of u, from the input alone
    evidence    what the answers say of u
    m_post      posterior mean of u
    sigma_post  posterior standard deviation of u
    bars        by name, from 0 to 1: the share of calibration queries with less of it
    added       what each source adds to the posterior mean
    threshold   answer iff u is at most this; None: nothing can be certified
    coverage    the share of calibration queries that are answered at this threshold
    novelty     p-value of being like the calibration's queries; None: not judged
    samples     sampled answers with counts, most frequent first
    generated   answers that were generated for it, the judged one among them
    neighbours  the nearest calibration queries: question, answer, whether it was wrong
    model       the model's name
    notes       what else is worth saying, such as what the model knows
    """

    question: str
    answer: str
    decision: str
    reason: str
    why: str
    cause: str
    side: str
    p_wrong: float
    risk: float
    delta: float
    threshold: float | None
    coverage: float
    u: float
    m0: float
    evidence: float
    m_post: float
    sigma_post: float
    novelty: float | None
    bars: Mapping[str, float]
    added: Mapping[str, float]
    samples: Mapping[str, int]
    generated: float = 1.0
    neighbours: Sequence[Mapping[str, Any]] = ()
    model: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data, with the version of its form."""
        found: dict[str, Any] = {"version": VERSION, **vars(self)}
        for name in ("bars", "added", "samples"):
            found[name] = dict(found[name])
        found["n_samples"] = sum(self.samples.values())
        found["neighbours"] = [dict(one) for one in self.neighbours]
        found["notes"] = list(self.notes)
        return found

    def __repr__(self) -> str:
        return "\n".join("".join(text for text, _ in line) for line in self.lines())

    def lines(self) -> list[Line]:
        """The whole in lines of styled pieces; the decision comes first."""
        return [
            *self._verdict(),
            [],
            *self._meaning(),
            [],
            *self._bars(),
            [],
            *self._samples(),
            *self._neighbours(),
            *[line for note in self.notes for line in ([], [(f"note: {note}", DIM)])],
        ]

    def _verdict(self) -> list[Line]:
        said = self.answer or "(nothing)"
        if self.decision == ANSWER:
            return [[(said, GOOD)], [(self.why, PLAIN)]]
        return [
            [("I don't know. ", BAD), (self.why, PLAIN)],
            [("It would say: ", DIM), (said, DIM)],
        ]

    def _meaning(self) -> list[Line]:
        """P(wrong) of this answer, as against the risk of a set of answers."""
        kept = f"with probability {1 - self.delta:g}"
        if self.threshold is None:
            rule = f"No threshold can be certified for risk {self.risk:g}: it answers nothing."
        else:
            rule = (
                f"At risk {self.risk:g} it answers {self.coverage:.0%} of queries like the "
                f"calibration's; of those answers at most {self.risk:.0%} are wrong ({kept})."
            )
        wrong = f"{self.p_wrong:.2f}" if self.p_wrong == self.p_wrong else "not known"
        if self.cause == "novelty":
            wrong += ", if it were like the calibration's queries"
        return [
            [("P(wrong) ", BOLD), (wrong, BOLD), (f"  {self._rule()}", DIM)],
            [(rule, DIM)],
        ]

    def _rule(self) -> str:
        if self.threshold is None:
            return f"u* {self.u:.2f}"
        sign = "≤" if self.u <= self.threshold else ">"
        return f"u* {self.u:.2f} {sign} {self.threshold:.2f}"

    def _bars(self) -> list[Line]:
        found: list[Line] = []
        for name, about in BARS.items():
            if name in self.bars:
                value = self.bars[name]
                full = round(WIDTH * value)
                style = BAD if _high(name, value) else PLAIN
                bar = [("█" * full, style), ("░" * (WIDTH - full), DIM)]
                found.append(
                    [(f"{name:<11}", PLAIN), *bar, (f" {value:4.0%}  ", PLAIN), (about, DIM)]
                )
        if found:
            found.append([("           more than in so many of the calibration's queries", DIM)])
        return found

    def _samples(self) -> list[Line]:
        n = sum(self.samples.values())
        if not n:
            return [[("no samples: the answer alone decided", PLAIN)]]
        shown = list(self.samples.items())[:MOST_SAMPLES]
        said = ", ".join(f"{count} × {_short(text) or '(nothing)'}" for text, count in shown)
        rest = len(self.samples) - len(shown)
        return [[(f"{n} samples: ", PLAIN), (said + (f", {rest} others" if rest else ""), PLAIN)]]

    def _neighbours(self) -> list[Line]:
        if not self.neighbours:
            return []
        lines: list[Line] = [[], [("the nearest calibration queries", PLAIN)]]
        for one in self.neighbours:
            mark = ("✗ ", BAD) if one["wrong"] else ("✓ ", GOOD)
            verdict = "wrong" if one["wrong"] else "right"
            text = f"{_short(one['question'])} → {_short(one['answer']) or '(nothing)'}"
            lines.append([("  ", PLAIN), mark, (text, PLAIN), (f"  {verdict}", DIM)])
        return lines

    def _facts(self) -> dict[str, str]:
        """A row of a table of answers."""
        return {
            "question": self.question,
            "answer": self.answer,
            "decision": self.decision,
            "P(wrong)": f"{self.p_wrong:.2f}" if self.p_wrong == self.p_wrong else "not known",
            "why": self.why,
        }

    def _repr_html_(self) -> str:
        edge = displays.GOOD if self.decision == ANSWER else displays.BAD
        top = _html([*self._verdict(), [], *self._meaning()])
        rest = _html(
            [*self._samples(), *self._neighbours(), *[[(f"note: {n}", DIM)] for n in self.notes]]
        )
        rows = "".join(map(self._html_bar, (name for name in BARS if name in self.bars)))
        scale = "each: more than in so many of the calibration's queries"
        bars = f"<table>{rows}</table>{_html([[(scale, DIM)], [], []])}" if rows else "<br><br>"
        return f'<div style="border-left:4px solid {edge};padding-left:1em">{top}{bars}{rest}</div>'

    def _html_bar(self, name: str) -> str:
        value = self.bars[name]
        bar = displays.html_bar(value, displays.BAD if _high(name, value) else "currentColor")
        return (
            f"<tr><th>{escape(name)}</th><td>{bar}</td><td>{value:.0%}</td>"
            f"<td>{escape(BARS[name])}</td></tr>"
        )


def _high(name: str, value: float) -> bool:
    """Whether a bar is marked."""
    return value >= (HIGH_NOVELTY if name == "novelty" else HIGH)


def _html(lines: Sequence[Line]) -> str:
    """Lines of styled pieces, all of it escaped; colour is for marks, words are the page's own."""
    weight = {GOOD: "font-weight:600", BAD: "font-weight:600", BOLD: "font-weight:600",
              DIM: "opacity:.75"}  # fmt: skip
    marks = {("✗ ", BAD): displays.BAD, ("✓ ", GOOD): displays.GOOD}
    rows = []
    for line in lines:
        pieces = []
        for text, style in line:
            colour = f";color:{marks[text, style]}" if (text, style) in marks else ""
            looks = f' style="{weight[style]}{colour}"' if style in weight else ""
            pieces.append(f"<span{looks}>{escape(text)}</span>")
        rows.append("".join(pieces))
    return "<br>".join(rows)


def _short(text: str) -> str:
    """One line, not longer than fits one."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
