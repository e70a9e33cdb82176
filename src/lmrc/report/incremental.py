"""Reports of `incremental` (Fig. 3), `consolidation` (Fig. 4 b, c) and `heads`.

They show the same kind of records: the accuracy of methods over the tasks, the effect of Response
Consolidation, and which task is predicted. The demo is shown as `incremental` is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from lmrc.report import figures, html, sections
from lmrc.report.figures import Curve
from lmrc.report.html import Contents, Drawing, Section
from lmrc.report.records import Description, RunRecord
from lmrc.report.summary import (
    MethodSummary,
    Spread,
    as_markdown,
    best,
    csv_text,
    name_best,
    over_tasks,
    summarize_methods,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Stores the images of all tasks: a bound to compare with, never the best method.
UPPER_BOUND = "Joint"


def build(
    description: Description, records: Sequence[RunRecord], beside: Sequence[MethodSummary] = ()
) -> Contents:
    """Return the report of runs over tasks; the figure has those of `beside`, too."""
    summaries = summarize_methods(records, sections.metric_of(description))
    kind = summaries[0].metric_name.capitalize()
    drawn = [*summaries, *beside]
    methods = ", ".join(summary.method for summary in drawn)
    drawing = Drawing(
        figures.accuracy_over_tasks(drawn),
        f"{kind} over all seen classes after each task: {methods}. The table below holds the "
        "numbers.",
    )
    caption = f"{kind} over all classes seen so far.{sections.band(drawn)}"
    result = Section(
        "result",
        "Accuracy over the tasks",
        html.figure(drawing, "accuracy", caption)
        + sections.accuracy_table(summaries, description.paper)
        + sections.final_table(summaries),
    )
    return sections.gather(
        description,
        records,
        summaries,
        headline=_headline(summaries),
        findings=final_findings(summaries),
        sections=[
            result,
            sections.cost_section(summaries, sections.costs(records)),
            *sections.detail_sections(summaries),
        ],
        drawings={"accuracy": drawing},
    )


def _headline(summaries: Sequence[MethodSummary]) -> str:
    averages = {s.method: s.average.mean for s in summaries if s.average}
    if not averages:
        return ""
    compared = _compared(summaries)
    leaders = best(compared)
    others = [
        f"; {words}: {100 * averages[method]:.1f} %"
        for method, words in (("LMRC", "LMRC"), (UPPER_BOUND, "joint training (keeps all data)"))
        if method in averages and method not in leaders
    ]
    lead, shares = name_best(leaders)
    lead = lead if len(compared) > 1 else next(iter(leaders))
    kind = summaries[0].metric_name
    return f"{lead}: {shares} % average incremental {kind}{''.join(others)}."


def _compared(summaries: Sequence[MethodSummary]) -> dict[str, Spread]:
    """Return the averages of those methods that may be called best."""
    averages = {s.method: s.average for s in summaries if s.average}
    return {m: spread for m, spread in averages.items() if m != UPPER_BOUND} or averages


def final_findings(summaries: Sequence[MethodSummary]) -> list[str]:
    """Describe the best methods and LMRC after the last task; the table has the others."""
    top5, top1 = (" (top 5)", " (top 1)") if summaries[0].metric == "top5" else ("", "")
    leaders = best(_compared(summaries))
    found = []
    for s in summaries:
        if not (s.final and s.old and (s.method in leaders or s.method == "LMRC")):
            continue
        line = (
            f"{s.method}: last accuracy {100 * s.final.mean:.0f} %{top5}, on old classes "
            f"{100 * s.old.mean:.0f} %{top1}"
        )
        if s.task_aware_accuracy:
            line += f", with the task known {100 * s.task_aware_accuracy.mean:.0f} %"
        found.append(f"{line}.")
    return found


# --- consolidation --------------------------------------------------------------------------------


def build_consolidation(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report of LMRC with and without Response Consolidation."""
    summaries = summarize_methods(records, sections.metric_of(description))
    kind = summaries[0].metric_name
    measures = {summaries[0].metric: "all classes", "old_accuracy": "old classes"}
    drawing = Drawing(
        _two_measures(summaries, measures, f"{kind} (%)"),
        "Accuracy over all seen classes and over the old ones after each task. The tables "
        "below hold the numbers.",
    )
    caption = (
        f"Solid: {kind} over all classes seen so far; dotted: accuracy over the "
        f"classes of earlier tasks.{sections.band(summaries)}"
    )
    result = Section(
        "result",
        "All classes and old classes",
        html.figure(drawing, "consolidation", caption)
        + sections.accuracy_table(summaries, description.paper)
        + sections.measure_table(
            summaries, "old_accuracy", "Accuracy over the classes of earlier tasks"
        )
        + sections.final_table(summaries),
    )
    return sections.gather(
        description,
        records,
        summaries,
        headline=_consolidation_headline(summaries),
        findings=final_findings(summaries),
        sections=[result, *sections.detail_sections(summaries)],
        drawings={"consolidation": drawing},
    )


def _consolidation_headline(summaries: Sequence[MethodSummary]) -> str:
    """Return the final accuracy on the old classes, with Response Consolidation and without."""
    old = {s.method: s.old.mean for s in summaries if s.old}
    if not {"LMRC", "LM"} <= set(old):
        return ""
    return (
        f"Final accuracy on the old classes: {100 * old['LMRC']:.1f} % with Response "
        f"Consolidation, {100 * old['LM']:.1f} % without."
    )


# --- heads ----------------------------------------------------------------------------------------


def build_heads(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report of the Confusion Problem: over the tasks, and between them."""
    summaries = summarize_methods(records)
    drawing = task_id_drawing(summaries)
    matrices = sections.confusions(summaries)
    result = Section(
        "result",
        "Task-ID accuracy over the tasks",
        html.figure(drawing, "task-id-accuracy", task_id_caption(summaries))
        + task_id_tables(summaries)
        + sections.final_table(summaries),
    )
    return sections.gather(
        description,
        records,
        summaries,
        headline=_heads_headline(summaries),
        findings=final_findings(summaries),
        sections=[
            result,
            sections.confusion_section(summaries, matrices),
            sections.classes_section(summaries),
        ],
        markdown=_heads_markdown(summaries),
        drawings={
            "task-id-accuracy": drawing,
            **{f"confusion-{_file_name(method)}": one for method, one in matrices.items()},
        },
        tables={"confusion": _confusion_csv(summaries)},
    )


def task_id_drawing(summaries: Sequence[MethodSummary]) -> Drawing:
    """Draw task-ID accuracy and task-aware accuracy over the tasks."""
    measures = {"task_id_accuracy": "task-ID", "task_aware_accuracy": "task-aware"}
    return Drawing(
        _two_measures(summaries, measures, "share of samples (%)"),
        "Task-ID accuracy and task-aware accuracy after each task. The tables below hold the "
        "numbers.",
    )


def task_id_caption(summaries: Sequence[MethodSummary]) -> str:
    """Say what the lines of `task_id_drawing` are."""
    return (
        "Solid: task-ID accuracy, how often the predicted class belongs to the true class's task; "
        f"dotted: task-aware accuracy, with the task known.{sections.band(summaries)}"
    )


def task_id_tables(summaries: Sequence[MethodSummary]) -> Markup:
    """Return task-ID accuracy and task-aware accuracy after each task."""
    measures = {"task_id_accuracy": "Task-ID", "task_aware_accuracy": "Task-aware"}
    return html.joined(
        sections.measure_table(summaries, measure, f"{words} accuracy")
        for measure, words in measures.items()
    )


def _two_measures(
    summaries: Sequence[MethodSummary], measures: Mapping[str, str], ylabel: str
) -> Figure:
    """Draw two measures of each method over the tasks: a solid line, and a dotted one."""
    curves = [
        Curve(
            f"{s.method}, {words}",
            figures.line_style(s.style)._replace(dashes=dashes),
            s.classes_seen,
            over_tasks(s.runs, measure),
            hollow=dashes == ":",
        )
        for (measure, words), dashes in zip(measures.items(), "-:", strict=True)
        for s in summaries
    ]
    return figures.over_tasks(curves, ylabel=ylabel)


def _heads_headline(summaries: Sequence[MethodSummary]) -> str:
    """Name task-ID and task-aware accuracy of the first method, and of the best other."""
    found = [
        (s.task_id_accuracy.mean, s.task_aware_accuracy.mean, s.method)
        for s in summaries
        if s.task_id_accuracy and s.task_aware_accuracy
    ]
    parts = [
        f"of {method} {100 * task:.1f} % (task-aware {100 * aware:.1f} %)"
        for task, aware, method in [*found[:1], *sorted(found[1:])[-1:]]
    ]
    return f"Task-ID accuracy after the last task: {', '.join(parts)}." if parts else ""


def _heads_markdown(summaries: Sequence[MethodSummary]) -> str:
    head = ["method", "task-ID accuracy (%)", "task-aware accuracy (%)", "accuracy (%)"]
    rows = [[s.method, s.task_id_accuracy, s.task_aware_accuracy, s.final] for s in summaries]
    return as_markdown(head, rows)


def _confusion_csv(summaries: Sequence[MethodSummary]) -> str:
    """Return the counts: a row for each method, true task and predicted task."""
    rows = [
        [s.method, i + 1, j + 1, count]
        for s in summaries
        for i, row in enumerate(s.task_confusion)
        for j, count in enumerate(row)
    ]
    return csv_text(["method", "true_task", "predicted_task", "samples"], rows)


def _file_name(method: str) -> str:
    plain = method.replace("+", "-plus-")  # LMRC and LMRC+ need different names
    # No more than 50 letters: the name of a file may have some 250 bytes.
    return re.sub(r"[^\w.]+", "-", plain)[-50:].strip("-").lower()
