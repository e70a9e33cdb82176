"""Report of `incremental` (Fig. 3) and of the demo: accuracy as classes arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup

from lmrc.report import costs, figures, html, sections
from lmrc.report.contents import Contents
from lmrc.report.html import Drawing, Section
from lmrc.report.records import Description, RunRecord, is_whole
from lmrc.report.settings import environment, settings_table
from lmrc.report.summary import (
    MethodSummary,
    Spread,
    best,
    csv_table,
    markdown_table,
    metric_name,
    name_best,
    summarize_methods,
)
from lmrc.report.titles import asked_for

#: Keeps the images of all tasks: to compare with, and best by right.
UPPER_BOUND = "Joint"


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report of runs over tasks."""
    metric = metric_of(description)
    summaries = summarize_methods(records, metric)
    drawing = accuracy_drawing(summaries, metric)
    kind = metric_name(metric).capitalize()
    caption = f"{kind} over all classes seen so far.{sections.band(summaries)}"
    result = Section(
        "result",
        "Accuracy as classes arrive",
        html.figure(drawing, "accuracy", caption)
        + sections.accuracy_table(summaries, description.paper, metric)
        + sections.end_table(summaries, metric),
    )
    return gather(
        description,
        records,
        summaries,
        headline=_headline(summaries, metric),
        parts=[
            result,
            costs.section(summaries, costs.costs(records)),
            sections.classes_section(summaries),
            sections.heads_section(summaries),
        ],
        drawings={"accuracy": drawing},
    )


def gather(
    description: Description,
    records: Sequence[RunRecord],
    summaries: Sequence[MethodSummary],
    *,
    headline: str,
    parts: list[Section],
    drawings: dict[str, Drawing],
    findings: list[str] | None = None,
    markdown: str | None = None,
    tables: dict[str, str] | None = None,
) -> Contents:
    """Put a report together, with what is the same for all experiments over tasks.

    There is no headline before the run has ended. ``table.csv`` is always there. Unless others are
    given, the findings are how the methods end, and the table that is printed has the averages.
    """
    paper, has_ended = description.paper, ended(description, summaries)
    found = ends(summaries, metric_of(description)) if findings is None else findings
    return Contents(
        headline=headline if has_ended else "",
        findings=found if has_ended else [],
        sections=parts,
        settings=settings_table(description, records),
        environment=made_with(records),
        markdown=markdown or markdown_table(summaries, paper, metric_of(description)),
        drawings=drawings,
        tables={"table": csv_table(summaries, paper, metric_of(description)), **(tables or {})},
    )


def metric_of(description: Description) -> str:
    """Return what the experiment reports on its data set."""
    metric: str = description.recipe.get("metric", "accuracy")
    return metric


def made_with(records: Sequence[RunRecord]) -> Markup:
    """Return versions, hardware and time."""
    seconds = sum(r.record.train_seconds + r.record.test_seconds for r in records)
    return environment(records, seconds, "Training and testing")


def accuracy_drawing(summaries: Sequence[MethodSummary], metric: str) -> Drawing:
    """Draw accuracy over the tasks."""
    methods = ", ".join(summary.method for summary in summaries)
    return Drawing(
        figures.accuracy_over_tasks(summaries, metric),
        f"{metric_name(metric).capitalize()} over all seen classes after each task: "
        f"{methods}. The table below holds the numbers.",
    )


def ended(description: Description, summaries: Sequence[MethodSummary]) -> bool:
    """Tell whether all that each command asked for is in the records, and all there is whole."""
    asked = Counter(title for title, _ in asked_for(description.commands, description.recipe))
    found = {summary.method: len(summary.runs) for summary in summaries}
    return all(found.get(title, 0) >= seeds for title, seeds in asked.items()) and all(
        is_whole(run) for summary in summaries for run in summary.runs
    )


def _headline(summaries: Sequence[MethodSummary], metric: str) -> str:
    averages = {s.method: s.average.mean for s in summaries if s.average}
    if not averages:
        return ""
    compared = _compared(summaries)
    leaders = best(compared)
    others = [
        f"; {words}: {100 * averages[method]:.1f} %"
        for method, words in (("LMRC", "LMRC"), (UPPER_BOUND, "joint training on all images"))
        if method in averages and method not in leaders
    ]
    lead, shares = name_best(leaders)
    if len(compared) > 1:
        lead += " know most" if len(leaders) > 1 else " knows most"
    kind = " (top 5)" if metric == "top5" else ""
    return f"{lead}: {shares} %{kind} on average over the tasks{''.join(others)}."


def _compared(summaries: Sequence[MethodSummary]) -> dict[str, Spread]:
    """Return the averages of those methods that may be called best."""
    averages = {s.method: s.average for s in summaries if s.average}
    return {m: spread for m, spread in averages.items() if m != UPPER_BOUND} or averages


def ends(summaries: Sequence[MethodSummary], metric: str = "accuracy") -> list[str]:
    """Tell how the best, one or several, and LMRC end; the table has the others."""
    top5, top1 = (" (top 5)", " (top 1)") if metric == "top5" else ("", "")
    leaders = best(_compared(summaries))
    found = []
    for s in summaries:
        if not (s.final and s.old and (s.method in leaders or s.method == "LMRC")):
            continue
        line = (
            f"{s.method} ends at {100 * s.final.mean:.0f} %{top5} of all classes and "
            f"{100 * s.old.mean:.0f} %{top1} of the old ones"
        )
        if s.task_aware_accuracy:
            line += f" ({100 * s.task_aware_accuracy.mean:.0f} % of all if it were told the task)"
        found.append(f"{line}.")
    return found
