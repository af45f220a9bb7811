"""What samples cost and bring: coverage that is certified against answers that are generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusevlm.render.plots import Drawing, draw, legend, looks

ADAPTIVE = "adaptive"  # the method of rows that are drawn in rounds
TITLES = {  # of what is no method of a run
    ADAPTIVE: "FUSE in rounds",
    "adaptive_consistency": "Adaptive-Consistency",
    "confidence_guided": "CGES",
}
HEADER = ("answers", "tokens", "certified", "observed risk")
ROUNDS = (
    "in rounds: certified coverage with samples drawn only where the decision is open; answers and "
    "tokens generated for a query, on average"
)
FIXED = "the same with fixed numbers of samples, and of votes that stop early"


def tables(rounds: Mapping[str, Any]) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """(what it is, header, rows) of rounds and of fixed numbers, as far as there are any."""
    found: list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]] = []
    if rounds["rows"]:
        rows = [
            (f"{row['risk']:g}", wanted(row), *_price(row), stopped(rounds["tiers"], row))
            for row in rounds["rows"]
        ]
        found.append((ROUNDS, ("risk", "samples wanted", *HEADER, "stopped after"), rows))
    if rounds["fixed"]:
        fixed = [
            (row["method"], f"{row['risk']:g}", f"{row['samples']:g}", *_price(row))
            for row in rounds["fixed"]
        ]
        found.append((FIXED, ("method", "risk", "samples", *HEADER), fixed))
    return found


def wanted(row: Mapping[str, Any]) -> str:
    """The budget of a row in rounds."""
    return "as needed" if row["budget"] is None else f"{row['budget']:g}"


def stopped(tiers: Sequence[str], row: Mapping[str, Any]) -> str:
    """Which share of the queries stopped where."""
    return ", ".join(
        f"{share:.0%} {tier}" for tier, share in zip(tiers, row["shares"], strict=True) if share
    )


def _price(row: Mapping[str, Any]) -> tuple[str, ...]:
    tokens, observed = row["tokens"], row["observed"]
    return (
        f"{row['answers']:.2f}",
        "–" if tokens is None else f"{tokens:.1f}",
        f"{row['coverage']:.3f}",
        "–" if observed is None else f"{observed:.3f}",
    )


def lines(rows: Sequence[Mapping[str, Any]], risk: float) -> dict[str, list[tuple[float, float]]]:
    """(answers, coverage) of each method at a risk, cheapest first."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["risk"] == risk:
            found.setdefault(row["method"], []).append((row["answers"], row["coverage"]))
    return {method: sorted(places) for method, places in found.items()}


def points(rounds: Mapping[str, Any], titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """What each rule costs and brings, with its title; of those that have one."""
    known = {**titles, **TITLES}
    names = ("risk", "budget", "samples", "answers", "tokens", "coverage", "observed")
    return [
        {"method": known[row["method"]], **{name: row.get(name) for name in names}}
        for row in [*rounds["rows"], *rounds["fixed"]]
        if row["method"] in known
    ]


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The same as columns, for a file of numbers."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def draw_costs(rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """Certified coverage against generated answers, a panel for each risk; votes are points."""
    risks = sorted({row["risk"] for row in rows})

    def plot(figure: Any) -> None:
        panels = figure.subplots(1, len(risks), sharey=True, squeeze=False)[0]
        for axes, risk in zip(panels, risks, strict=True):
            for number, (method, places) in enumerate(lines(rows, risk).items()):
                x, y = zip(*places, strict=True)
                axes.plot(x, y, label=method, **looks(number), marker="o", markersize=3.5)
            axes.set_xscale("log", base=2)
            axes.set_xlabel("generated answers a query")
            axes.set_title(f"risk {risk:g}")
        panels[0].set_ylabel("certified coverage")
        legend(figure, panels[0], columns=3)

    return draw((3.2 * len(risks) + 0.6, 3.6), plot)
