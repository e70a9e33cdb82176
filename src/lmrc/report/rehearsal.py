"""Report of `rehearsal` (Table 1): methods with a few exemplars per class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from lmrc.report import figures, html, sections
from lmrc.report.html import Contents, Drawing, Section
from lmrc.report.records import Description, RunRecord
from lmrc.report.summary import (
    MethodSummary,
    Spread,
    as_markdown,
    as_spread,
    best,
    memory_unit,
    name_best,
    split_title,
    style_indices,
    summarize_methods,
)


@dataclass(frozen=True)
class Table1:
    """Average incremental accuracy, ours and the paper's, by method and number of exemplars.

    The number is per class, or in total: `unit`.
    """

    methods: list[str]
    styles: dict[str, int]
    sizes: list[int]
    ours: dict[tuple[str, int], Spread | None]
    paper: dict[tuple[str, int], Spread | None]
    unit: str

    @property
    def columns(self) -> list[tuple[str, str, list[Spread | None]]]:
        """Heading, CSS class and values of each column."""
        shown = [("main", self.ours), *([("paper", self.paper)] if self.paper else [])]
        return [
            (
                "paper" if kind == "paper" else f"{size} {self.unit}",
                kind,
                [values.get((method, size)) for method in self.methods],
            )
            for size in self.sizes
            for kind, values in shown
        ]


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report: Table 1, ours and the paper's side by side."""
    summaries = summarize_methods(records, sections.metric_of(description))
    kind = summaries[0].metric_name
    table = _table1(summaries, description)
    heads, kinds, values = zip(*table.columns, strict=True)
    rows = list(zip(table.methods, *values, strict=True))
    body = html.table(
        f"Average incremental {kind} with exemplars, in percent; {html.over_seeds(summaries)}.",
        ["method", *heads],
        [
            [html.name(method, table.styles[method]), *map(html.cell, spreads, kinds)]
            for method, *spreads in rows
        ],
    )
    body += html.note(sections.PROTOCOL) if table.paper else Markup()
    drawings = {}
    if len(table.sizes) > 1:  # a single size is no line
        drawings = {"rehearsal": _drawing(table, kind)}
        caption = f"Average incremental {kind} by exemplars {table.unit}." + (
            " Hollow, dotted: the paper's." if table.paper else ""
        )
        body += html.figure(drawings["rehearsal"], "rehearsal", caption)
    result = Section("result", "Average incremental accuracy", body)
    # A method has one colour, whatever its number of exemplars.
    recoloured = [replace(s, style=table.styles[split_title(s.method)[0]]) for s in summaries]
    detail = Section(
        "tasks",
        "Accuracy after each task",
        sections.accuracy_table(recoloured) + sections.final_table(recoloured),
    )
    return sections.gather(
        description,
        records,
        summaries,
        headline=_headline(table),
        findings=[],
        sections=[result, detail, *sections.detail_sections(summaries)],
        markdown=as_markdown(["method", *(f"{head} (%)" for head in heads)], rows),
        drawings=drawings,
    )


def _table1(summaries: Sequence[MethodSummary], description: Description) -> Table1:
    ours = {split_title(s.method): s.average for s in summaries}
    paper = description.paper.items()
    printed = {key: as_spread(share) for t, share in paper if (key := split_title(t)) in ours}
    methods, sizes = list(dict.fromkeys(m for m, _ in ours)), sorted({size for _, size in ours})
    unit = memory_unit(description.recipe.get("total"))
    return Table1(methods, style_indices(methods), sizes, ours, printed, unit)


def _drawing(table: Table1, kind: str) -> Drawing:
    with figures.panel(4.9, 3.6) as (figure, axes):
        for method in table.methods:
            style = figures.line_style(table.styles[method])
            mine = [(p, s) for p in table.sizes if (s := table.ours.get((method, p)))]
            deviations = [100 * (spread.deviation or 0.0) for _, spread in mine]
            axes.errorbar(
                [size for size, _ in mine],
                [100 * spread.mean for _, spread in mine],
                yerr=deviations if any(deviations) else None,
                color=style.colour,
                marker=style.marker,
                linestyle="-",
                linewidth=1.9,
                capsize=3,
                label=method,
            )
            theirs = [(p, s) for p in table.sizes if (s := table.paper.get((method, p)))]
            axes.plot(
                [size for size, _ in theirs],
                [100 * spread.mean for _, spread in theirs],
                color=style.colour,
                marker=style.marker,
                markerfacecolor="none",
                linestyle=":",
                linewidth=1.4,
            )
        axes.set(
            xlabel=f"exemplars {table.unit}",
            ylabel=f"average incremental\n{kind} (%)",
        )
        axes.set_xticks(table.sizes)
        figures.declutter(axes)
        figures.legend_below(figure, 2, handlelength=3.2)
    methods = ", ".join(table.methods)
    return Drawing(
        figure,
        f"Average incremental accuracy by number of exemplars: {methods}. The table above holds "
        "the numbers.",
    )


def _headline(table: Table1) -> str:
    """Name the best method for each number of exemplars, or those that are on par."""
    ours = {p: {m: s for m in table.methods if (s := table.ours.get((m, p)))} for p in table.sizes}
    compared = {p: found for p, found in ours.items() if len(found) > (len(table.methods) > 1)}
    leaders = {size: best(found) for size, found in compared.items()}
    names = {tuple(found) for found in leaders.values()}
    if len(names) == 1 and len(next(iter(names))) == 1:
        (name,) = next(iter(names))
        numbers = ", ".join(f"{100 * found[name]:.1f} %" for found in leaders.values())
        sizes = ", ".join(map(str, leaders))
        where = " for every buffer size" if len(leaders) > 1 else ""
        where = where if len(leaders) == len(table.sizes) else " where compared"
        lead = f"{name} is best{where}" if len(table.methods) > 1 else name
        return f"{lead}: {numbers} with {sizes} exemplars {table.unit}."
    parts = []
    for size, found in leaders.items():
        lead, shares = name_best(found)
        parts.append(f"with {size} exemplars {table.unit} {lead} ({shares} %)")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""
