"""Report of `consolidation` (Fig. 4 b, c): LMRC against LM, all classes and old classes."""

from __future__ import annotations

from collections.abc import Sequence

from lmrc.report import figures, html, sections, streams
from lmrc.report.contents import Contents
from lmrc.report.figures import Curve
from lmrc.report.html import Drawing, Section
from lmrc.report.records import Description, RunRecord
from lmrc.report.summary import MethodSummary, metric_name, over_tasks, summarize_methods


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report: what of the accuracy is due to the hold on old responses."""
    metric = streams.metric_of(description)
    summaries = summarize_methods(records, metric)
    drawing = _drawing(summaries, metric)
    caption = (
        f"Solid: {metric_name(metric)} over all classes seen so far; dotted: accuracy over the "
        f"classes of earlier tasks.{sections.band(summaries)}"
    )
    result = Section(
        "result",
        "All classes and old classes",
        html.figure(drawing, "consolidation", caption)
        + sections.accuracy_table(summaries, description.paper, metric)
        + sections.measured_table(
            summaries, "old_accuracy", "Accuracy over the classes of earlier tasks"
        )
        + sections.end_table(summaries, metric),
    )
    return streams.gather(
        description,
        records,
        summaries,
        headline=_headline(summaries),
        parts=[result, sections.classes_section(summaries), sections.heads_section(summaries)],
        drawings={"consolidation": drawing},
    )


def _drawing(summaries: Sequence[MethodSummary], metric: str) -> Drawing:
    solid, dotted = [], []
    for s in summaries:
        look, seen = figures.look(s.place), s.classes_seen
        whole, old = s.accuracy, over_tasks(s.runs, "old_accuracy")
        solid.append(Curve(f"{s.method}, all classes", look._replace(dashes="-"), seen, whole))
        dotted.append(
            Curve(f"{s.method}, old classes", look._replace(dashes=":"), seen, old, hollow=True)
        )
    return Drawing(
        figures.over_tasks([*solid, *dotted], ylabel=f"{metric_name(metric)} (%)"),
        "Accuracy over all seen classes and over the old ones after each task. The tables "
        "below hold the numbers.",
    )


def _headline(summaries: Sequence[MethodSummary]) -> str:
    """Return what is left of the old classes, with the hold on their responses and without."""
    old = {s.method: s.old.mean for s in summaries if s.old}
    if not {"LMRC", "LM"} <= set(old):
        return ""
    return (
        f"With Response Consolidation {100 * old['LMRC']:.1f} % of the old classes' samples are "
        f"right in the end; without it {100 * old['LM']:.1f} %."
    )
