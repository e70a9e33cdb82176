"""Heat maps of a report: which head won against which governs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmrc.report.figures import shortened, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAT = "#0072b2"
#: Heat never gets opaque, so that the numbers on it are read in the ink of either page.
HEAT_OPACITY = 0.72
#: Above this many, tasks are no longer named at the edge, nor drawn as paths.
MANY = 100


def task_confusion(
    counts: Sequence[Sequence[int]], labels: Sequence[str], *, title: str = ""
) -> Figure:
    """Draw which head won (columns) against which governs (rows), as a share of each row.

    Parameters
    ----------
    counts : square matrix of int
        Entry [i][j]: test samples of task i that were given a class of task j.
    labels : sequence of str
        One for each task.
    title : str, default=""
        What stands above.
    """
    from matplotlib.colors import LinearSegmentedColormap, to_rgba
    from matplotlib.figure import Figure

    shares = [[n / (sum(row) or 1) for n in row] for row in counts]
    with style():
        figure = Figure(figsize=(3.2, 3.2), layout="constrained")
        axes = figure.add_subplot()
        heat = LinearSegmentedColormap.from_list(
            "heat", [to_rgba(HEAT, 0.0), to_rgba(HEAT, HEAT_OPACITY)]
        )
        many = len(counts) > MANY  # then a picture: an SVG of so many paths no one can open
        axes.pcolormesh(shares, cmap=heat, vmin=0, vmax=1, edgecolors="none", rasterized=many)
        # Numbers that would not be readable are left to the colours.
        if len(counts) <= 10:
            for i, row in enumerate(shares):
                for j, share in enumerate(row):
                    shown = f"{100 * share:.0f}"
                    faint = 0.65 if shown == "0" else 1.0
                    axes.text(j + 0.5, i + 0.5, shown, ha="center", va="center", alpha=faint)
        shown_labels = labels if len(labels) <= 10 else [str(i + 1) for i in range(len(labels))]
        each = max(1, len(labels) // MANY)
        places = [i + 0.5 for i in range(0, len(labels), each)]
        shown_labels = [shortened(label, 30) for label in shown_labels[::each]]
        axes.set_xticks(places, shown_labels)
        axes.set_yticks(places, shown_labels)
        axes.set(aspect="equal", xlabel="head that won", ylabel="head that governs")
        axes.invert_yaxis()
        axes.set_title(shortened(title, 30))
        axes.tick_params(length=0, pad=4)
        axes.spines[:].set_alpha(0.35)
    return figure
