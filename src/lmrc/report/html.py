"""Parts of a page: text, tables, figures and sections as HTML.

HTML is a `Markup`, which escapes all other text that is put into it: text from records never has
to be escaped by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from lmrc.report import figures
from lmrc.report.summary import MethodSummary, Spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: More columns than this, beside the names, are set closer, deviations below their numbers, to fit
#: a screen 1200 pixels wide.
MANY_COLUMNS = 7


#: What a table cell shows: a share in percent, text or HTML; a dash for None.
Content = Spread | str | None


@dataclass(frozen=True)
class Drawing:
    """A figure, and its description for screen readers."""

    figure: Figure
    description: str
    _drawn: dict[str, Markup] = field(default_factory=dict, init=False, repr=False, compare=False)

    def to_svg(self, name: str) -> Markup:
        """Return an ``<svg>`` element whose ids begin with `name`."""
        if name not in self._drawn:  # it is for the page and for a file, and takes long
            svg = figures.to_svg(self.figure, name=name, description=self.description)
            self._drawn[name] = svg
        return self._drawn[name]


@dataclass(frozen=True)
class Section:
    """A part of a page: its anchor, its heading, and its HTML."""

    anchor: str
    heading: str
    body: Markup


@dataclass(frozen=True)
class Contents:
    """All of a report but its description, whatever the experiment."""

    headline: str  # the result in one sentence; empty while the run is not finished
    findings: list[str]  # further results, one sentence each
    sections: list[Section]  # of the page, in order
    #: How the records were made.
    settings: Markup
    environment: Markup
    markdown: str  # the main table, to print and to paste
    #: Figures, also written to files of these names.
    drawings: dict[str, Drawing] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)  # CSV, written to files of these names
    #: What a reader must know about the data and the runs.
    notes: list[str] = field(default_factory=list)


def prose(text: str) -> Markup:
    """Return text for the page: no line breaks between a number and its percent sign."""
    return escape(text).replace(" %", Markup("&nbsp;%"))


def joined(parts: Iterable[str]) -> Markup:
    """Return parts of a page one after another."""
    return Markup().join(parts)


def value(thing: Any) -> Markup:
    """Return a setting's value as HTML; – for none.

    >>> print(value([1, 0.25, True, None]), value([[0, 1], [2]]))
    1, 0.25, yes, – 0, 1; 2
    """
    if thing is None:
        return Markup("–")
    if isinstance(thing, bool):
        return Markup("yes") if thing else Markup("no")
    if isinstance(thing, float):
        return Markup("{:.4g}").format(thing)
    if isinstance(thing, list | tuple):
        # "; " between the tasks of an order that names the classes of each.
        nested = any(isinstance(item, list | tuple) for item in thing)
        return (Markup("; ") if nested else Markup(", ")).join(value(item) for item in thing)
    return breakable(str(thing))


def breakable(name: str) -> Markup:
    """Return a name as HTML with line breaks allowed after dots and underscores and in CamelCase.

    >>> print(breakable("near_mean.NearMean"), breakable("<LwF>"))
    near_<wbr>mean.<wbr>Near<wbr>Mean &lt;LwF&gt;
    """
    parts = re.split(r"(?<=[._])(?=[^\W\d_])|(?<=[a-z])(?=[A-Z][a-z])", name)
    return Markup("<wbr>").join(parts)


def name(method: str, style: int) -> Markup:
    """Return a method's name with the colour of its line before it."""
    key = Markup('<span class="key" style="background:{}"></span>').format(
        figures.line_style(style).colour
    )
    return Markup('<span class="keyed">{}{}</span>').format(key, breakable(method))


class Cell(Markup):
    """A table cell as HTML."""


def cell(content: Content, kind: str = "", more: str = "") -> Cell:
    """Return a table cell of a CSS class, with `more` in small type: a share in percent, or text.

    >>> print(cell(Spread(0.5, 0.01), "main"), cell("a < b"), cell(None))
    <td class="main">50.0 <span class="sd">± 1.0</span></td> <td>a &lt; b</td> <td>–</td>
    """
    attributes = Markup(' class="{}"').format(kind) if kind and content is not None else ""
    if isinstance(content, Spread):
        mean, deviation = content
        content, more = f"{100 * mean:.1f}", "" if deviation is None else f"± {100 * deviation:.1f}"
        attributes += Markup(' style="--share:{:.3f}"').format(mean) if kind == "share" else ""
    small = Markup(' <span class="sd">{}</span>').format(more) if more else ""
    text = "–" if content is None else content
    return Cell(Markup("<td{}>{}{}</td>").format(attributes, text, small))


def table(
    caption: str, head: Iterable[str], rows: Iterable[Sequence[Content]], kind: str = ""
) -> Markup:
    """Return a table that scrolls in its own box.

    Rows are a name, and then cells: a `cell`, or the content of a plain one.
    """
    names = list(head)
    columns = joined(Markup('<th scope="col">{}</th>').format(breakable(name)) for name in names)
    body = joined(
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            name, joined(c if isinstance(c, Cell) else cell(c) for c in cells)
        )
        for name, *cells in rows
    )
    n_columns = len(names) - 1
    return Markup(
        '<p class="caption note">{label}</p>'
        '<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        '<table class="{kinds}" style="--columns:{n_columns}">'
        "<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>"
    ).format(
        label=caption,
        kinds=f"{kind} many".strip() if n_columns > MANY_COLUMNS else kind,
        n_columns=n_columns,
        columns=columns,
        body=body,
    )


def figure(drawing: Drawing, anchor: str, caption: str, *, panels: int = 1) -> Markup:
    """Return a figure with its caption; one of two panels scrolls on a phone."""
    svg = drawing.to_svg(anchor)
    if panels == 1:
        opened = Markup('<figure class="wide">')
    else:
        opened = Markup("<figure>")
        svg = Markup('<div class="panels" tabindex="0">{}</div>').format(svg)
    return Markup("{}{}<figcaption>{}</figcaption></figure>").format(opened, svg, caption)


def thumbnail(jpeg: str) -> Markup:
    """Return a small image, which is given as JPEG in base64."""
    return Markup('<img alt="" class="thumbnail" src="data:image/jpeg;base64,{}">').format(jpeg)


def collapsible(summary: str, body: Markup) -> Markup:
    """Return HTML that is hidden until its summary is clicked."""
    return Markup("<details><summary>{}</summary>{}</details>").format(summary, body)


def definitions(items: Iterable[tuple[str, str]]) -> Markup:
    """Return a list of terms and their values; nothing for none."""
    rows = joined(Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(*item) for item in items)
    return Markup("<dl>{}</dl>").format(rows) if rows else rows


def note(text: str) -> Markup:
    """Return a small paragraph."""
    return Markup('<p class="note">{}</p>').format(prose(text))


def n_seeds(summaries: Sequence[MethodSummary]) -> int:
    """Return how many seeds there are, 0 for a single one: it has no deviation."""
    most = max(map(_seeds, summaries))
    return most if most > 1 else 0


def _seeds(summary: MethodSummary) -> int:
    """Count the runs that tables are of: the complete ones, once there are any."""
    return summary.n_complete or len(summary.runs)


def over_seeds(summaries: Sequence[MethodSummary]) -> str:
    """Say what ± means, or that there is one seed."""
    most, fewest = n_seeds(summaries), min(map(_seeds, summaries))
    if not most:
        return "one seed"
    count = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"mean ± standard deviation over {count} seeds"
