"""The figure of `ablation`: two bars a step, average and last accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lmrc.report import figures
from lmrc.report.summary import MethodSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THICK = 0.36  # of a bar, where a step takes 1
LETTERS = 34  # of a step's name


def bars(rows: Sequence[MethodSummary]) -> Figure:
    """Draw average incremental and last accuracy of each step, the first step on top."""
    from matplotlib.figure import Figure

    with figures.style():
        figure = Figure(figsize=(5.6, 1.0 + 0.46 * len(rows)), layout="constrained")
        axes = figure.add_subplot()
        measured = (
            ("average over the tasks", [row.average for row in rows], 1.0),
            ("after the last task", [row.final for row in rows], 0.5),
        )
        for side, (label, spreads, opacity) in zip((-0.5, 0.5), measured, strict=True):
            drawn = [(i + side * THICK, spread) for i, spread in enumerate(spreads) if spread]
            deviations = [100 * (spread.deviation or 0.0) for _, spread in drawn]
            for (place, spread), deviation in zip(drawn, deviations, strict=True):
                end = 100 * spread.mean + deviation + 1.2
                axes.text(end, place, f"{100 * spread.mean:.1f}", va="center", fontsize=8)
            axes.barh(
                [place for place, _ in drawn],
                [100 * spread.mean for _, spread in drawn],
                height=THICK,
                xerr=deviations if any(deviations) else None,
                color=figures.LOOKS[0].colour,
                alpha=opacity,
                error_kw={"ecolor": figures.INK, "elinewidth": 1.0, "capsize": 2.0},
                label=label,
            )
        names = [figures.shortened(row.method, LETTERS) for row in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.set(xlim=(0, 100), xlabel="accuracy over all seen classes (%)")
        figures.plain(axes)
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x", linewidth=0.6, alpha=0.22, color=figures.INK)
        figures.legend_below(figure, 2)
    return figure
