"""What results.json holds, as far as its readers rely on it; a file with something else is refused.

Tables, pages and comparisons are made of it, also of a run that somebody else sent.
"""

# without postponed annotations, which would hide what is not required
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from fusevlm.errors import ArtefactError
from fusevlm.render.results import ANSWERED, CONVENTIONS, METRICS
from fusevlm.store.declared import need_fields


class Figure(TypedDict):
    """An estimate with its interval."""

    estimate: float
    low: float | None
    high: float | None


class Settings(TypedDict):
    """Of the evaluation."""

    risk: float
    risks: list[float]
    delta: float
    level: float


class Slice(TypedDict):
    """Figures of every method on some queries."""

    slice: str
    queries: int
    base_accuracy: Figure
    methods: dict[str, dict[str, Figure | None]]


class Difference(TypedDict):
    """Of a method to the best baseline, or of both sources to one."""

    difference: float
    low: float
    high: float
    p_holm: NotRequired[float]
    fused: NotRequired[str]


class Price(TypedDict):
    """What samples cost and bring under one rule."""

    method: str
    risk: float
    answers: float
    tokens: float | None
    coverage: float
    observed: float | None
    budget: NotRequired[float | None]
    shares: NotRequired[list[float]]
    samples: NotRequired[float]


class Rounds(TypedDict):
    """Samples in rounds, and beside them fixed numbers of samples."""

    absent: str
    tiers: list[str]
    rows: list[Price]
    fixed: list[Price]


class Risk(TypedDict):
    """What one wanted risk would bring."""

    wanted: float
    threshold: float | None
    certified: float
    answered: int
    coverage: float
    risk: float | None


class Severity(TypedDict):
    """The mean prior statistic by severity."""

    corruption: str
    levels: list[float]
    mean_s: list[Figure]
    spearman: float | None


class Apart(TypedDict):
    """Queries out of distribution against those in it."""

    group: str
    queries: str
    n: int
    n_reference: int
    evidence: Figure | None
    p_wrong: Figure | None


class Causes(TypedDict, total=False):
    """Whether the sources speak of their own causes."""

    prior_by_severity: list[Severity]
    method: str
    against_in_distribution: list[Apart]


KINDS: dict[str, Any] = {
    "settings": Settings, "slices": list[Slice], "best_baseline": str | None,
    "differences": dict[str, Difference], "gains": dict[str, Difference], "causes": Causes,
    "risks": dict[str, list[Risk]], "rules": dict[str, dict[str, float] | None],
    "absent": dict[str, str], "rounds": Rounds, "calibration": int,
}  # fmt: skip


def check_results(found: Mapping[str, Any], where: object, cure: str) -> None:
    """Refuse results that are not what stage evaluate writes."""
    need_fields(found, KINDS, where, cure)
    slices, rounds = found["slices"], found["rounds"]
    certified = [f"certified_{risk:g}" for risk in found["settings"]["risks"]]
    metrics = {*METRICS, *ANSWERED, *CONVENTIONS, "brier", *certified}
    names = set(slices[0]["methods"]) if slices else set()
    for number, part in enumerate(slices):
        wanted = {"auroc"} if number else metrics  # only the first is of all queries
        for name in names:
            if not wanted <= part["methods"].get(name, {}).keys():
                raise ArtefactError(f"{where}: {part['slice']!r} lacks figures of {name}. {cure}")
    whole = bool(slices) and all(
        "budget" in row and len(row.get("shares", ())) == len(rounds["tiers"])
        for row in rounds["rows"]
    )
    whole = whole and all("samples" in row for row in rounds["fixed"])
    whole = whole and all("p_holm" in row for row in found["differences"].values())
    whole = whole and all("fused" in row for row in found["gains"].values())
    causes = found["causes"].get("prior_by_severity", [])
    whole = whole and all(len(row["levels"]) == len(row["mean_s"]) for row in causes)
    if not whole:
        raise ArtefactError(f"{where} lacks some of its figures. {cure}")
