"""Report of `heads`: the Confusion Problem, over time and between heads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lmrc.outside import markdown_cell
from lmrc.report import figures, html, sections, streams
from lmrc.report.contents import Contents
from lmrc.report.figures import Curve
from lmrc.report.html import Drawing, Section
from lmrc.report.records import Description, RunRecord
from lmrc.report.summary import MethodSummary, csv_text, over_tasks, percent, summarize_methods


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report: how often the right head wins, and what it costs where it does not."""
    summaries = summarize_methods(records)
    choice = drawing(summaries)
    squares = sections.confusions(summaries)
    result = Section(
        "result",
        "The right head, as heads are added",
        html.figure(choice, "head-choice", caption(summaries))
        + sections.measured_table(summaries, "task_id_accuracy", "The right head wins")
        + sections.measured_table(summaries, "task_aware_accuracy", "Accuracy with the head given")
        + sections.end_table(summaries),
    )
    return streams.gather(
        description,
        records,
        summaries,
        headline=_headline(summaries),
        findings=streams.ends(summaries),
        parts=[
            result,
            sections.heads_section(summaries, squares),
            sections.classes_section(summaries),
        ],
        markdown=_markdown(summaries),
        drawings={
            "head-choice": choice,
            **{f"confusion-{_file_name(method)}": square for method, square in squares.items()},
        },
        tables={"confusion": _confusion_csv(summaries)},
    )


def caption(summaries: Sequence[MethodSummary]) -> str:
    """Say what the lines of `drawing` are."""
    return (
        "Solid: how often the prediction is from the right task; dotted: accuracy if the "
        f"task were known.{sections.band(summaries)}"
    )


def drawing(summaries: Sequence[MethodSummary]) -> Drawing:
    """Draw how often the right head wins, and accuracy with the head given, over time."""
    curves = [
        *_curves(summaries, "task_id_accuracy", "right head", "-"),
        *_curves(summaries, "task_aware_accuracy", "head given", ":"),
    ]
    return Drawing(
        figures.over_tasks(curves, ylabel="share of samples (%)"),
        "How often the right head wins, and accuracy with the head given, after each task. "
        "The tables below hold the numbers.",
    )


def _curves(
    summaries: Sequence[MethodSummary], measured: str, words: str, dashes: str
) -> Iterator[Curve]:
    for s in summaries:
        look = figures.look(s.place)._replace(dashes=dashes)
        spreads = over_tasks(s.runs, measured)
        label = f"{s.method}, {words}"
        yield Curve(label, look, s.classes_seen, spreads, hollow=dashes == ":")


def _headline(summaries: Sequence[MethodSummary]) -> str:
    told = next((s for s in summaries if s.task_id_accuracy and s.task_aware_accuracy), None)
    if told is None or told.task_id_accuracy is None or told.task_aware_accuracy is None:
        return ""
    return (
        f"After the last task the task-ID accuracy of {told.method} is "
        f"{100 * told.task_id_accuracy.mean:.1f} %, its task-aware accuracy "
        f"{100 * told.task_aware_accuracy.mean:.1f} %."
    )


def _markdown(summaries: Sequence[MethodSummary]) -> str:
    lines = [
        "| method | right head (%) | accuracy, head given (%) | accuracy (%) |",
        "| --- | ---: | ---: | ---: |",
    ]
    for s in summaries:
        cells = [percent(x) for x in (s.task_id_accuracy, s.task_aware_accuracy, s.final)]
        lines.append(f"| {markdown_cell(s.method)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _confusion_csv(summaries: Sequence[MethodSummary]) -> str:
    """Return the counts: a row for each method, head that governs and head that won."""
    rows = [
        [s.method, i + 1, j + 1, count]
        for s in summaries
        for i, row in enumerate(s.task_confusion)
        for j, count in enumerate(row)
    ]
    return csv_text(["method", "governs", "won", "samples"], rows)


def _file_name(method: str) -> str:
    plain = method.replace("+", "-plus-")  # LMRC and LMRC+ are two
    # No more than 50 letters: the name of a file may have some 250 bytes.
    return re.sub(r"[^\w.]+", "-", plain)[-50:].strip("-").lower()
