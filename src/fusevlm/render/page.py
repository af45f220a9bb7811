"""One self-contained HTML page: figures, plots and example queries. Everything is escaped."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from fusevlm.render.examples import HOW, Example, numbers, sections
from fusevlm.render.plots import INK
from fusevlm.render.results import ANSWERED

METRICS = {"auroc": "AUROC", "aurac": "AURAC", "ece": "ECE", **ANSWERED}
# figure of a run: its title
TITLES = {
    "fuse-ntl": "The score against next-token likelihood (the paper's Fig. 1)",
    "roc": "ROC",
    "reliability": "Reliability",
    "rejection-accuracy": "Rejection–accuracy",
    "risk-coverage": "Risk–coverage",
    "densities": "Scores of right and wrong answers",
    "qualitative": "Successes and failures",
}
WIDE = ("fuse-ntl",)  # over all columns of the page
NOT_INLINE = ("qualitative",)  # its examples are on the page as text
STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#5b646e;--line:#d5dae0;--back:#fff;--card:#f6f8fa;
--good:#1f7a4d;--bad:#b3362a}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--dim:#9aa4ae;--line:#3a424b;--back:#15181c;
--card:#1d2227;--good:#57c08c;--bad:#f08a7d}}
body{margin:0 auto;max-width:72rem;padding:1.5rem;background:var(--back);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}p{max-width:46rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600}th:first-child,td:first-child{text-align:left}small{color:var(--dim)}
.plots,.examples{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(20rem,1fr))}
.plots svg{width:100%;height:auto}.card{background:var(--card);padding:1rem;border-radius:.5rem}
.card img{width:8rem;max-height:8rem;object-fit:contain;image-rendering:pixelated;float:right}
.card h4{margin:0 0 .4rem;font-size:1rem;overflow-wrap:anywhere}.card ul{padding-left:1.1rem}
.answer{color:var(--good)}.abstain{color:var(--bad)}.plots .all{grid-column:1/-1}
.successes{border-left:.3rem solid var(--good)}.failures{border-left:.3rem solid var(--bad)}
"""


def render_page(
    name: str,
    results: Mapping[str, Any],
    figures: Mapping[str, str],
    groups: Mapping[str, Sequence[Example]],
    method: str,
    left_out: Mapping[str, str] | None = None,
    *,
    pdf: bool = True,
) -> str:
    """The page as text; ``figures`` are SVG by name, ``left_out`` what is not drawn and why."""
    whole = results["slices"][0]
    settings = results["settings"]
    parts = [
        f"<h1>{escape(name)}</h1>",
        f"<p>{whole['queries']} test queries, {whole['wrong']} answered wrongly; accuracy without "
        f"abstaining {_figure(whole['base_accuracy'])}. Wanted risk {settings['risk']:g}; with the "
        f"guarantee it holds with probability {1 - settings['delta']:g} over calibration sets. "
        f"Intervals: {settings['level']:.0%} bootstrap over units (queries of one image).</p>",
        "<h2>Methods</h2>",
        _table(
            ["method", *METRICS.values()],
            [[m, *[_figure(t.get(k)) for k in METRICS]] for m, t in whole["methods"].items()],
        ),
        "<h2>Figures</h2>",
        '<div class="plots">',
        *[_plot(key, svg) for key, svg in figures.items() if key not in NOT_INLINE],
        "</div>",
        _index(figures, left_out or {}, pdf=pdf),
        *_slices(results),
        *_causes(results.get("causes", {})),
        *_examples(groups, method),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(name)} – fusevlm</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _figure(row: Mapping[str, Any] | None) -> str:
    """Estimate and interval as HTML."""
    if row is None:
        return "–"
    if row["low"] is None:
        return f"{row['estimate']:.3f}"
    return f"{row['estimate']:.3f} <small>{row['low']:.3f}…{row['high']:.3f}</small>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first cell of a row is text and is escaped; the others are made here."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "\n".join(
        f"<tr><td>{escape(first)}</td>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>\n{body}</table></div>'


def _plot(key: str, svg: str) -> str:
    """The SVG element alone, its ink following the page's colour."""
    element = svg[svg.index("<svg") :].replace(INK, "currentColor")
    # matplotlib's ids repeat from figure to figure
    element = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{key}-", element)
    kind = "card all" if key in WIDE else "card"
    return f'<figure class="{kind}"><figcaption>{TITLES[key]}</figcaption>{element}</figure>'


def _index(figures: Mapping[str, str], left_out: Mapping[str, str], *, pdf: bool) -> str:
    """The files beside the page, and what could not be drawn."""
    files = "".join(f"<li>{TITLES[key]}: <code>{key}.svg</code></li>" for key in figures)
    gone = "".join(
        f"<li>{escape(TITLES.get(key, key))}: left out, {escape(why)}</li>"
        for key, why in left_out.items()
    )
    also = ", each as <code>.pdf</code> too" if pdf else ""
    return f"<p>Files beside this page{also}:</p><ul>{files}{gone}</ul>"


def _slices(results: Mapping[str, Any]) -> list[str]:
    cuts = results["slices"][1:]
    if not cuts:
        return []
    methods = list(cuts[0]["methods"])
    rows = [
        [
            cut["slice"],
            str(cut["queries"]),
            _figure(cut["base_accuracy"]),
            *[_figure(cut["methods"][m]["auroc"]) for m in methods],
        ]
        for cut in cuts
    ]
    header = ["slice", "queries", "accuracy", *[f"AUROC, {m}" for m in methods]]
    return ["<h2>Slices</h2>", _table(header, rows)]


def _causes(causes: Mapping[str, Any]) -> list[str]:
    parts = []
    if "prior_by_severity" in causes:
        table = causes["prior_by_severity"]
        levels = sorted({level for row in table for level in row["levels"]})
        rows = []
        for row in table:
            means = dict(zip(row["levels"], row["mean_s"], strict=True))
            rank = "–" if row["spearman"] is None else f"{row['spearman']:.2f}"
            rows.append([row["corruption"], rank, *[_figure(means.get(at)) for at in levels]])
        header = ["corruption", "Spearman", *[f"severity {at:g}" for at in levels]]
        parts += ["<h2>Mean prior statistic s by severity</h2>", _table(header, rows)]
    if "against_in_distribution" in causes:
        rows = [
            [
                f"{row['group']}: {row['queries']}",
                f"{row['n']} / {row['n_reference']}",
                _figure(row["evidence"]),
                _figure(row["p_wrong"]),
            ]
            for row in causes["against_in_distribution"]
        ]
        header = ["group", "queries", "evidence", "P(wrong)"]
        title = f"Difference to queries in distribution, {escape(causes['method'])}"
        parts += [f"<h2>{title}</h2>", _table(header, rows)]
    return parts


def _examples(groups: Mapping[str, Sequence[Example]], method: str) -> list[str]:
    """Cards by group, successes before failures."""
    parts = [f"<h2>Examples</h2><p>{HOW} By {escape(method)}.</p>"]
    for kind, found in sections(groups):
        parts.append(f"<h2>Examples: {kind}</h2>" if found else "")
        for group, examples in found:
            cards = "\n".join(_card(example, kind) for example in examples)
            parts.append(f'<h3>{group}</h3><div class="examples">{cards}</div>')
    return parts


def _card(example: Example, kind: str) -> str:
    data = base64.b64encode(example.picture).decode()
    image = f'<img alt="" src="data:image/png;base64,{data}">' if data else ""
    said = "".join(f"<li>{count} × {escape(text)}</li>" for text, count in example.samples)
    verdict = "wrong" if example.wrong else "right"
    truth = " / ".join(dict.fromkeys(example.references))
    decision = escape(example.decision)
    reason = f" <small>{escape(example.reason)}</small>" if example.reason else ""
    return (
        f'<div class="card {kind}">{image}<h4>{escape(example.question)}</h4>'
        f"<div>{escape(example.answer)} <small>{verdict}; reference {escape(truth)}</small></div>"
        f"<ul>{said}</ul><div>{' · '.join(numbers(example))} · "
        f'<b class="{decision}">{decision or "–"}</b>{reason}</div></div>'
    )
