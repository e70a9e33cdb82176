"""Report of `capacity` (Figs. 4a and 5): label vectors found, and expected under three laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from lmrc.report import html
from lmrc.report.capacity_figure import draw
from lmrc.report.capacity_records import CapacityRecord
from lmrc.report.contents import Contents
from lmrc.report.html import Drawing, Section
from lmrc.report.records import Description
from lmrc.report.settings import environment
from lmrc.report.summary import Spread, csv_text

LAWS = {"beta": "exact (Beta)", "normal": "normal, σ = 1/√d", "paper": "as printed, σ = 1/d"}

THE_SLIP = (
    "The cosine of two random unit vectors has the variance 1/d, hence the standard deviation "
    "1/√d; exactly, (t + 1)/2 follows Beta((d − 1)/2, (d − 1)/2). The paper's formula for P(A) "
    "takes 1/d for the standard deviation. That is a slip: the counts it gives are many orders "
    "of magnitude beyond what Algorithm 1 finds, which keeps to the exact law."
)


class Count(NamedTuple):
    """What was found for one dimension and threshold over its seeds."""

    dim: int
    threshold: float
    found: Spread
    is_lower_bound: bool
    log10_expected: dict[str, float]


def build(description: Description, records: Sequence[CapacityRecord]) -> Contents:
    """Return the report: found against expected, over d and T."""
    if not records:
        raise ValueError("there are no records to report; run the experiment first.")
    counts = summarize_counts(records)
    seeds = len({record.seed for record in records})
    drawing = Drawing(
        draw(counts),
        "Label vectors found and expected, by threshold and dimension, on a logarithmic scale. "
        "The table below holds the numbers.",
    )
    caption = (
        "Left: found by Algorithm 1 (marks; an arrow up where the search was ended, so that more "
        "fit) and expected under the exact law (lines) and its normal limit (dotted). Right: the "
        "same with the law as the paper prints it (dashed)."
    )
    recipe = description.recipe
    planned = (
        (recipe.get("seeds") or 1) * len(recipe.get("dims", [])) * len(recipe.get("thresholds", []))
    )
    slip = Markup("<p>{}</p>").format(html.prose(THE_SLIP))
    body = html.figure(drawing, "capacity", caption, panels=2) + slip
    return Contents(
        headline=_headline(counts) if len(records) >= planned else "",
        findings=[],
        sections=[Section("result", "Found and expected", body + _table(counts, seeds))],
        settings=html.note("γ: max tries; τ: confidence. The whole recipe stands above."),
        environment=environment(records, sum(r.seconds for r in records), "Counting"),
        markdown=_markdown(counts),
        drawings={"capacity": drawing},
        tables={"capacity": _csv(counts)},
    )


def summarize_counts(records: Sequence[CapacityRecord]) -> list[Count]:
    """Return the mean over the seeds, by dimension and threshold."""
    groups: dict[tuple[int, float], list[CapacityRecord]] = {}
    for record in records:
        groups.setdefault((record.dim, record.threshold), []).append(record)
    counts = []
    for (dim, threshold), group in sorted(groups.items()):
        found = Spread.over(float(record.found) for record in group)
        if found is not None:
            bound = any(record.is_lower_bound for record in group)
            counts.append(Count(dim, threshold, found, bound, group[0].log10_expected))
    return counts


def number(log10: float) -> str:
    """Return a count for the reader, given its logarithm.

    Examples
    --------
    >>> from lmrc.report.capacity import number
    >>> number(2.0492), number(4.65), number(51.32)
    ('112', '44,668', '2.1e51')
    """
    if log10 < 6:
        return f"{round(10**log10):,}"
    exponent = int(log10)
    return f"{10 ** (log10 - exponent):.1f}e{exponent}"


def _found(count: Count) -> str:
    if count.is_lower_bound:
        return f"≥ {count.found.mean:,.0f}"
    return f"{count.found.mean:,.0f}"


def _table(counts: Sequence[Count], seeds: int) -> Markup:
    head = ["d", "T", "found", *LAWS.values()]
    rows = []
    for count in counts:
        deviation = count.found.deviation
        shows = deviation is not None and not count.is_lower_bound
        more = f"± {deviation:.0f}" if shows else ""
        cells = [html.td(f"{count.threshold:g}"), html.td(_found(count), "main", more)]
        cells += [html.td(number(count.log10_expected[law])) for law in LAWS]
        rows.append([str(count.dim), *cells])
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    caption = f"Label vectors: found ({spread}; ≥: the search was ended), and expected by Eq. 4."
    return html.table(caption, head, rows)


def _headline(counts: Sequence[Count]) -> str:
    usual = [c for c in counts if not c.is_lower_bound]
    if not usual:
        return ""
    # The paper's own setting for CIFAR-100, or what comes closest to it.
    c = min(usual, key=lambda c: (abs(c.dim - 100), abs(c.threshold - 0.15)))
    return (
        f"In {c.dim} dimensions at T = {c.threshold:g} Algorithm 1 finds {_found(c)} label "
        f"vectors; the exact law expects {number(c.log10_expected['beta'])}, the printed one "
        f"{number(c.log10_expected['paper'])}."
    )


def _markdown(counts: Sequence[Count]) -> str:
    lines = [
        f"| d | T | found | {' | '.join(LAWS.values())} |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for c in counts:
        laws = " | ".join(number(c.log10_expected[law]) for law in LAWS)
        lines.append(f"| {c.dim} | {c.threshold:g} | {_found(c)} | {laws} |")
    return "\n".join(lines)


def _csv(counts: Sequence[Count]) -> str:
    head = ["d", "T", "found", "found_sd", "is_lower_bound"]
    head += [f"log10_expected_{law}" for law in LAWS]
    rows = [
        [c.dim, c.threshold, c.found.mean, c.found.deviation, c.is_lower_bound]
        + [c.log10_expected[law] for law in LAWS]
        for c in counts
    ]
    return csv_text(head, rows)
