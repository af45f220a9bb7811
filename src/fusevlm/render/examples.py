"""Example queries in successes and failures: which ones, and what is shown of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fusevlm.checks import BoolArray, FloatArray

SUCCESS, FAILURE = "successes", "failures"
# group of queries: what it says about the method
GROUPS: dict[str, str] = {
    "confident and right": SUCCESS,
    "unsure and wrong": SUCCESS,
    "confident and wrong": FAILURE,
    "unsure and right": FAILURE,
}
HOW = (
    "Confident is the surer half of the test queries by u*, unsure the other half; of each group "
    "the most extreme come first."
)


@dataclass(frozen=True)
class Example:
    """A query as a figure or page shows it; None where the method has no such number."""

    picture: bytes  # PNG, or empty
    question: str
    references: Sequence[str]
    answer: str
    wrong: bool
    samples: Sequence[tuple[str, int]]  # text and count, most frequent first
    u: float
    rank: int  # of u among the test queries, from 1, the surest
    of: int  # test queries
    p_wrong: float
    m0: float | None
    evidence: float | None
    ntl: float | None
    decision: str  # answer or abstain, or empty where the method has no threshold
    reason: str = ""  # of an abstention


def choose(u: FloatArray, wrong: BoolArray, count: int) -> dict[str, list[int]]:
    """At most ``count`` rows, taken from the groups in turn; the most extreme of each come first.

    Every row is in one group: right or wrong, in the surer half by ``u`` or not. Equal scores keep
    the order of the queries.
    """
    order = np.argsort(u, kind="stable")
    sure, unsure = order[: len(order) // 2], order[len(order) // 2 :][::-1]
    parts = {
        "confident and right": sure[~wrong[sure]],
        "unsure and wrong": unsure[wrong[unsure]],
        "confident and wrong": sure[wrong[sure]],
        "unsure and right": unsure[~wrong[unsure]],
    }
    waiting = {group: [int(i) for i in rows[: max(0, count)]] for group, rows in parts.items()}
    found: dict[str, list[int]] = {group: [] for group in GROUPS}
    while count > 0 and any(waiting.values()):
        for group in GROUPS:
            if count > 0 and waiting[group]:
                found[group].append(waiting[group].pop(0))
                count -= 1
    return found


def numbers(example: Example) -> list[str]:
    """What the method says of a query, a dash where it has nothing to say."""

    def shown(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    return [
        f"u* {example.u:.3f} (rank {example.rank} of {example.of})",
        f"P(wrong) {example.p_wrong:.3f}",
        f"m0 {shown(example.m0)}",
        f"evidence {shown(example.evidence)}",
        f"NTL {shown(example.ntl)}",
    ]


def sections(
    groups: Mapping[str, Sequence[Example]],
) -> list[tuple[str, list[tuple[str, Sequence[Example]]]]]:
    """Successes, then failures, each with its groups that hold anything."""
    return [
        (kind, [(g, groups[g]) for g, of in GROUPS.items() if of == kind and groups.get(g)])
        for kind in (SUCCESS, FAILURE)
    ]
