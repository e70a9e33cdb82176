"""The figure of `capacity`: found and expected counts over the threshold, one line per d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from lmrc.report import figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lmrc.report.capacity import Count


def draw(counts: Sequence[Count]) -> Figure:
    """Draw the counts: once with the right laws, once with the printed one.

    The printed law's counts have hundreds of digits: on one scale all else would be a flat line.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with figures.style():
        figure = Figure(figsize=(7.6, 3.9), layout="constrained")
        near, far = figure.subplots(1, 2)
        for axes, laws in ((near, ("beta", "normal")), (far, ("beta", "paper"))):
            for position, dim in enumerate(sorted({count.dim for count in counts})):
                _one_dimension(axes, [c for c in counts if c.dim == dim], laws, position)
            axes.set_xlabel("threshold T")
            figures.plain(axes)
        near.set_title("right laws")
        far.set_title("as printed, σ = 1/d")
        # Powers of ten are written by hand: 10^500 is no float.
        top = max(c.log10_expected["paper"] for c in counts)
        near_top = max(c.log10_expected["beta"] for c in counts)
        for axes, high in ((near, near_top), (far, top)):
            step = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if n * 7 >= high)
            ticks = range(0, int(high) + step + 1, step)
            axes.set_yticks(list(ticks), [f"$10^{{{tick}}}$" for tick in ticks])
        near.set_ylabel("label vectors")
        handles, labels = near.get_legend_handles_labels()
        for law, words in (("beta", "exact law"), ("normal", "normal"), ("paper", "as printed")):
            handles.append(Line2D([], [], color=figures.INK, linestyle=_DASHES[law]))
            labels.append(words)
        figure.legend(handles, labels, loc="outside lower center", ncols=7, columnspacing=1.4)
    return figure


_DASHES: dict[str, Literal["-", ":", "--"]] = {"beta": "-", "normal": ":", "paper": "--"}


def _one_dimension(axes: Axes, counts: Sequence[Count], laws: Sequence[str], position: int) -> None:
    look = figures.look(position)
    thresholds = [c.threshold for c in counts]
    for law in laws:
        expected = [c.log10_expected[law] for c in counts]
        axes.plot(
            thresholds, expected, color=look.colour, linestyle=_DASHES[law], linewidth=1.4, zorder=2
        )
    exact = [c for c in counts if not c.is_lower_bound]
    axes.errorbar(
        [c.threshold for c in exact],
        [math.log10(c.found.mean) for c in exact],
        yerr=[_spread(exact, -1), _spread(exact, 1)],
        color=look.colour,
        marker=look.marker,
        linestyle="none",
        markersize=6,
        label=f"d = {counts[0].dim}",
        zorder=3,
    )
    bounds = [c for c in counts if c.is_lower_bound]
    axes.plot(
        [c.threshold + 0.004 * (position - 2) for c in bounds],  # side by side: all are the limit
        [math.log10(c.found.mean) for c in bounds],
        color=look.colour,
        marker=r"$\uparrow$",
        linestyle="none",
        markersize=9,
        zorder=3,
    )


def _spread(counts: Sequence[Count], sign: int) -> list[float]:
    """Return one standard deviation on the logarithmic scale, down (−1) or up (1)."""
    return [
        sign * math.log10(max(1.0, c.found.mean + sign * (c.found.deviation or 0.0)) / c.found.mean)
        for c in counts
    ]
