"""Report of `softmax-suppression` (Fig. 1): mean outputs on the test samples of each class."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import NamedTuple

from markupsafe import Markup

from lmrc.report import figures, html, sections
from lmrc.report.html import Contents, Drawing, Section
from lmrc.report.records import Description, RunRecord, by_method_and_seed, class_names
from lmrc.report.summary import (
    MethodSummary,
    Spread,
    as_markdown,
    csv_text,
    in_columns,
    summarize_methods,
)
from lmrc.text import markdown_cell

CAPTION = "Mean outputs after the second task. Each panel holds the test samples of one class."


class Kind(NamedTuple):
    """Words about a kind of outputs: in a title, legend and caption, hatch of bars, a finding."""

    title: str = ""
    legend: str = ""
    hatch: str | None = None
    caption: str = "Full bars are probabilities: those of a panel sum to 1."
    finding: str = ""


#: By the name in the records.
KINDS = {
    "probability": Kind(),
    "probability within a head": Kind(
        " (within each head)",
        " (probability within each head)",
        "....",
        "Dotted bars are probabilities within each head: those of each task sum to 1.",
        "has a softmax per head: new classes take no probability from old ones, and the "
        "highest of all wins.",
    ),
    "similarity": Kind(
        " (similarities)",
        " (similarity, not a probability)",
        "////",
        "Hatched bars are similarities: cosines, not probabilities; they have no fixed sum.",
        "has no softmax: its outputs are similarities that do not compete for a sum; the highest "
        "wins.",
    ),
}


@dataclass(frozen=True)
class Outputs:
    """A method's mean outputs over its seeds: for samples of each class, at each class's output."""

    method: str
    style: int
    kind: str
    classes: list[str]
    means: list[list[Spread | None]]

    @property
    def title(self) -> str:
        """The method, and what its outputs are if they are no probabilities over all classes."""
        return self.method + KINDS[self.kind].title

    @property
    def taken(self) -> float:
        """The share of an old sample's probability that goes to new classes, on average."""
        half = len(self.classes) // 2
        old = self.means[:half]
        return sum(spread.mean for row in old for spread in row[half:] if spread) / len(old)


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return the report: which outputs old and new samples raise."""
    summaries = summarize_methods(records)
    outputs = _collect(records, {s.method: s.style for s in summaries})
    drawings = {"outputs": _drawing(outputs)} if outputs else {}
    result = html.note(sections.NOT_FINISHED)
    if outputs:
        several = " Whiskers: ± one standard deviation." if html.n_seeds(summaries) else ""
        kinds = [kind.caption for name, kind in KINDS.items() if name in {o.kind for o in outputs}]
        caption = " ".join([CAPTION, *kinds]) + several
        figure = html.figure(drawings["outputs"], "outputs", caption, panels=2)
        result = figure + _table(outputs)
    return sections.gather(
        description,
        records,
        summaries,
        headline=_headline(summaries),
        findings=_findings(outputs, summaries),
        sections=[
            Section("result", "Outputs of the network", result),
            Section("accuracy", "Accuracy", sections.final_table(summaries)),
            *sections.detail_sections(summaries),
        ],
        markdown=_markdown(outputs) if outputs else None,
        drawings=drawings,
        tables={"outputs": _csv(outputs)} if outputs else None,
    )


def _collect(records: Sequence[RunRecord], styles: Mapping[str, int]) -> list[Outputs]:
    collected = []
    names, orders = class_names(records), set()
    for method, seeds in by_method_and_seed(records).items():
        found = [found for run in seeds.values() if (found := run[-1].extra.get("outputs"))]
        if not found:
            continue
        n = len(found[0]["classes"])
        orders |= {tuple(one["classes"]) for one in found}
        named = [names.get(str(label), f"class {label}") for label in found[0]["classes"]]
        means = [
            [Spread.over(one["means"][true][i] for one in found) for i in range(n)]
            for true in range(n)
        ]
        collected.append(Outputs(method, styles[method], found[0]["kind"], named, means))
    if len(orders) > 1:  # the first class is another one for other seeds or methods
        n = len(collected[0].classes)
        general = [f"{_age(i, n)} {i % (n // 2) + 1}" for i in range(n)]
        collected = [replace(one, classes=general) for one in collected]
    return collected


def _age(position: int, n: int) -> str:
    return "old" if position < n // 2 else "new"


def _table(outputs: Sequence[Outputs]) -> Markup:
    classes = outputs[0].classes
    rows = [
        [html.name(one.title, one.style), true, *map(_cell, one.means[i])]
        for i, true in enumerate(classes)
        for one in outputs
    ]
    return html.table("Mean outputs.", ["method", "samples of", *classes], rows)


def _cell(spread: Spread | None) -> html.Cell:
    if spread is None:
        return html.cell(None)
    more = "" if spread.deviation is None else f"± {spread.deviation:.2f}"
    return html.cell(f"{spread.mean:.2f}", more=more)


def _drawing(outputs: Sequence[Outputs]) -> Drawing:
    from matplotlib.figure import Figure

    classes = outputs[0].classes
    n, width = len(classes), 0.82 / len(outputs)
    rows = math.ceil(n / 2)
    with figures.theme():
        figure = Figure(figsize=(7.6, 0.8 + 2.1 * rows), layout="constrained")
        panels = figure.subplots(rows, 2, sharey=True, squeeze=False).flat
        for true, axes in enumerate(panels):
            if true >= n:
                axes.set_axis_off()
                continue
            for i, one in enumerate(outputs):
                colour, kind = figures.line_style(one.style).colour, KINDS[one.kind]
                spreads = [spread or Spread(0.0, None) for spread in one.means[true]]
                axes.bar(
                    [p + (i - (len(outputs) - 1) / 2) * width for p in range(n)],
                    [spread.mean for spread in spreads],
                    width * 0.92,
                    yerr=[spread.deviation or 0.0 for spread in spreads],
                    color="none" if kind.hatch else colour,
                    edgecolor=colour,
                    hatch=kind.hatch,
                    ecolor=figures.INK,
                    error_kw={"elinewidth": 0.9},
                    label=one.method + kind.legend,
                )
            axes.set_xticks(
                range(n), ["\n".join(wrap(figures.shortened(name, 60), 11)) for name in classes]
            )
            axes.get_xticklabels()[true].set_fontweight("bold")
            axes.set_title(figures.shortened(f"samples of {classes[true]} ({_age(true, n)})", 40))
            axes.axhline(0, color=figures.INK, linewidth=0.6, alpha=0.5)
            axes.set(ylabel="mean output" if true % 2 == 0 else "", ylim=(None, 1.02))
            axes.axvline(n // 2 - 0.5, color=figures.INK, linewidth=0.6, alpha=0.3)
            figures.declutter(axes)
        figures.legend_below(figure, 4, columnspacing=1.4)
    methods = ", ".join(one.method for one in outputs)
    return Drawing(
        figure,
        f"Mean output for each class on the test samples of each class: {methods}. The table "
        "below holds the numbers.",
    )


def _headline(summaries: Sequence[MethodSummary]) -> str:
    """Return how much of the old classes each method still knows."""
    parts = [f"{s.method} {100 * s.old.mean:.0f} %" for s in summaries if s.old]
    return f"Old classes after two new ones: {', '.join(parts)} right." if parts else ""


def _findings(outputs: Sequence[Outputs], summaries: Sequence[MethodSummary]) -> list[str]:
    """Return the accuracy on new samples, and remarks on the outputs."""
    new = ", ".join(f"{s.method} {100 * s.new.mean:.0f} %" for s in summaries if s.new)
    taken = [f"{o.method} {100 * o.taken:.0f} %" for o in outputs if o.kind == "probability"]
    remarks = [f"{one.method} {words}" for one in outputs if (words := KINDS[one.kind].finding)]
    if taken:
        given = "Of an old sample's probability, new classes take: "
        remarks.insert(0, f"{given}{', '.join(taken)}.")
    return [f"New classes: {new}.", *remarks]


def _markdown(outputs: Sequence[Outputs]) -> str:
    classes = outputs[0].classes
    rows = [
        [one.title, true, *(f"{spread.mean:.2f}" if spread else "–" for spread in one.means[i])]
        for i, true in enumerate(classes)
        for one in outputs
    ]
    head = ["method", "samples of", *map(markdown_cell, classes)]
    return as_markdown(head, rows, texts=2)


def _csv(outputs: Sequence[Outputs]) -> str:
    rows = [
        [one.method, one.kind, true, position, *in_columns([spread])]
        for one in outputs
        for true, spreads in zip(one.classes, one.means, strict=True)
        for position, spread in zip(one.classes, spreads, strict=True)
    ]
    return csv_text(["method", "kind", "true_class", "position", "mean", "sd"], rows)
