"""Pieces of a page: text, tables and figures as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from lmrc.report import figures
from lmrc.report.summary import MethodSummary, Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: More columns than this, beside the names, are set closer, deviations below their numbers: on a
#: screen 1200 pixels wide they would not fit else.
MANY_COLUMNS = 7


@dataclass(frozen=True)
class Drawing:
    """A figure, with what it shows for those who do not see it."""

    figure: Figure
    description: str

    def to_svg(self, name: str) -> str:
        """Return an ``<svg>`` element whose ids begin with `name`."""
        return figures.to_svg(self.figure, name=name, description=self.description)


@dataclass(frozen=True)
class Section:
    """A part of a page: its anchor, its heading, and its HTML."""

    anchor: str
    heading: str
    body: str


def prose(text: str) -> str:
    """Return text for the page: escaped, a number never parted from its percent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def value(thing: Any) -> str:
    """Return a setting's value as HTML; – for none."""
    if thing is None:
        return "–"
    if isinstance(thing, bool):
        return "yes" if thing else "no"
    if isinstance(thing, float):
        return f"{thing:.4g}"
    if isinstance(thing, list | tuple):
        return ", ".join(value(item) for item in thing)
    return breakable(str(thing))


def breakable(name: str) -> str:
    """Return a name as HTML that may go on in a new line: after dots and underscores, at humps.

    Examples
    --------
    >>> from lmrc.report.html import breakable
    >>> breakable("near_mean.NearMean"), breakable("LwF + 0.5")
    ('near_<wbr>mean.<wbr>Near<wbr>Mean', 'LwF + 0.5')
    """
    parts = re.split(r"(?<=[._])(?=[^\W\d_])|(?<=[a-z])(?=[A-Z][a-z])", name)
    return "<wbr>".join(map(escape, parts))


def words(key: str) -> str:
    """Return a setting's name as HTML."""
    return escape(key.replace("_", " "))


def name(method: str, place: int) -> str:
    """Return a method's name with the colour of its line before it."""
    colour = figures.look(place).colour
    key = f'<span class="key" style="background:{colour}"></span>'
    return f'<span class="keyed">{key}{breakable(method)}</span>'


def cell(spread: Spread | None, kind: str = "") -> str:
    """Return a table cell: a share in percent, the deviation smaller beside it."""
    if spread is None:
        return "<td>–</td>"
    attributes = f' class="{kind}"' if kind else ""
    if kind == "share":
        attributes += f' style="--share:{spread.mean:.3f}"'
    deviation = spread.deviation
    more = "" if deviation is None else f' <span class="sd">± {100 * deviation:.1f}</span>'
    return f"<td{attributes}>{100 * spread.mean:.1f}{more}</td>"


def paper_cell(share: float | None) -> str:
    """Return a table cell with the paper's number, in percent."""
    return (
        '<td class="paper">–</td>' if share is None else f'<td class="paper">{100 * share:.1f}</td>'
    )


def table(caption: str, head: Iterable[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table that scrolls in its own box. Rows are HTML: a row's name, then its cells."""
    names = list(head)
    columns = "".join(f'<th scope="col">{breakable(name)}</th>' for name in names)
    body = "".join(f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>' for name, *cells in rows)
    label, n_columns = escape(caption), len(names) - 1
    kinds = f"{kind} many".strip() if n_columns > MANY_COLUMNS else kind
    return (
        f'<p class="caption note">{label}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="{kinds}" style="--columns:{n_columns}">'
        f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(drawing: Drawing, anchor: str, caption: str, *, panels: int = 1) -> str:
    """Return a figure with its caption, which is HTML; one of two panels scrolls on a phone."""
    svg, kind = drawing.to_svg(anchor), ""
    if panels == 1:
        kind = ' class="wide"'
    else:
        svg = f'<div class="panels" tabindex="0">{svg}</div>'
    return f"<figure{kind}>{svg}<figcaption>{caption}</figcaption></figure>"


def folded(summary: str, body: str) -> str:
    """Return HTML that is shown when asked for."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def note(text: str) -> str:
    """Return a small paragraph."""
    return f'<p class="note">{prose(text)}</p>'


def n_seeds(summaries: Sequence[MethodSummary]) -> int:
    """Return how many seeds there are, 0 for one alone: then nothing deviates."""
    most = max(map(_seeds, summaries))
    return most if most > 1 else 0


def _seeds(summary: MethodSummary) -> int:
    """Count the runs that tables are of: the whole ones, once there are any."""
    return summary.n_whole or len(summary.runs)


def over_seeds(summaries: Sequence[MethodSummary]) -> str:
    """Say what ± means, or that there is one seed."""
    most, fewest = n_seeds(summaries), min(map(_seeds, summaries))
    if not most:
        return "one seed"
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"mean ± standard deviation over {count} seeds"
