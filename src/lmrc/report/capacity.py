"""Records and report of `capacity` (Figs. 4a and 5): label vectors found, and expected."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from markupsafe import Markup

from lmrc.report import figures, html
from lmrc.report.html import Contents, Drawing, Section
from lmrc.report.records import Description
from lmrc.report.settings import environment
from lmrc.report.summary import Spread, as_markdown, csv_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAWS = {"beta": "exact (Beta)", "normal": "normal, σ = 1/√d", "paper": "as printed, σ = 1/d"}

HEAD = ["d", "T", "found", *LAWS.values()]

ERRATUM = (
    "The cosine t of two random unit vectors has the variance 1/d, hence the standard deviation "
    "1/√d; exactly, (t + 1)/2 follows Beta((d − 1)/2, (d − 1)/2). The paper's formula for P(A) "
    "uses 1/d as the standard deviation. That is an error: its counts are many orders of magnitude "
    "above what Algorithm 1 finds, which agrees with the exact law."
)

_DASHES: dict[str, Literal["-", ":", "--"]] = {"beta": "-", "normal": ":", "paper": "--"}


@dataclass(frozen=True)
class CapacityRecord:
    """How many label vectors Algorithm 1 found, and how many Eq. 4 expects."""

    #: The d and T of the paper.
    dim: int
    threshold: float
    seed: int  # of Algorithm 1
    found: int  # label vectors found
    #: ``max_tries`` γ, ``confidence`` τ, and the ``limit`` at which the search stops.
    settings: dict[str, Any]
    #: Decimal logarithm of Eq. 4's count under each law: "beta" (exact), "normal" (its
    #: approximation, σ = 1/√d) and "paper" (as printed, σ = 1/d).
    log10_expected: dict[str, float]
    seconds: float  # wall-clock time of the search
    #: As in a `RunRecord`.
    versions: dict[str, str]
    hardware: str
    threads: int

    @property
    def is_lower_bound(self) -> bool:
        """Whether the search was stopped at the limit, so that more fit."""
        return self.found >= int(self.settings["limit"])

    def to_json(self) -> str:
        """Return the record as one line of JSON, without its end of line."""
        return json.dumps(vars(self), ensure_ascii=False, allow_nan=False)


class Count(NamedTuple):
    """Label vectors found for one dimension and threshold, over the seeds."""

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
        _draw(counts),
        "Label vectors found and expected, by threshold and dimension, on a logarithmic scale. "
        "The table below holds the numbers.",
    )
    caption = (
        "Left: found by Algorithm 1 (markers; arrows: the search was stopped at the limit, so that "
        "more fit) and expected under the exact law (lines) and its normal approximation (dotted). "
        "Right: the same with the law as the paper prints it (dashed); that axis has a "
        "logarithmic scale of exponents."
    )
    recipe = description.recipe
    planned = (
        (recipe.get("seeds") or 1) * len(recipe.get("dims", [])) * len(recipe.get("thresholds", []))
    )
    erratum = Markup("<p>{}</p>").format(html.prose(ERRATUM))
    body = html.figure(drawing, "capacity", caption, panels=2) + erratum
    return Contents(
        headline=_headline(counts) if len(records) >= planned else "",
        findings=[],
        sections=[Section("result", "Found and expected", body + _table(counts, seeds))],
        settings=html.note("γ: max tries; τ: confidence. The recipe is above."),
        environment=environment(records, sum(r.seconds for r in records), "Counting"),
        markdown=as_markdown(HEAD, _rows(counts), texts=0),
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
    """Return a count as text, given its logarithm.

    >>> number(2.0492), number(4.65), number(51.32)
    ('112', '44,668', '2.1e51')
    """
    if log10 < 6:
        return f"{round(10**log10):,}"
    exponent = int(log10)
    return f"{10 ** (log10 - exponent):.1f}e{exponent}"


def _found(count: Count) -> str:
    return f"{'≥ ' * count.is_lower_bound}{count.found.mean:,.0f}"


def _table(counts: Sequence[Count], seeds: int) -> Markup:
    rows = []
    for count, (dim, threshold, found, *expected) in zip(counts, _rows(counts), strict=True):
        deviation = count.found.deviation
        shows = deviation is not None and not count.is_lower_bound
        more = f"± {deviation:.0f}" if shows else ""
        rows.append([dim, threshold, html.cell(found, "main", more), *expected])
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    caption = f"Label vectors: found ({spread}; ≥: the search was stopped), and expected by Eq. 4."
    return html.table(caption, HEAD, rows)


def _rows(counts: Sequence[Count]) -> list[list[str]]:
    """Return the cells of the columns `HEAD`."""
    return [
        [str(c.dim), f"{c.threshold:g}", _found(c)]
        + [number(c.log10_expected[law]) for law in LAWS]
        for c in counts
    ]


def _headline(counts: Sequence[Count]) -> str:
    exact = [c for c in counts if not c.is_lower_bound]
    if not exact:
        return ""
    # The paper's setting for CIFAR-100, or the closest one.
    c = min(exact, key=lambda c: (abs(c.dim - 100), abs(c.threshold - 0.15)))
    return (
        f"In {c.dim} dimensions at T = {c.threshold:g} Algorithm 1 finds {_found(c)} label "
        f"vectors; the exact law expects {number(c.log10_expected['beta'])}, the printed one "
        f"{number(c.log10_expected['paper'])}."
    )


def _csv(counts: Sequence[Count]) -> str:
    head = ["d", "T", "found", "found_sd", "is_lower_bound"]
    head += [f"log10_expected_{law}" for law in LAWS]
    rows = [
        [c.dim, c.threshold, c.found.mean, c.found.deviation, c.is_lower_bound]
        + [c.log10_expected[law] for law in LAWS]
        for c in counts
    ]
    return csv_text(head, rows)


def _draw(counts: Sequence[Count]) -> Figure:
    """Draw the counts: once with the correct laws, once with the printed one.

    The printed law's counts have hundreds of digits: on its scale all else is a flat line.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with figures.theme():
        figure = Figure(figsize=(7.6, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        for axes, laws in ((left, ("beta", "normal")), (right, ("beta", "paper"))):
            for position, dim in enumerate(sorted({count.dim for count in counts})):
                _one_dimension(axes, [c for c in counts if c.dim == dim], laws, position)
            axes.set_xlabel("threshold T")
            figures.declutter(axes)
        top = max(c.log10_expected["paper"] for c in counts)
        left.set_title("correct laws")
        right.set_title("as printed, σ = 1/d")
        # Axes are of the logarithm, as 10^500 is no float; on the right its scale is logarithmic.
        high = max(c.log10_expected["beta"] for c in counts)
        step = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if n * 7 >= high)
        ticks = range(0, int(high) + step + 1, step)
        left.set_yticks(list(ticks), [_power(tick) for tick in ticks])
        right.set_yscale("log")
        exponents = [10**i for i in range(5) if i == 0 or 10 ** (i - 1) < top]
        right.set_yticks(exponents, [_power(tick) for tick in exponents])
        right.minorticks_off()
        left.set_ylabel("label vectors")
        handles, labels = left.get_legend_handles_labels()
        for law, words in (("beta", "exact law"), ("normal", "normal"), ("paper", "as printed")):
            handles.append(Line2D([], [], color=figures.INK, linestyle=_DASHES[law]))
            labels.append(words)
        figure.legend(handles, labels, loc="outside lower center", ncols=7, columnspacing=1.4)
    return figure


def _power(exponent: int) -> str:
    """Return a power of ten in plain text.

    >>> _power(10)
    '10¹⁰'
    """
    return "10" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _one_dimension(axes: Axes, counts: Sequence[Count], laws: Sequence[str], position: int) -> None:
    style = figures.line_style(position)
    thresholds = [c.threshold for c in counts]
    for law in laws:
        expected = [c.log10_expected[law] for c in counts]
        axes.plot(
            thresholds,
            expected,
            color=style.colour,
            linestyle=_DASHES[law],
            linewidth=1.4,
            zorder=2,
        )
    exact = [c for c in counts if not c.is_lower_bound]
    axes.errorbar(
        [c.threshold for c in exact],
        [math.log10(c.found.mean) for c in exact],
        yerr=[_spread(exact, -1), _spread(exact, 1)],
        color=style.colour,
        marker=style.marker,
        linestyle="none",
        markersize=6,
        label=f"d = {counts[0].dim}",
        zorder=3,
    )
    bounds = [c for c in counts if c.is_lower_bound]
    beside = 0.004 * (position - 2)  # side by side: they all have the limit's height
    axes.plot(
        [c.threshold + beside for c in bounds],
        [math.log10(c.found.mean) for c in bounds],
        color=style.colour,
        marker=6,  # a caret
        linestyle="none",
        markersize=9,
        zorder=3,
    )


def _spread(counts: Sequence[Count], sign: int) -> list[float]:
    """Return one standard deviation on the logarithmic scale, down (−1) or up (1)."""
    return [
        sign * math.log10(max(1.0, c.found.mean + sign * (c.found.deviation or 0.0)) / c.found.mean)
        for c in counts
    ]
