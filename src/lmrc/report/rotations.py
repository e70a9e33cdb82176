"""Report of `rotations`: accuracy against seconds, without turns, with one, with all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lmrc.outside import markdown_cell
from lmrc.report import costs, figures, html, sections, streams
from lmrc.report.contents import Contents
from lmrc.report.costs import Cost
from lmrc.report.html import Drawing, Section
from lmrc.report.records import Description, RunRecord
from lmrc.report.summary import MethodSummary, Spread, metric_name, percent, summarize_methods

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report: what each kind of rotation brings for its seconds."""
    metric = streams.metric_of(description)
    summaries, by_method = summarize_methods(records, metric), costs.costs(records)
    chart = _drawing(summaries, by_method, metric)
    caption = (
        f"Average incremental {metric_name(metric)} (full) and after the last task (hollow) "
        "against seconds. Left: training, all tasks. Right: testing all classes, after the "
        f"last task. {costs.CLOCK}"
    )
    result = Section(
        "result",
        "Accuracy against seconds",
        html.figure(chart, "cost", caption, panels=2)
        + sections.accuracy_table(summaries, {}, metric)
        + sections.end_table(summaries, metric),
    )
    return streams.gather(
        description,
        records,
        summaries,
        headline=_headline(summaries),
        findings=[],
        parts=[result, costs.section(summaries, by_method)],
        markdown=_markdown(summaries, by_method),
        drawings={"cost": chart},
    )


def _drawing(
    summaries: Sequence[MethodSummary], by_method: Mapping[str, Cost], metric: str
) -> Drawing:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import MaxNLocator

    with figures.style():
        # Wide enough that the last number of the left axis does not meet the first of the right.
        figure = Figure(figsize=(7.6, 3.6), layout=ConstrainedLayoutEngine(wspace=0.1))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, name in zip(panels, ("training", "testing"), strict=True):
            for s in summaries:
                spread = getattr(by_method[s.method], name)
                if spread:
                    _points(axes, spread, s)
            axes.set(xlabel=f"{name} (s)", ylim=(0, 102), xlim=(0, 1.12 * axes.get_xlim()[1]))
            axes.xaxis.set_major_locator(MaxNLocator(5))
            figures.plain(axes)
        panels[0].set_ylabel(f"{metric_name(metric)} (%)")
        figures.legend_below(figure, 3)
    return Drawing(
        figure,
        "Accuracy against seconds of training and of testing. The tables below hold the numbers.",
    )


def _points(axes: Axes, seconds: Spread, summary: MethodSummary) -> None:
    look = figures.look(summary.place)
    for share, hollow in ((summary.average, False), (summary.final, True)):
        if share is None:
            continue
        place = [seconds.mean], [100 * share.mean]
        # A bar without a length would still show its caps, as a cross within a hollow mark.
        spare = seconds.deviation or None, 100 * (share.deviation or 0.0) or None
        axes.errorbar(*place, xerr=spare[0], yerr=spare[1], color=look.colour, capsize=2, zorder=2)
        axes.plot(
            *place,
            color=look.colour,
            marker=look.marker,
            markerfacecolor="none" if hollow else look.colour,
            markersize=8,
            linestyle="none",
            label=None if hollow else summary.method,
            zorder=3,
        )


def _headline(summaries: Sequence[MethodSummary]) -> str:
    """Tell the accuracies; what the clock says is no ground for a headline."""
    parts = [f"{s.method}: {100 * s.average.mean:.1f} %" for s in summaries if s.average]
    return f"{'; '.join(parts)} on average over the tasks." if parts else ""


def _markdown(summaries: Sequence[MethodSummary], by_method: Mapping[str, Cost]) -> str:
    lines = [
        "| method | average incremental accuracy (%) | after the last task (%) "
        "| training (s) | testing (s) |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for s in summaries:
        cost = by_method[s.method]
        cells = [markdown_cell(s.method), percent(s.average), percent(s.final)]
        cells += [costs.seconds(cost.training), costs.seconds(cost.testing)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", costs.CLOCK])
