"""Figures of a report, as SVG that takes the page's own text colour, and as PNG.

Only matplotlib's object-oriented interface is used: no window, no global state. matplotlib is
imported when a figure is drawn, for it takes a second to load.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from lmrc.report.summary import MethodSummary, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Text and axes are drawn in this colour, which nothing else uses; in the SVG it becomes
# currentColor. One grey cannot stand out 4.5 : 1 from white and from near-black paper at once.
INK = "#1b1c1e"

FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"

HEAT = "#0072b2"
#: Heat never gets opaque, so that the numbers on it are read in the ink of either page.
HEAT_OPACITY = 0.72


class Look(NamedTuple):
    """How the line of a method looks: told apart by colour, marker and dashes alike."""

    colour: str
    marker: str
    dashes: str | tuple[int, tuple[float, ...]]


#: After Okabe and Ito's palette for the colour-blind. Its orange, sky blue and yellow are darker
#: here, so that each stands out 3 : 1 from white and from #131416.
LOOKS = (
    Look("#0072b2", "o", "-"),
    Look("#d55e00", "s", (0, (5, 1.6))),
    Look("#009e73", "^", (0, (1, 1.4))),
    Look("#c56a9c", "D", (0, (6, 1.5, 1, 1.5))),
    Look("#b37c00", "v", (0, (3, 1.2))),
    Look("#3f93c6", "P", (0, (3, 1.2, 1, 1.2, 1, 1.2))),
    Look("#8a8168", "X", (0, (8, 2))),
)


def look(position: int) -> Look:
    """Return the look of the method at a position; after the last, they begin anew."""
    return LOOKS[position % len(LOOKS)]


def accuracy_over_batches(summaries: Sequence[MethodSummary]) -> Figure:
    """Draw the accuracy over all seen classes after each class batch.

    Parameters
    ----------
    summaries : sequence of MethodSummary
        One line each; a band of one standard deviation where there are several seeds. The legend
        gives the average incremental accuracy.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with _style():
        figure = Figure(figsize=(4.9, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for position, summary in enumerate(summaries):
            _line(axes, summary, look(position))
        axes.set(xlabel="classes seen", ylabel="accuracy over all seen classes (%)", ylim=(0, 102))
        seen = sorted({n for summary in summaries for n in summary.classes_seen})
        if len(seen) <= 12:
            axes.set_xticks(seen)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_yticks(range(0, 101, 20))
        axes.grid(axis="y", linewidth=0.6, alpha=0.22, color=INK)
        axes.tick_params(length=0, pad=6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_alpha(0.5)
        figure.legend(
            loc="outside lower center",
            ncols=1 if len(summaries) == 1 else 2,
            title="average incremental accuracy (%)",
            title_fontproperties={"weight": "bold"},
            handlelength=3.2,
            columnspacing=1.8,
        )
    return figure


def _line(axes: Axes, summary: MethodSummary, style: Look) -> None:
    seen = summary.classes_seen
    mean = [100 * spread.mean for spread in summary.accuracy]
    spare = [100 * (spread.deviation or 0.0) for spread in summary.accuracy]
    axes.plot(
        seen,
        mean,
        color=style.colour,
        marker=style.marker,
        markersize=5.5,
        linestyle=style.dashes,
        linewidth=1.9,
        label=f"{summary.method}: {percent(summary.average)}",
        clip_on=False,
        zorder=3,
    )
    if any(spare):
        low = [m - s for m, s in zip(mean, spare, strict=True)]
        high = [m + s for m, s in zip(mean, spare, strict=True)]
        axes.fill_between(seen, low, high, color=style.colour, alpha=0.16, linewidth=0)


def head_confusion(
    counts: Sequence[Sequence[int]], labels: Sequence[str], *, title: str = ""
) -> Figure:
    """Draw which head won (columns) against which governs (rows), as a share of each row.

    Parameters
    ----------
    counts : square matrix of int
        Entry [i][j]: test samples of class batch i that were given a class of batch j.
    labels : sequence of str
        One for each class batch.
    title : str, default=""
        What stands above.
    """
    from matplotlib.colors import LinearSegmentedColormap, to_rgba
    from matplotlib.figure import Figure

    shares = [[n / (sum(row) or 1) for n in row] for row in counts]
    with _style():
        figure = Figure(figsize=(3.2, 3.2), layout="constrained")
        axes = figure.add_subplot()
        heat = LinearSegmentedColormap.from_list(
            "heat", [to_rgba(HEAT, 0.0), to_rgba(HEAT, HEAT_OPACITY)]
        )
        axes.pcolormesh(shares, cmap=heat, vmin=0, vmax=1, edgecolors="none")
        # Numbers that would not be readable are left to the colours.
        if len(counts) <= 10:
            for i, row in enumerate(shares):
                for j, share in enumerate(row):
                    shown = f"{100 * share:.0f}"
                    faint = 0.65 if shown == "0" else 1.0
                    axes.text(j + 0.5, i + 0.5, shown, ha="center", va="center", alpha=faint)
        places = [i + 0.5 for i in range(len(labels))]
        shown_labels = labels if len(labels) <= 10 else [str(i + 1) for i in range(len(labels))]
        axes.set_xticks(places, shown_labels)
        axes.set_yticks(places, shown_labels)
        axes.set(aspect="equal", xlabel="head that won", ylabel="head that governs")
        axes.invert_yaxis()
        axes.set_title(title)
        axes.tick_params(length=0, pad=4)
        axes.spines[:].set_alpha(0.35)
    return figure


def to_svg(figure: Figure, *, name: str, description: str) -> str:
    """Return the figure as an ``<svg>`` element, to stand inside a page.

    Parameters
    ----------
    figure : Figure
        What to show. Its ink becomes ``currentColor``: text and axes take the page's colour.
    name : str
        Goes before every id, so that two figures of a page do not meet.
    description : str
        What the figure shows, for those who do not see it.
    """
    buffer = io.StringIO()
    with _style():
        figure.savefig(
            buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    # Inside a page, a rule for * would hold for all of it.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = svg.replace("'DejaVu Sans'", FONT).replace(INK, "currentColor")
    label = html.escape(description)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" stroke-linejoin="round" ', 1)


def svg_file(svg: str) -> str:
    """Return an SVG element as a file of its own, in dark ink on light and light ink on dark."""
    style = (
        "<style>:root{color:#1b1c1e}@media(prefers-color-scheme:dark){:root{color:#e8e6e1}}</style>"
    )
    end = svg.index(">") + 1
    return f'<?xml version="1.0" encoding="utf-8"?>\n{svg[:end]}{style}{svg[end:]}\n'


def to_png(figure: Figure) -> bytes:
    """Return the figure as PNG on white, for it cannot know the page it will stand on."""
    buffer = io.BytesIO()
    with _style():
        figure.savefig(buffer, format="png", dpi=200, facecolor="white")
    return buffer.getvalue()


def _style() -> AbstractContextManager[None]:
    """Return our settings of matplotlib for the length of a ``with``; then the user's come back."""
    from matplotlib import style

    ours = {
        "font.family": "DejaVu Sans",  # comes with matplotlib, so text is laid out alike anywhere
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
    }
    return style.context(ours, after_reset=True)
