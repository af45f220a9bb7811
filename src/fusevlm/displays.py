"""How results show themselves: a few lines of text; in a notebook a table, or a small chart.

Everything is escaped. Text has the colour of the page it stands on; the few other colours can be
told from a light ground as from a dark one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, TypeVar

Item = TypeVar("Item")

GOOD, BAD, CURVE = "#1b8753", "#d64535", "#3b78c4"  # told from white and from black alike
FAINT = "rgba(128,128,128,.25)"  # the empty part of a bar
MOST_ROWS = 20  # of a list that are shown
MOST_POINTS = 200  # of a curve that are drawn
SIDE, MARGIN = 150, 34  # of a chart, in pixels


class Displayed:
    """Shows itself as a title and a line per fact; in a notebook as a table, all of it escaped."""

    __slots__ = ()

    def _title(self) -> str:
        raise NotImplementedError

    def _facts(self) -> Mapping[str, str]:
        raise NotImplementedError

    def _chart(self) -> str:
        """A picture of it in HTML, where one helps."""
        return ""

    def __repr__(self) -> str:
        facts = self._facts()
        width = max(map(len, facts), default=0)
        lines = (f"  {name:<{width}}  {text}" for name, text in facts.items())
        return "\n".join([self._title(), *lines])

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in self._facts().items()
        )
        table = f"<table><caption>{escape(self._title())}</caption>{''.join(rows)}</table>"
        return table + self._chart()


class Rows(list[Item]):
    """A list that a notebook shows as a table: the facts of each of the first, all of it escaped.

    Elsewhere it prints a line for each. What has no facts, such as an error, has what it says of
    itself.
    """

    def __repr__(self) -> str:
        shown = [" · ".join(_facts_of(one).values()) for one in self[:MOST_ROWS]]
        left = len(self) - len(shown)
        lines = [f"  {line}" for line in (*shown, *[f"… and {left:,} more"] * bool(left))]
        return "\n".join([f"a list of {len(self):,}", *lines])

    def _repr_html_(self) -> str:
        shown = [_facts_of(one) for one in self[:MOST_ROWS]]
        names = list(dict.fromkeys(name for facts in shown for name in facts))
        rows = [[facts.get(name, "") for name in names] for facts in shown]
        left = len(self) - len(shown)
        return html_table(names, rows) + (f"<p>… and {left:,} more</p>" if left else "")


class Table(dict[str, Item]):
    """A dict that a notebook shows as a table: a row for each name, with its facts."""

    def _repr_html_(self) -> str:
        facts = [_facts_of(one) for one in self.values()]
        names = list(dict.fromkeys(name for own in facts for name in own))
        rows = [
            [key, *(own.get(name, "") for name in names)]
            for key, own in zip(self, facts, strict=True)
        ]
        return html_table(["", *names], rows)


def _facts_of(one: Any) -> Mapping[str, str]:
    if hasattr(one, "_facts"):
        found: Mapping[str, str] = one._facts()
        return found
    return {"error" if isinstance(one, Exception) else "": str(one)}


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table with a head, all of it escaped."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def html_bar(share: float, colour: str = "currentColor") -> str:
    """A bar that is filled to a share from 0 to 1."""
    full = 100.0 * min(max(share, 0.0), 1.0)
    return (
        f'<div style="width:12em;height:.8em;background:{FAINT}">'
        f'<div style="width:{full:.0f}%;height:100%;background:{colour}"></div></div>'
    )


def html_curve(
    curve: Iterable[tuple[float, float]],
    *,
    across: str,
    up: str,
    diagonal: bool = False,
    dots: bool = False,
) -> str:
    """A curve in the unit square as SVG, with the names of its axes; with ``dots`` each point."""
    points = [(MARGIN + SIDE * a, 8 + SIDE * (1 - b)) for a, b in _thinned(list(curve))]
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    low, high, left, right = SIDE + 8, 8, MARGIN, MARGIN + SIDE
    marks = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in points) * dots
    across, up = escape(across), escape(up)
    slope = f'<path d="M{left},{low}L{right},{high}" stroke-dasharray="3" opacity=".5"/>' * diagonal
    return (
        f'<svg width="{right + 10}" height="{low + 32}" role="img" '
        f'aria-label="{up} against {across}" font-size="11" fill="currentColor">'
        f'<g fill="none" stroke="currentColor"><path d="M{left},{high}V{low}H{right}"/>{slope}</g>'
        f'<polyline points="{path}" fill="none" stroke="{CURVE}" stroke-width="2"/>'
        f'<g fill="{CURVE}">{marks}</g>'
        f'<g text-anchor="middle"><text x="{left}" y="{low + 13}">0</text>'
        f'<text x="{right}" y="{low + 13}">1</text>'
        f'<text x="{(left + right) // 2}" y="{low + 26}">{across}</text>'
        f'<text transform="translate(12 {(low + high) // 2}) rotate(-90)">{up}</text></g>'
        f'<g text-anchor="end"><text x="{left - 4}" y="{low}">0</text>'
        f'<text x="{left - 4}" y="{high + 9}">1</text></g></svg>'
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most so many points, the first and the last among them."""
    last = len(points) - 1
    count = min(len(points), MOST_POINTS)
    return [points[round(k * last / max(count - 1, 1))] for k in range(count)]
