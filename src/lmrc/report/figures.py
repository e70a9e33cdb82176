"""Figures of a report, as SVG that takes the page's own text colour, and as PNG.

Only matplotlib's object-oriented interface is used: no window, no global state. matplotlib is
imported when a figure is drawn, for it takes a second to load.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from lmrc.report.summary import MethodSummary, Spread, grows, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Text and axes are drawn in this colour, which nothing else uses; in the SVG it becomes
# currentColor. No single grey has a contrast of 4.5 : 1 on both white and near-black.
INK = "#1b1c1e"

HEAT = "#0072b2"
HEAT_OPACITY = 0.72  # at most, so that numbers are readable on it, on light and on dark pages
MANY_TASKS = 100  # more are neither labelled nor drawn as paths

LETTERS_PER_INCH = 12.4  # of the text in figures, on average
HANDLE_LETTERS = 7  # as wide as the line before a label
LEGEND_ROWS = 3  # that a figure has room for
ROW_INCHES = 0.2  # height of one more row

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"


class LineStyle(NamedTuple):
    """The line of a method: methods differ in colour, in marker and in dashes."""

    colour: str
    marker: str
    dashes: str | tuple[int, tuple[float, ...]]


#: After Okabe and Ito's palette for the colour-blind. Its orange, sky blue and yellow are darker
#: here, for a contrast of 3 : 1 with white and with #131416. The first are the built-in methods'.
LINE_STYLES = (
    LineStyle("#0072b2", "o", "-"),
    LineStyle("#d55e00", "s", (0, (5, 1.6))),
    LineStyle("#009e73", "^", (0, (1, 1.4))),
    LineStyle("#c56a9c", "D", (0, (6, 1.5, 1, 1.5))),
    LineStyle("#b37c00", "v", (0, (3, 1.2))),
    LineStyle("#3f93c6", "P", (0, (3, 1.2, 1, 1.2, 1, 1.2))),
    LineStyle("#8a8168", "X", (0, (8, 2))),
    LineStyle("#8f6bd1", "*", (0, (2, 0.8))),
    # From here on for methods that are not built in, and for variants.
    LineStyle("#1a8f9c", "<", (0, (7, 1.4))),
    LineStyle("#b34a4a", ">", (0, (4, 1, 1, 1))),
    LineStyle("#7a8a1f", "h", (0, (2, 1.4))),
    LineStyle("#7b7f86", "p", (0, (9, 1.5, 2, 1.5))),
)


def line_style(index: int) -> LineStyle:
    """Return a line style; after the last one, colours repeat with other markers and dashes."""
    cycle, first = divmod(index, len(LINE_STYLES))
    line = LINE_STYLES[(first + cycle) % len(LINE_STYLES)]
    return LineStyle(LINE_STYLES[first].colour, line.marker, line.dashes)


class Curve(NamedTuple):
    """A line over the tasks: its label, its style, and its values."""

    label: str
    style: LineStyle
    classes_seen: Sequence[int]
    spreads: Sequence[Spread | None]
    hollow: bool = False


def accuracy_over_tasks(summaries: Sequence[MethodSummary]) -> Figure:
    """Draw the accuracy over all seen classes after each task (Fig. 3), one line per method.

    With a band of one standard deviation where there are several seeds. The legend gives the
    average incremental accuracy. A single method gets a baseline, close to fine-tuning: all test
    samples of the newest task are right, and no other.
    """
    kind = summaries[0].metric_name
    curves = [
        Curve(f"{s.method}: {percent(s.average)}", line_style(s.style), s.classes_seen, s.accuracy)
        for s in summaries
    ]
    if len(curves) == 1 and summaries[0].metric == "accuracy" and summaries[0].newest_alone:
        newest = [Spread(share, None) for share in summaries[0].newest_alone]
        style = LineStyle(LINE_STYLES[-1].colour, "", ":")
        curves.append(Curve("the newest task alone", style, summaries[0].classes_seen, newest))
    return over_tasks(
        curves,
        ylabel=f"{kind} over all seen classes (%)",
        legend=f"average incremental {kind} (%)",
    )


def over_tasks(curves: Sequence[Curve], *, ylabel: str, legend: str | None = None) -> Figure:
    """Draw shares in percent over the tasks, with bands of one standard deviation."""
    from matplotlib.ticker import MaxNLocator

    with panel(4.9, 3.8) as (figure, axes):
        by_task = not all(grows(curve.classes_seen) for curve in curves)
        if by_task:
            curves = [c._replace(classes_seen=range(1, len(c.classes_seen) + 1)) for c in curves]
        drawn = [curve for curve in curves if any(curve.spreads)]  # an empty line breaks the layout
        for curve in drawn:
            _line(axes, curve)
        xlabel = "task" if by_task else "classes seen"
        axes.set(xlabel=xlabel, ylabel="\n".join(wrap(ylabel, 36)), ylim=(0, 102))
        seen = sorted({n for curve in curves for n in curve.classes_seen})
        if len(seen) <= 12:
            axes.set_xticks(seen)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_yticks(range(0, 101, 20))
        declutter(axes)
        title = {"title": legend, "title_fontproperties": {"weight": "bold"}} if legend else {}
        legend_below(figure, 2, handlelength=3.2, columnspacing=1.8, **title)
    return figure


def legend_below(figure: Figure, columns: int, **how: Any) -> None:
    """Put the legend below the figure, in up to `columns` columns as far as there is room.

    The figure grows with the legend, so that the panel does not shrink.
    """
    handles, labels = figure.axes[0].get_legend_handles_labels()
    room = int(figure.get_figwidth() * LETTERS_PER_INCH)
    labels = [shortened(label, room - HANDLE_LETTERS) for label in labels]
    columns = min(columns, len(labels)) or 1
    while columns > 1 and _letters(labels, columns) > room:
        columns -= 1
    more_rows = max(0, math.ceil(len(labels) / columns) - LEGEND_ROWS)
    figure.set_figheight(figure.get_figheight() + ROW_INCHES * more_rows)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, **how)


def _letters(labels: Sequence[str], columns: int) -> int:
    """Return how wide a legend is, in letters; it is filled column by column."""
    most, more = divmod(len(labels), columns)
    ends = [(i + 1) * most + min(i + 1, more) for i in range(columns)]
    parts = [labels[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return sum(HANDLE_LETTERS + max(map(len, part)) for part in parts)


def shortened(label: str, maximum: int) -> str:
    """Return a label as a figure can draw it; of one that is too long, the end.

    The end of a dotted path is its class.

    >>> shortened("package.module.NearestMean", 16), shortened("LMRC", 16)
    ('…ule.NearestMean', 'LMRC')
    """
    label = printable(label)
    return label if len(label) <= maximum else f"…{label[1 - maximum :]}"


def declutter(axes: Axes) -> None:
    """Reduce the axes to faint grid lines and the lower edge."""
    axes.grid(axis="y", linewidth=0.6, alpha=0.22, color=INK)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_alpha(0.5)


def _line(axes: Axes, curve: Curve) -> None:
    points = [(n, s) for n, s in zip(curve.classes_seen, curve.spreads, strict=False) if s]
    seen = [n for n, _ in points]
    mean = [100 * spread.mean for _, spread in points]
    deviations = [100 * (spread.deviation or 0.0) for _, spread in points]
    axes.plot(
        seen,
        mean,
        color=curve.style.colour,
        marker=curve.style.marker,
        markersize=5.5,
        markerfacecolor="none" if curve.hollow else curve.style.colour,
        linestyle=curve.style.dashes,
        linewidth=1.9,
        label=curve.label,
        clip_on=False,
        zorder=3,
    )
    if any(deviations):
        low = [m - d for m, d in zip(mean, deviations, strict=True)]
        high = [m + d for m, d in zip(mean, deviations, strict=True)]
        axes.fill_between(seen, low, high, color=curve.style.colour, alpha=0.16, linewidth=0)


def task_confusion(
    counts: Sequence[Sequence[int]], labels: Sequence[str], *, title: str = ""
) -> Figure:
    """Draw the predicted task (columns) of samples by true task (rows), as shares of each row."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgba

    shares = [[n / (sum(row) or 1) for n in row] for row in counts]
    with panel(3.2, 3.2) as (figure, axes):
        heat = LinearSegmentedColormap.from_list(
            "heat", [to_rgba(HEAT, 0.0), to_rgba(HEAT, HEAT_OPACITY)]
        )
        many = len(counts) > MANY_TASKS  # as pixels: no viewer opens an SVG of so many paths
        axes.pcolormesh(shares, cmap=heat, vmin=0, vmax=1, edgecolors="none", rasterized=many)
        # Numbers that would be too small to read are left out.
        if len(counts) <= 10:
            for i, row in enumerate(shares):
                for j, share in enumerate(row):
                    shown = f"{100 * share:.0f}"
                    faint = 0.65 if shown == "0" else 1.0
                    axes.text(j + 0.5, i + 0.5, shown, ha="center", va="center", alpha=faint)
        shown_labels = labels if len(labels) <= 10 else [str(i + 1) for i in range(len(labels))]
        each = max(1, len(labels) // MANY_TASKS)
        positions = [i + 0.5 for i in range(0, len(labels), each)]
        shown_labels = [shortened(label, 30) for label in shown_labels[::each]]
        axes.set_xticks(positions, shown_labels)
        axes.set_yticks(positions, shown_labels)
        axes.set(aspect="equal", xlabel="predicted task", ylabel="true task")
        axes.invert_yaxis()
        axes.set_title(shortened(title, 30))
        axes.tick_params(length=0, pad=4)
        axes.spines[:].set_alpha(0.35)
    return figure


def to_svg(figure: Figure, *, name: str, description: str) -> Markup:
    """Return the figure as an ``<svg>`` element for a page.

    Its ink becomes ``currentColor``: text and axes take the page's colour. Every id begins with
    `name`, so that ids of two figures of a page differ. The description is for screen readers.
    """
    undated = {"Date": None, "Creator": None}
    svg = _saved(figure, format="svg", transparent=True, metadata=undated).decode()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    # Inside a page, a CSS rule for * would apply to all of it.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = svg.replace("'DejaVu Sans'", FONT).replace(INK, "currentColor")
    drawn = Markup(printable(svg))  # noqa: S704  # matplotlib has escaped what is text
    opened = Markup('<svg role="img" aria-label="{}" stroke-linejoin="round" ')
    return drawn.replace(Markup("<svg "), opened.format(printable(description)), 1)


def printable(text: str) -> str:
    """Return text with a sign in place of control characters, which HTML and SVG forbid."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def svg_file(svg: str) -> str:
    """Return an SVG element as a file of its own, for light and for dark backgrounds."""
    style = (
        "<style>:root{color:#1b1c1e}@media(prefers-color-scheme:dark){:root{color:#e8e6e1}}</style>"
    )
    end = svg.index(">") + 1
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg[:end]}{style}{svg[end:]}\n'


def to_png(figure: Figure) -> bytes:
    """Return the figure as PNG on white."""
    return _saved(figure, format="png", dpi=200, facecolor="white")


def to_pdf(figure: Figure) -> bytes:
    """Return the figure as PDF on white, its fonts embedded, for a paper."""
    return _saved(figure, format="pdf", metadata={"CreationDate": None})


def _saved(figure: Figure, **how: Any) -> bytes:
    buffer = io.BytesIO()
    with theme():
        figure.savefig(buffer, **how)
    return buffer.getvalue()


@contextmanager
def panel(width: float, height: float) -> Iterator[tuple[Figure, Axes]]:
    """Begin a figure of one panel, of so many inches, with our settings."""
    from matplotlib.figure import Figure

    with theme():
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot()


def theme() -> AbstractContextManager[None]:
    """Return a context with our settings of matplotlib; the user's are restored after it."""
    from matplotlib.style import context

    ours = {
        "font.family": "DejaVu Sans",  # comes with matplotlib, so text is laid out alike anywhere
        "text.parse_math": False,  # a class may be called $5
        "font.size": 9.5,
        "axes.labelsize": 9.5,
        "axes.titlesize": 10.5,
        "axes.titleweight": "bold",
        "legend.fontsize": 9.5,
        "legend.frameon": False,
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.titlecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "svg.fonttype": "none",  # text stays text: it is found, read aloud and set in FONT
        "svg.hashsalt": "lmrc",  # the same records give the same bytes
        "pdf.fonttype": 42,  # fonts are embedded as TrueType, as publishers want them
    }
    return context(ours, after_reset=True)
