"""Reports with a row for each variant: `ablation` and `pretrained`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from lmrc.methods.catalog import METHODS
from lmrc.report import figures, html, incremental, sections
from lmrc.report.html import Contents, Drawing, Section
from lmrc.report.records import Description, RunRecord
from lmrc.report.sections import Cost
from lmrc.report.summary import (
    MethodSummary,
    as_markdown,
    best,
    csv_text,
    in_columns,
    name_best,
    style_indices,
    summarize_methods,
    with_deviations,
)
from lmrc.text import brief

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BAR = 0.36  # thickness, where a row takes 1
MAX_LETTERS = 34  # of a row's name in the figure

SHARED_NETWORK = (
    "Rows without seconds are further prediction rules of the network above them; its seconds "
    "include the class statistics that all of its rules need."
)


@dataclass(frozen=True)
class Row:
    """A row: its scores, its network's cost, and whether a row above has the same network."""

    summary: MethodSummary
    cost: Cost
    shares_network: bool
    needs_statistics: bool

    @property
    def cost_cells(self) -> list[str]:
        """Seconds of training, and kB per class, as text."""
        training = "" if self.shares_network else sections.seconds(self.cost.training)
        return [training, sections.kilobytes(self.stored)]

    @property
    def stored(self) -> float | None:
        """Bytes per class."""
        if self.cost.images is None or self.cost.statistics is None:
            return None
        return self.cost.images + self.cost.statistics * self.needs_statistics


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report of `ablation`: the effect of each row, and the task-ID accuracy.

    The metric is accuracy on every data set: prediction rules have no other.
    """
    rows = _rows(description.recipe.get("rows") or [], records)
    ends = [row.summary for row in (rows if len(rows) < 2 else [rows[0], rows[-1]])]
    task_id = incremental.task_id_drawing(ends)
    figure = html.figure(task_id, "task-id-accuracy", incremental.task_id_caption(ends))
    tables = incremental.task_id_tables(ends)
    contents = _contents(
        description, records, rows, "The effect of each change", _order(rows), _headline(ends)
    )
    result, tasks = contents.sections
    by_task = Section("task-id", "Task-ID accuracy over the tasks", figure + tables)
    return replace(
        contents,
        findings=_findings(ends),
        sections=[result, by_task, tasks],
        drawings={**contents.drawings, "task-id-accuracy": task_id},
    )


def build_pretrained(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report of `pretrained`: prediction rules beside each other, and joint training."""
    wanted, variants = (description.recipe.get(name) or () for name in ("rows", "variants"))
    rows = _rows(list(wanted), records)
    joint = {v["title"] for v in dict(variants).values() if v.get("method") == "joint"}
    bounds = {row["name"] for row in wanted if row["method"] in joint}
    averages = {row.summary.method: row.summary.average for row in rows}
    compared = {m: average for m, average in averages.items() if average and m not in bounds}
    headline = ""
    if compared:
        lead, shares = name_best(best(compared))
        others = [
            f"; {method} (keeps all data): {100 * average.mean:.1f} %"
            for method, average in averages.items()
            if average and method in bounds
        ]
        headline = f"{lead}: {shares} % average incremental accuracy{''.join(others)}."
    heading = "Accuracy by backbone and prediction rule"
    caption = "Joint training keeps all images; no other row keeps any."
    return _contents(description, records, rows, heading, caption, headline)


def _contents(
    description: Description,
    records: Sequence[RunRecord],
    rows: Sequence[Row],
    heading: str,
    caption: str,
    headline: str,
) -> Contents:
    """Return what both reports have: a chart and a table of the rows, and accuracy by task."""
    summaries, name = [row.summary for row in rows], description.experiment
    chart = Drawing(
        _bars(summaries),
        "Average incremental accuracy and accuracy after the last task, row by row. The table "
        "below holds the numbers.",
    )
    caption += " Whiskers: ± one standard deviation." * bool(html.n_seeds(summaries))
    return sections.gather(
        description,
        records,
        summarize_methods(records),
        headline=headline,
        findings=[],
        sections=[
            Section("result", heading, html.figure(chart, name, caption) + _table(rows)),
            Section("tasks", "Accuracy after each task", sections.accuracy_table(summaries)),
        ],
        markdown=_markdown(rows),
        drawings={name: chart},
        tables={name: _csv(rows)},
    )


def _rows(wanted: Sequence[Mapping[str, str]], records: Sequence[RunRecord]) -> list[Row]:
    """Return the rows of which there are records."""
    by_method, seen, rows = sections.costs(records), set(), []
    found = [
        row
        for row in wanted or [{"name": method, "method": method} for method in by_method]
        if row["method"] in by_method
    ]
    lines = [_record_of(row, r) for row in found for r in records if r.method == row["method"]]
    for row, summary in zip(found, summarize_methods(lines), strict=True):
        method = row["method"]
        rows.append(Row(summary, by_method[method], method in seen, row.get("rule") != "wta"))
        seen.add(method)
    if not rows:
        raise ValueError("there are no records of any row of run.json: run the experiment again.")
    return rows


def _record_of(row: Mapping[str, str], line: RunRecord) -> RunRecord:
    """Return a record under the row's name, with the scores of its prediction rule."""
    rule = row.get("rule")
    scores: dict[str, Any] = {}
    if rule:
        try:
            scores = line.extra["prediction_rules"][rule]
        except KeyError:
            raise ValueError(
                f"the records of {brief(line.method)} hold no prediction rule {brief(rule)}, which "
                "a row of run.json needs: run the experiment again."
            ) from None
    return replace(line, method=row["name"], record=replace(line.record, **scores))


def _order(rows: Sequence[Row]) -> str:
    """Say which changes a row includes."""
    rules = [row.summary.method for row in rows if row.shares_network]
    if len(rules) < 2:
        return "Each row includes the changes of the rows above it."
    first, last = rules[0], rules[-1]
    return (
        "Each row includes the changes of the rows above it, except from "
        f"“{first}” to “{last}”: these are prediction rules of one network, and the rows below "
        f"use “{last}”."
    )


def _without_effect(rows: Sequence[Row]) -> list[str]:
    """Name the rows that have, in all runs, exactly the scores of the row above them."""

    def scores(row: Row) -> list[tuple[float | None, ...]]:
        records = [record for run in row.summary.runs for record in run]
        return [(r.accuracy, r.task_id_accuracy, r.task_aware_accuracy) for r in records]

    return [
        f"“{row.summary.method}” is identical to “{above.summary.method}” on this data set."
        for above, row in pairwise(rows)
        if scores(above) == scores(row)
    ]


def _table(rows: Sequence[Row]) -> Markup:
    head = ["row", "average", "last", "task-ID", "task-aware", "train, s", "kB / class"]
    lines = []
    for row in rows:
        s = row.summary
        main = [html.cell(s.average, "main"), html.cell(s.final, "main")]
        tasks = [s.task_id_accuracy, s.task_aware_accuracy]
        lines.append([html.breakable(s.method), *main, *tasks, *row.cost_cells])
    caption = (
        "Accuracy, average over the tasks and after the last one, in percent; "
        f"{html.over_seeds([row.summary for row in rows])}. Seconds of training, and storage "
        "beside the network."
    )
    notes = [sections.TASK_MEASURES, SHARED_NETWORK, *_without_effect(rows)]
    note = html.note(" ".join([*notes, sections.TRAINING, sections.STORED]))
    return html.table(caption, head, lines) + note


def _markdown(rows: Sequence[Row]) -> str:
    head = ["row", "average incremental accuracy (%)", "last accuracy (%)"]
    head += ["task-ID accuracy (%)", "training (s)", "stored (kB per class)"]
    lines = [
        [s.method, s.average, s.final, s.task_id_accuracy, *row.cost_cells]
        for row in rows
        if (s := row.summary)
    ]
    return f"{as_markdown(head, lines)}\n\n{sections.CLOCK}"


def _csv(rows: Sequence[Row]) -> str:
    """Return the rows, shares from 0 to 1, each followed by its deviation (``_sd``)."""
    shares = ["average_incremental_accuracy", "final_accuracy"]
    shares += ["task_id_accuracy", "task_aware_accuracy"]
    head = ["row", "seeds", *with_deviations(shares), "training_seconds", "stored_bytes_per_class"]
    lines = []
    for row in rows:
        s = row.summary
        spreads = in_columns([s.average, s.final, s.task_id_accuracy, s.task_aware_accuracy])
        training = "" if row.shares_network or not row.cost.training else row.cost.training.mean
        lines.append([s.method, s.n_complete, *spreads, training, row.stored])
    return csv_text(head, lines)


def _headline(ends: Sequence[MethodSummary]) -> str:
    first, last = ends[0], ends[-1]
    if first is last or not (first.average and last.average):
        return ""
    return (
        f"From {first.method} to {last.method}: {100 * first.average.mean:.1f} % to "
        f"{100 * last.average.mean:.1f} % average incremental accuracy."
    )


def _findings(ends: Sequence[MethodSummary]) -> list[str]:
    """Compare the final task-ID accuracies."""
    parts = [
        f"the task-ID accuracy of {s.method} is {100 * s.task_id_accuracy.mean:.0f} % and "
        f"its task-aware accuracy {100 * s.task_aware_accuracy.mean:.0f} %"
        for s in ends
        if s.task_id_accuracy and s.task_aware_accuracy
    ]
    return [f"After the last task, {'; '.join(parts)}."] if parts else []


def _bars(rows: Sequence[MethodSummary]) -> Figure:
    """Draw average incremental and final accuracy of each row, the first row on top."""
    with figures.panel(5.6, 1.0 + 0.46 * len(rows)) as (figure, axes):
        measures = (
            ("average over the tasks", [row.average for row in rows], 1.0),
            ("after the last task", [row.final for row in rows], 0.5),
        )
        styles = style_indices([row.method for row in rows])
        plain = figures.LINE_STYLES[-1].colour  # for what is not a method by itself
        of_rows = [styles[row.method] for row in rows]
        colours = [
            figures.line_style(style).colour if style < len(METHODS) else plain for style in of_rows
        ]
        for side, (label, spreads, opacity) in zip((-0.5, 0.5), measures, strict=True):
            drawn = [(i + side * BAR, spread) for i, spread in enumerate(spreads) if spread]
            deviations = [100 * (spread.deviation or 0.0) for _, spread in drawn]
            for (position, spread), deviation in zip(drawn, deviations, strict=True):
                end = 100 * spread.mean + deviation + 1.2
                axes.text(end, position, f"{100 * spread.mean:.1f}", va="center", fontsize=8)
            axes.barh(
                [position for position, _ in drawn],
                [100 * spread.mean for _, spread in drawn],
                height=BAR,
                xerr=deviations if any(deviations) else None,
                color=[colours[i] for i, spread in enumerate(spreads) if spread],
                alpha=opacity,
                error_kw={"ecolor": figures.INK, "elinewidth": 1.0, "capsize": 2.0},
                label=label,
            )
        names = [figures.shortened(row.method, MAX_LETTERS) for row in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.invert_yaxis()
        axes.set(xlim=(0, 100), xlabel="accuracy over all seen classes (%)")
        figures.declutter(axes)
        axes.grid(visible=False, axis="y")
        axes.grid(axis="x", linewidth=0.6, alpha=0.22, color=figures.INK)
        figures.legend_below(figure, 2)
    return figure
