"""One self-contained HTML page of a run: a risk to move, charts, tables, a gallery of queries.

Templates, style and script lie in ``assets``; the libraries that draw the charts come with them, so
that nothing is loaded from elsewhere. Text of a run is escaped by the template or written by the
script as text, never as HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusevlm.checks import extra
from fusevlm.render import costs

ASSETS = Path(__file__).parent / "assets"
LIBRARIES = ("d3.min.js", "plot.min.js")
# figure of a run: its title
TITLES = {
    "fuse-ntl": "The score against next-token likelihood (the paper's Fig. 1)",
    "roc": "ROC",
    "reliability": "Reliability",
    "rejection-accuracy": "Rejection–accuracy",
    "risk-coverage": "Risk–coverage",
    "densities": "Scores of right and wrong answers",
    "cost-coverage": "Certified coverage against generated answers",
    "qualitative": "Successes and failures",
}
# columns of the methods' table
METRICS = {"auroc": "AUROC", "ece": "ECE", "brier": "Brier", "aurac": "AURAC"}


def render(template: str, script: str, data: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
    """A page: ``shown`` goes into its template, ``data`` to its script."""
    jinja = extra("jinja2", "a report", "report")
    markup = extra("markupsafe", "a report", "report").Markup
    environment = jinja.Environment(
        loader=jinja.FileSystemLoader(ASSETS), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    made: str = environment.get_template(template).render(
        **shown,
        css=markup(_read("report.css")),
        data=markup(as_json(data)),
        libraries=markup("\n".join(_script(name) for name in LIBRARIES)),
        script=markup(_script(script)),
    )
    return made


def as_json(data: Any) -> str:
    """JSON that a script element can hold: nothing in it ends the element or begins a comment."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text.encode("utf-8", "backslashreplace").decode()


def _read(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _script(name: str) -> str:
    """A script as the inside of an element, which nothing in its strings may end."""
    return _read(name).replace("</script", "<\\/script").replace("<!--", "<\\!--")


def figure(row: Mapping[str, Any] | None) -> dict[str, str]:
    """Estimate and interval as a cell shows them."""
    if row is None:
        return {"value": "–"}
    if row["low"] is None:
        return {"value": f"{row['estimate']:.3f}"}
    return {"value": f"{row['estimate']:.3f}", "range": f"{row['low']:.3f}…{row['high']:.3f}"}


def difference(row: Mapping[str, Any] | None) -> dict[str, str]:
    """A paired difference with its interval."""
    if row is None:
        return {"value": "–"}
    return {"value": f"{row['difference']:+.3f}", "range": f"{row['low']:+.3f}…{row['high']:+.3f}"}


def methods_table(
    results: Mapping[str, Any], titles: Mapping[str, str], chosen: str
) -> dict[str, Any]:
    """All methods with their figures, certified coverages, and difference to the best baseline."""
    whole = results["slices"][0]["methods"]
    risks = results["settings"]["risks"]
    best = results.get("best_baseline", "")
    versus = f"AUROC − {titles.get(best, best)}" if best else ""
    rows = [
        {
            "title": titles[name],
            "chosen": name == chosen,
            "cells": [
                *(figure(row.get(metric)) for metric in METRICS),
                *(figure(row.get(f"certified_{risk:g}")) for risk in risks),
                *([difference(results["differences"].get(name))] if versus else []),
            ],
        }
        for name, row in whole.items()
    ]
    certified = [f"certified at {risk:.3g}" for risk in risks]
    return {"header": ["method", *METRICS.values(), *certified, *filter(None, [versus])],
            "rows": rows}  # fmt: skip


def slices_table(results: Mapping[str, Any], titles: Mapping[str, str]) -> dict[str, Any]:
    """AUROC of every method in every slice."""
    cuts = results["slices"][1:]
    names = list(results["slices"][0]["methods"])
    rows = [
        {
            "title": cut["slice"],
            "cells": [
                {"value": str(cut["queries"])},
                figure(cut["base_accuracy"]),
                *(figure(cut["methods"][name]["auroc"]) for name in names),
            ],
        }
        for cut in cuts
    ]
    header = ["slice", "queries", "accuracy", *(f"AUROC, {titles[name]}" for name in names)]
    return {"header": header, "rows": rows}


def causes_tables(causes: Mapping[str, Any], titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """Do the sources of uncertainty speak of their own causes? As far as these are known."""
    found = []
    if "prior_by_severity" in causes:
        table = causes["prior_by_severity"]
        levels = sorted({level for row in table for level in row["levels"]})
        rows = []
        for row in table:
            means = dict(zip(row["levels"], row["mean_s"], strict=True))
            rank = "–" if row["spearman"] is None else f"{row['spearman']:.2f}"
            cells = [{"value": rank}, *(figure(means.get(level)) for level in levels)]
            rows.append({"title": row["corruption"], "cells": cells})
        header = ["corruption", "Spearman", *(f"severity {level:g}" for level in levels)]
        found.append(
            {"title": "Mean prior statistic s by severity", "header": header, "rows": rows}
        )
    if "against_in_distribution" in causes:
        rows = [
            {
                "title": f"{row['group']}: {row['queries']}",
                "cells": [
                    {"value": f"{row['n']} / {row['n_reference']}"},
                    figure(row["evidence"]),
                    figure(row["p_wrong"]),
                ],
            }
            for row in causes["against_in_distribution"]
        ]
        name = causes["method"]
        found.append(
            {
                "title": f"Difference to queries in distribution, {titles.get(name, name)}",
                "header": ["group", "queries", "evidence", "P(wrong)"],
                "rows": rows,
            }
        )
    return found


def costs_tables(rounds: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What samples cost and bring: drawn in rounds, and in fixed numbers."""
    return [
        {
            "title": what[0].upper() + what[1:],
            "header": header,
            "rows": [
                {"title": first, "cells": [{"value": cell} for cell in rest]}
                for first, *rest in rows
            ],
        }
        for what, header, rows in costs.tables(rounds)
    ]


def headline(results: Mapping[str, Any], chosen: str, title: str, model: str) -> dict[str, Any]:
    """What was asked, and the run's own certified figures."""
    whole, settings = results["slices"][0], results["settings"]
    row = whole["methods"][chosen]
    sure = f"holds with probability {1 - settings['delta']:g}"
    cards = [
        {"title": f"answered at risk ≤ {risk:.3g}", "value": _share(row.get(f"certified_{risk:g}")),
         "note": f"of the test queries, by {title}; {sure}"}
        for risk in settings["risks"]
    ]  # fmt: skip
    cards.append(
        {"title": "right if all are answered", "value": _share(whole["base_accuracy"]),
         "note": f"{whole['queries'] - whole['wrong']} of {whole['queries']}"}
    )  # fmt: skip
    auroc = figure(row["auroc"])
    cards.append({"title": "AUROC", "value": auroc["value"], "note": auroc.get("range", "")})
    asked = (
        f"{whole['queries']} test queries were asked of {model}; {whole['wrong']} answers are "
        f"wrong. When can its answers be trusted?"
    )
    return {"asked": asked, "cards": cards}


def _share(row: Mapping[str, Any] | None) -> str:
    return "–" if row is None else f"{row['estimate']:.1%}"


def files_of(names: Sequence[str], kinds: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """The files of each figure beside the page."""
    return [
        {"title": TITLES[name], "names": [f"{name}.{kind}" for kind in kinds[name]]}
        for name in names
    ]
