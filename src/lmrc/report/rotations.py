"""The report of `rotations`: accuracy against seconds of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lmrc.report import figures, html, sections
from lmrc.report.html import Contents, Drawing, Section
from lmrc.report.records import Description, RunRecord
from lmrc.report.sections import Cost
from lmrc.report.summary import (
    MethodSummary,
    Spread,
    as_markdown,
    metric_name,
    percent,
    summarize_methods,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report of `rotations`: accuracy against seconds."""
    metric = sections.metric_of(description)
    summaries, by_method = summarize_methods(records, metric), sections.costs(records)
    chart = _cost_drawing(summaries, by_method, metric)
    caption = (
        f"Average incremental {metric_name(metric)} (filled) and after the last task (hollow) "
        f"against seconds of training, all tasks. {sections.CLOCK}"
    )
    result = Section(
        "result",
        "Accuracy against seconds",
        html.figure(chart, "cost", caption)
        + sections.accuracy_table(summaries, {}, metric)
        + sections.final_table(summaries, metric),
    )
    # Accuracies alone: wall-clock time depends on what else ran.
    parts = [f"{s.method}: {100 * s.average.mean:.1f} %" for s in summaries if s.average]
    head = ["method", "average incremental accuracy (%)", "after the last task (%)"]
    rows = []
    for s in summaries:
        seconds = map(sections.seconds, (by_method[s.method].training, by_method[s.method].testing))
        rows.append([s.method, percent(s.average), percent(s.final), *seconds])
    table = as_markdown([*head, "training (s)", "testing (s)"], rows)
    return sections.gather(
        description,
        records,
        summaries,
        headline=f"{'; '.join(parts)} average incremental {metric_name(metric)}." if parts else "",
        findings=[],
        sections=[result, sections.cost_section(summaries, by_method)],
        markdown=f"{table}\n\n{sections.CLOCK}",
        drawings={"cost": chart},
    )


def _cost_drawing(
    summaries: Sequence[MethodSummary], by_method: Mapping[str, Cost], metric: str
) -> Drawing:
    from matplotlib.ticker import MaxNLocator

    with figures.panel(4.9, 3.8) as (figure, axes):
        for s in summaries:
            if spread := by_method[s.method].training:
                _points(axes, spread, s)
        axes.set(xlabel="training (s)", ylim=(0, 102), xlim=(0, 1.12 * axes.get_xlim()[1]))
        axes.set_ylabel(f"{metric_name(metric)} (%)")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        figures.declutter(axes)
        figures.legend_below(figure, 3)
    return Drawing(
        figure, "Accuracy against seconds of training. The tables below hold the numbers."
    )


def _points(axes: Axes, seconds: Spread, summary: MethodSummary) -> None:
    style = figures.line_style(summary.style)
    for share, hollow in ((summary.average, False), (summary.final, True)):
        if share is None:
            continue
        point = [seconds.mean], [100 * share.mean]
        # An error bar of length 0 would still show its caps, as a cross within a hollow mark.
        errors = seconds.deviation or None, 100 * (share.deviation or 0.0) or None
        axes.errorbar(
            *point, xerr=errors[0], yerr=errors[1], color=style.colour, capsize=2, zorder=2
        )
        axes.plot(
            *point,
            color=style.colour,
            marker=style.marker,
            markerfacecolor="none" if hollow else style.colour,
            markersize=8,
            linestyle="none",
            label=None if hollow else summary.method,
            zorder=3,
        )
