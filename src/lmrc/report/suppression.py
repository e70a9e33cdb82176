"""Report of `softmax-suppression` (Fig. 1): mean outputs on old and on new test samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import NamedTuple

from markupsafe import Markup

from lmrc.report import figures, html, sections
from lmrc.report.html import Contents, Drawing, Section
from lmrc.report.records import Description, RunRecord, by_method_and_seed, class_names
from lmrc.report.summary import MethodSummary, Spread, csv_text, summarize_methods
from lmrc.text import markdown_cell

SAMPLES = ("old", "new")
CAPTION = "Mean output at each position after the second task."


class Kind(NamedTuple):
    """Words about a kind of outputs: in a title, legend and caption, hatch of bars, a finding."""

    title: str = ""
    legend: str = ""
    hatch: str | None = None
    caption: str = "Full bars are probabilities that sum to 1."
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
    """A method's mean outputs over its seeds: for old and for new samples, at each position."""

    method: str
    style: int
    kind: str
    positions: list[str]
    means: list[list[Spread | None]]

    @property
    def title(self) -> str:
        """The method, and what its outputs are if they are no probabilities over all classes."""
        return self.method + KINDS[self.kind].title

    def share(self, samples: int, positions: Sequence[int]) -> float:
        """Return the sum of the means at some positions."""
        spreads = self.means[samples]
        return sum(spread.mean for i in positions if (spread := spreads[i]))


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
        headline=_headline(outputs),
        findings=_findings(outputs, summaries),
        sections=[
            Section("result", "Outputs of the network", result),
            Section("accuracy", "Accuracy", sections.final_table(summaries)),
            sections.classes_section(summaries),
            sections.confusion_section(summaries),
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
            [Spread.over(one["means"][samples][i] for one in found) for i in range(n)]
            for samples in range(len(SAMPLES))
        ]
        collected.append(Outputs(method, styles[method], found[0]["kind"], named, means))
    if len(orders) > 1:  # positions are other classes for other seeds or methods
        n = len(collected[0].positions)
        general = [f"{SAMPLES[i * 2 // n]} {i % (n // 2) + 1}" for i in range(n)]
        collected = [replace(one, positions=general) for one in collected]
    return collected


def _table(outputs: Sequence[Outputs]) -> Markup:
    head = ["method", "samples", *outputs[0].positions, "old classes", "new classes"]
    rows = []
    half = len(outputs[0].positions) // 2
    for one in outputs:
        for samples, word in enumerate(SAMPLES):
            sums = (
                [one.share(samples, range(half)), one.share(samples, range(half, 2 * half))]
                if one.kind == "probability"
                else [None, None]
            )
            cells = [html.td(word), *(_cell(spread) for spread in one.means[samples])]
            cells += [html.td("–") if x is None else html.td(f"{x:.2f}", "main") for x in sums]
            rows.append([html.name(one.title, one.style), *cells])
    caption = (
        "Mean output at each position, and the shares of old and of new classes in a probability "
        "of 1."
    )
    return html.table(caption, head, rows)


def _cell(spread: Spread | None) -> Markup:
    if spread is None:
        return html.td("–")
    more = "" if spread.deviation is None else f"± {spread.deviation:.2f}"
    return html.td(f"{spread.mean:.2f}", more=more)


def _drawing(outputs: Sequence[Outputs]) -> Drawing:
    from matplotlib.figure import Figure

    positions = outputs[0].positions
    width = 0.82 / len(outputs)
    with figures.theme():
        figure = Figure(figsize=(7.6, 3.6), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for samples, (axes, word) in enumerate(zip(panels, SAMPLES, strict=True)):
            for i, one in enumerate(outputs):
                colour = figures.line_style(one.style).colour
                kind = KINDS[one.kind]
                spreads = [spread or Spread(0.0, None) for spread in one.means[samples]]
                axes.bar(
                    [p + (i - (len(outputs) - 1) / 2) * width for p in range(len(positions))],
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
            axes.set_xticks(range(len(positions)), [_ticks(p) for p in positions])
            axes.set_title(f"{word} test samples")
            axes.axhline(0, color=figures.INK, linewidth=0.6, alpha=0.5)
            axes.set_xlabel("output at the position of")
            figures.declutter(axes)
        panels[0].set_ylabel("mean output")
        panels[0].set_ylim(top=1.02)
        figures.legend_below(figure, 4, columnspacing=1.4)
    methods = ", ".join(one.method for one in outputs)
    return Drawing(
        figure,
        f"Mean output at each position for old and for new test samples: {methods}. The table "
        "below holds the numbers.",
    )


def _ticks(position: str) -> str:
    return "\n".join(wrap(figures.shortened(position, 60), 11))


def _headline(outputs: Sequence[Outputs]) -> str:
    """Return the share of an old sample's probability that goes to the new classes."""
    parts = []
    for one in outputs:
        if one.kind == "probability":
            half = len(one.positions) // 2
            share = one.share(0, range(half, 2 * half))
            parts.append(f"{one.method} {100 * share:.0f} %")
    if not parts:
        return ""
    return f"Probability that new classes take from old samples: {', '.join(parts)}."


def _findings(outputs: Sequence[Outputs], summaries: Sequence[MethodSummary]) -> list[str]:
    """Return the accuracy on old and on new samples, and remarks on the outputs."""
    old = ", ".join(f"{s.method} {100 * s.old.mean:.0f} %" for s in summaries if s.old)
    new = ", ".join(f"{s.method} {100 * s.new.mean:.0f} %" for s in summaries if s.new)
    remarks = [(one.method, KINDS[one.kind].finding) for one in outputs]
    return [
        f"Accuracy on old samples: {old}. On new ones: {new}.",
        *(f"{method} {finding}" for method, finding in remarks if finding),
    ]


def _markdown(outputs: Sequence[Outputs]) -> str:
    positions = outputs[0].positions
    lines = [
        f"| method | samples | {' | '.join(map(markdown_cell, positions))} |",
        f"| --- | --- |{' ---: |' * len(positions)}",
    ]
    for one in outputs:
        for samples, word in enumerate(SAMPLES):
            cells = [f"{spread.mean:.2f}" if spread else "–" for spread in one.means[samples]]
            lines.append(f"| {markdown_cell(one.title)} | {word} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _csv(outputs: Sequence[Outputs]) -> str:
    rows = [
        [one.method, one.kind, word, position, *(spread or ("", ""))]
        for one in outputs
        for word, spreads in zip(SAMPLES, one.means, strict=True)
        for position, spread in zip(one.positions, spreads, strict=True)
    ]
    return csv_text(["method", "kind", "samples", "position", "mean", "sd"], rows)
