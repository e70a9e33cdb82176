"""Report of `rehearsal` (Table 1): what a few exemplars per class bring each method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from lmrc.outside import markdown_cell
from lmrc.report import figures, html, sections, streams
from lmrc.report.contents import Contents
from lmrc.report.html import Drawing, Section
from lmrc.report.records import Description, RunRecord
from lmrc.report.summary import (
    MethodSummary,
    Spread,
    best,
    metric_name,
    name_best,
    percent,
    percent_of,
    summarize_methods,
)
from lmrc.report.titles import places, split_title, unit


@dataclass(frozen=True)
class Table1:
    """Average incremental accuracy, ours and the paper's, by method and pool size; its colours.

    Pool sizes are per class, or in total: `unit`.
    """

    methods: list[str]
    places: dict[str, int]
    pools: list[int]
    ours: dict[tuple[str, int], Spread | None]
    paper: dict[tuple[str, int], float]
    unit: str


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report: Table 1, ours and the paper's side by side."""
    metric = streams.metric_of(description)
    summaries = summarize_methods(records, metric)
    table = _table1(summaries, description)
    body, drawings = _html(table, summaries, metric), {}
    if len(table.pools) > 1:  # of one alone, there is no line to draw
        drawings = {"rehearsal": _drawing(table, metric)}
        caption = f"Average incremental {metric_name(metric)} by images kept, {table.unit}." + (
            " Hollow, dotted: the paper's." if table.paper else ""
        )
        body += html.figure(drawings["rehearsal"], "rehearsal", caption)
    result = Section("result", "Average incremental accuracy", body)
    # A method has one colour, whatever its pool.
    alike = [replace(s, place=table.places[split_title(s.method)[0]]) for s in summaries]
    detail = Section(
        "tasks",
        "Task after task",
        sections.accuracy_table(alike, {}, metric) + sections.end_table(alike, metric),
    )
    return streams.gather(
        description,
        records,
        summaries,
        headline=_headline(table),
        findings=[],
        parts=[
            result,
            detail,
            sections.classes_section(summaries),
            sections.heads_section(summaries),
        ],
        markdown=_markdown(table),
        drawings=drawings,
    )


def _table1(summaries: Sequence[MethodSummary], description: Description) -> Table1:
    ours = {split_title(s.method): s.average for s in summaries}
    paper = description.paper.items()
    printed = {key: share for t, share in paper if (key := split_title(t)) in ours}
    methods, pools = list(dict.fromkeys(m for m, _ in ours)), sorted({pool for _, pool in ours})
    counted = unit(description.recipe.get("total"))
    return Table1(methods, places(methods), pools, ours, printed, counted)


def _html(table: Table1, summaries: Sequence[MethodSummary], metric: str) -> Markup:
    head = ["method"]
    for pool in table.pools:
        head += [f"{pool} {table.unit}", *(["paper"] if table.paper else [])]
    rows = []
    for method in table.methods:
        cells = []
        for pool in table.pools:
            cells.append(html.cell(table.ours.get((method, pool)), "main"))
            cells += [html.paper_cell(table.paper.get((method, pool)))] if table.paper else []
        rows.append([html.name(method, table.places[method]), *cells])
    caption = (
        f"Average incremental {metric_name(metric)} with a pool of exemplars, in percent; "
        f"{html.over_seeds(summaries)}."
    )
    protocol = html.note(sections.PROTOCOL) if table.paper else Markup()
    return html.table(caption, head, rows) + protocol


def _markdown(table: Table1) -> str:
    head = ["method"]
    for pool in table.pools:
        head += [f"{pool} {table.unit} (%)", *(["paper (%)"] if table.paper else [])]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    for method in table.methods:
        cells = [markdown_cell(method)]
        for pool in table.pools:
            cells.append(percent(table.ours.get((method, pool))))
            cells += [percent_of(table.paper.get((method, pool)))] if table.paper else []
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _drawing(table: Table1, metric: str) -> Drawing:
    from matplotlib.figure import Figure

    with figures.style():
        figure = Figure(figsize=(4.9, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for method in table.methods:
            look = figures.look(table.places[method])
            mine = [(p, s) for p in table.pools if (s := table.ours.get((method, p)))]
            deviations = [100 * (spread.deviation or 0.0) for _, spread in mine]
            axes.errorbar(
                [pool for pool, _ in mine],
                [100 * spread.mean for _, spread in mine],
                yerr=deviations if any(deviations) else None,
                color=look.colour,
                marker=look.marker,
                linestyle="-",
                linewidth=1.9,
                capsize=3,
                label=method,
            )
            theirs = [(p, v) for p in table.pools if (v := table.paper.get((method, p)))]
            axes.plot(
                [pool for pool, _ in theirs],
                [100 * share for _, share in theirs],
                color=look.colour,
                marker=look.marker,
                markerfacecolor="none",
                linestyle=":",
                linewidth=1.4,
            )
        axes.set(
            xlabel=f"images kept, {table.unit}",
            ylabel=f"average incremental\n{metric_name(metric)} (%)",
        )
        axes.set_xticks(table.pools)
        figures.plain(axes)
        figures.legend_below(figure, 2, handlelength=3.2)
    methods = ", ".join(table.methods)
    return Drawing(
        figure,
        f"Average incremental accuracy by pool size: {methods}. The table above holds the numbers.",
    )


def _headline(table: Table1) -> str:
    """Name the best method at each pool size, or those that cannot be told apart."""
    ours = {p: {m: s for m in table.methods if (s := table.ours.get((m, p)))} for p in table.pools}
    compared = {p: found for p, found in ours.items() if len(found) > (len(table.methods) > 1)}
    leaders = {pool: best(found) for pool, found in compared.items()}
    names = {tuple(found) for found in leaders.values()}
    if len(names) == 1 and len(next(iter(names))) == 1:
        (name,) = next(iter(names))
        numbers = ", ".join(f"{100 * found[name]:.1f} %" for found in leaders.values())
        pools = ", ".join(map(str, leaders))
        where = "at every pool size" if len(leaders) == len(table.pools) else "where compared"
        does = f"is best {where}:" if len(table.methods) > 1 else "has"
        return f"{name} {does} {numbers} with {pools} images {table.unit}."
    parts = []
    for pool, found in leaders.items():
        lead, shares = name_best(found)
        parts.append(f"{lead} with {pool} ({shares} %)")
    return f"Best by images {table.unit}: {'; '.join(parts)}." if parts else ""
