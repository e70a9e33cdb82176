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
from lmrc.report.summary import MethodSummary, csv_text, over_batches, percent, summarize_methods


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report: how often the right head wins, and what it costs where it does not."""
    summaries = summarize_methods(records)
    choice = drawing(summaries)
    squares = sections.confusions(summaries)
    result = Section(
        "result",
        "The right head, as heads are added",
        html.figure(choice, "head-choice", caption(summaries))
        + sections.measured_table(summaries, "head_choice", "The right head wins")
        + sections.measured_table(summaries, "head_given", "Accuracy with the head given")
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
        "Solid: how often the prediction is from the right class batch; dotted: accuracy if the "
        f"class batch were known.{sections.band(summaries)}"
    )


def drawing(summaries: Sequence[MethodSummary]) -> Drawing:
    """Draw how often the right head wins, and accuracy with the head given, over time."""
    curves = [
        *_curves(summaries, "head_choice", "right head", "-"),
        *_curves(summaries, "head_given", "head given", ":"),
    ]
    return Drawing(
        figures.over_batches(curves, ylabel="share of samples (%)"),
        "How often the right head wins, and accuracy with the head given, after each class batch. "
        "The tables below hold the numbers.",
    )


def _curves(
    summaries: Sequence[MethodSummary], measured: str, words: str, dashes: str
) -> Iterator[Curve]:
    for s in summaries:
        look = figures.look(s.place)._replace(dashes=dashes)
        spreads = over_batches(s.runs, measured)
        label = f"{s.method}, {words}"
        yield Curve(label, look, s.classes_seen, spreads, hollow=dashes == ":")


def _headline(summaries: Sequence[MethodSummary]) -> str:
    told = next((s for s in summaries if s.head_choice and s.head_given), None)
    if told is None or told.head_choice is None or told.head_given is None:
        return ""
    return (
        f"In the end {told.method} asks the right head for {100 * told.head_choice.mean:.1f} % of "
        f"the samples; told which, it would be right on {100 * told.head_given.mean:.1f} %."
    )


def _markdown(summaries: Sequence[MethodSummary]) -> str:
    lines = [
        "| method | right head (%) | accuracy, head given (%) | accuracy (%) |",
        "| --- | ---: | ---: | ---: |",
    ]
    for s in summaries:
        cells = [percent(x) for x in (s.head_choice, s.head_given, s.final)]
        lines.append(f"| {markdown_cell(s.method)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _confusion_csv(summaries: Sequence[MethodSummary]) -> str:
    """Return the counts: a row for each method, head that governs and head that won."""
    rows = [
        [s.method, i + 1, j + 1, count]
        for s in summaries
        for i, row in enumerate(s.head_confusion)
        for j, count in enumerate(row)
    ]
    return csv_text(["method", "governs", "won", "samples"], rows)


def _file_name(method: str) -> str:
    plain = method.replace("+", "-plus-")  # LMRC and LMRC+ are two
    # No more than 50 letters: the name of a file may have some 250 bytes.
    return re.sub(r"[^\w.]+", "-", plain)[-50:].strip("-").lower()
