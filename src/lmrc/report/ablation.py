"""Report of `ablation`: from LMRC to LMRC+, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from lmrc.outside import brief, markdown_cell
from lmrc.report import costs, heads, html, sections, streams
from lmrc.report.ablation_figure import bars
from lmrc.report.contents import Contents
from lmrc.report.costs import Cost
from lmrc.report.html import Drawing, Section
from lmrc.report.records import Description, RunRecord
from lmrc.report.summary import MethodSummary, csv_text, percent, summarize_methods

STEPS_NOTE = (
    "Right head: how often the prediction is from the right task, after the last one; head "
    "given: accuracy if that were known. Rows without seconds are read off the "
    "network above them, whose seconds hold the statistics, too, and which keeps what all of "
    "them need."
)


@dataclass(frozen=True)
class Rung:
    """A row: what it came to, what its network cost, and whether a row above has that network."""

    summary: MethodSummary
    cost: Cost
    is_read_off: bool
    needs_statistics: bool

    @property
    def stored(self) -> float | None:
        """Bytes for each class."""
        if self.cost.images is None or self.cost.statistics is None:
            return None
        return self.cost.images + self.cost.statistics * self.needs_statistics


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report: what each step brings, and how the choice of the head gets better.

    Accuracy is that of the first choice on every data set: readouts are measured by no other.
    """
    rungs = _rungs(description.recipe.get("rungs") or [], records)
    rows = [rung.summary for rung in rungs]
    ends = rows if len(rows) < 2 else [rows[0], rows[-1]]
    chart, choice = _drawing(rows), heads.drawing(ends)
    whiskers = " The whiskers are one standard deviation long on either side."
    caption = _order(rungs) + whiskers * bool(html.n_seeds(rows))
    return streams.gather(
        description,
        records,
        summarize_methods(records),
        headline=_headline(ends),
        findings=_findings(ends),
        parts=[
            Section(
                "result",
                "What each step brings",
                html.figure(chart, "ablation", caption) + _table(rungs),
            ),
            Section(
                "choice",
                "The right head, as heads are added",
                html.figure(choice, "head-choice", heads.caption(ends))
                + sections.measured_table(ends, "task_id_accuracy", "The right head wins")
                + sections.measured_table(
                    ends, "task_aware_accuracy", "Accuracy with the head given"
                ),
            ),
            Section("tasks", "Task after task", sections.accuracy_table(rows)),
        ],
        markdown=_markdown(rungs),
        drawings={"ablation": chart, "head-choice": choice},
        tables={"ablation": _csv(rungs)},
    )


def _rungs(wanted: Sequence[Mapping[str, str]], records: Sequence[RunRecord]) -> list[Rung]:
    """Return the rows of which there are records."""
    by_method, seen, rungs = costs.costs(records), set(), []
    steps = [
        rung
        for rung in wanted or [{"name": method, "method": method} for method in by_method]
        if rung["method"] in by_method
    ]
    lines = [
        _read(rung, line) for rung in steps for line in records if line.method == rung["method"]
    ]
    for rung, summary in zip(steps, summarize_methods(lines), strict=True):
        is_read_off = rung["method"] in seen
        cost = by_method[rung["method"]]
        rungs.append(Rung(summary, cost, is_read_off, rung.get("rule") != "wta"))
        seen.add(rung["method"])
    if not rungs:
        raise ValueError("there are no records of any row that run.json asks for: run it again.")
    return rungs


def _order(rungs: Sequence[Rung]) -> str:
    """Say what a row has of the rows above it."""
    read_off = [rung.summary.method for rung in rungs if rung.is_read_off]
    if len(read_off) < 2:
        return "Each row has what the rows above it have."
    first, last = read_off[0], read_off[-1]
    return (
        f"Each row has what the rows above it have, except from “{first}” to “{last}”: these are "
        f"ways to read the answers of one network, and what comes after goes on from “{last}”."
    )


def _same(rungs: Sequence[Rung]) -> list[str]:
    """Say which rows have, in all runs, the very numbers of the row above them."""

    def numbers(rung: Rung) -> list[tuple[float | None, ...]]:
        records = [record for run in rung.summary.runs for record in run]
        return [(r.accuracy, r.task_id_accuracy, r.task_aware_accuracy) for r in records]

    return [
        f"“{here.summary.method}” has the very numbers of “{above.summary.method}”: on this data "
        "set it adds nothing to it."
        for above, here in pairwise(rungs)
        if numbers(above) == numbers(here)
    ]


def _read(rung: Mapping[str, str], line: RunRecord) -> RunRecord:
    """Return a record under the rung's name, with what its readout measured."""
    way = rung.get("rule")
    measured: dict[str, Any] = {}
    if way:
        try:
            measured = line.extra["prediction_rules"][way]
        except KeyError:
            raise ValueError(
                f"the records of {brief(line.method)} hold no readout {brief(way)}, which run.json "
                "asks for: run the experiment again."
            ) from None
    return replace(line, method=rung["name"], record=replace(line.record, **measured))


def _drawing(rows: Sequence[MethodSummary]) -> Drawing:
    return Drawing(
        bars(rows),
        "Average incremental accuracy and accuracy after the last task, step by step. The "
        "table below holds the numbers.",
    )


def _table(rungs: Sequence[Rung]) -> Markup:
    head = ["step", "average", "last", "right head", "head given", "train, s", "kB / class"]
    rows = []
    for rung in rungs:
        s = rung.summary
        cells = [html.cell(s.average, "main"), html.cell(s.final, "main")]
        cells += [html.cell(s.task_id_accuracy), html.cell(s.task_aware_accuracy)]
        cells += [html.td(_seconds(rung)), html.td(costs.kilobytes(rung.stored))]
        rows.append([html.breakable(s.method), *cells])
    caption = (
        "Accuracy, average over the tasks and after the last one, in percent; "
        f"{html.over_seeds([rung.summary for rung in rungs])}. Seconds of training, and what is "
        "stored beside the network."
    )
    note = html.note(" ".join([STEPS_NOTE, *_same(rungs), costs.TRAINING, costs.STORED]))
    return html.table(caption, head, rows) + note


def _seconds(rung: Rung) -> str:
    return "" if rung.is_read_off else costs.seconds(rung.cost.training)


def _markdown(rungs: Sequence[Rung]) -> str:
    lines = [
        "| step | average incremental accuracy (%) | after the last task (%) "
        "| right head (%) | training (s) | stored (kB per class) |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for rung in rungs:
        s = rung.summary
        cells = [markdown_cell(s.method), percent(s.average), percent(s.final)]
        cells += [percent(s.task_id_accuracy), _seconds(rung), costs.kilobytes(rung.stored)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", costs.CLOCK])


def _csv(rungs: Sequence[Rung]) -> str:
    """Return one row per step, shares from 0 to 1, each followed by its deviation (``_sd``)."""
    shares = [
        "average_incremental_accuracy",
        "final_accuracy",
        "task_id_accuracy",
        "task_aware_accuracy",
    ]
    head = ["step", "seeds", *(name + end for name in shares for end in ("", "_sd"))]
    head += ["training_seconds", "stored_bytes_per_class"]
    rows = []
    for rung in rungs:
        s = rung.summary
        spreads = [
            spread or ("", "")
            for spread in (s.average, s.final, s.task_id_accuracy, s.task_aware_accuracy)
        ]
        training = "" if rung.is_read_off or not rung.cost.training else rung.cost.training.mean
        rows.append(
            [s.method, s.n_whole, *(x for pair in spreads for x in pair), training, rung.stored]
        )
    return csv_text(head, rows)


def _headline(ends: Sequence[MethodSummary]) -> str:
    first, last = ends[0], ends[-1]
    if first is last or not (first.average and last.average):
        return ""
    return (
        f"From {first.method} to {last.method}: {100 * first.average.mean:.1f} % to "
        f"{100 * last.average.mean:.1f} % on average over the tasks."
    )


def _findings(ends: Sequence[MethodSummary]) -> list[str]:
    """Tell what becomes of the choice between heads."""
    parts = [
        f"The task-ID accuracy of {s.method} is {100 * s.task_id_accuracy.mean:.0f} %, and "
        f"its task-aware accuracy {100 * s.task_aware_accuracy.mean:.0f} %"
        for s in ends
        if s.task_id_accuracy and s.task_aware_accuracy
    ]
    return [f"In the end {'; '.join(parts)}."] if parts else []
