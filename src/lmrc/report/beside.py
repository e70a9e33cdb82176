"""What the page of a single method compares it with: a folder beside it, and chance."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from markupsafe import Markup

from lmrc.report import html
from lmrc.report.html import Contents, Section
from lmrc.report.incremental import UPPER_BOUND
from lmrc.report.records import (
    DESCRIPTION,
    RECORDS,
    Description,
    RunRecord,
    by_method_and_seed,
    is_complete,
    read_description,
    read_records,
)
from lmrc.report.summary import (
    MethodSummary,
    Spread,
    metric_name,
    split_title,
    summarize_methods,
)

#: Recipes that agree in these have the same data.
SAME = ("dataset", "size", "limit", "validate", "classes", "metric")


class Beside(NamedTuple):
    """Complete runs of another folder, on the same stream as those of a page."""

    folder: str
    records: list[RunRecord]


def find_beside(
    folder: Path, description: Description, records: Sequence[RunRecord]
) -> Beside | None:
    """Return the folder beside this one with the most methods on the same stream.

    None where the page has several methods of its own, or nothing is comparable. Comparable are
    runs of the experiment "incremental" with the same seeds, whose tasks have the same classes.
    """
    runs = by_method_and_seed(records)
    if len(runs) != 1:
        return None
    streams = {seed: _stream(run) for seed, run in next(iter(runs.values())).items()}
    found = []
    for place in sorted(folder.resolve().parent.iterdir()):
        if place.name == folder.resolve().name or not (place / RECORDS).is_file():
            continue
        try:
            other = read_description(place) if (place / DESCRIPTION).is_file() else None
            if other is None or other.experiment != "incremental" or not _same(other, description):
                continue
            lines = read_records(place)
        except (OSError, ValueError):  # another program's, or damaged: its own page says so
            continue
        kept = [
            line
            for seeds in by_method_and_seed(lines).values()
            for seed, run in seeds.items()
            if streams.get(seed) == _stream(run) and is_complete([r.record for r in run])
            for line in run
        ]
        if kept:
            found.append(Beside(place.name, kept))
    return max(found, key=lambda one: len({r.method for r in one.records}), default=None)


def _same(one: Description, other: Description) -> bool:
    return all(one.recipe.get(name) == other.recipe.get(name) for name in SAME)


def _stream(run: Sequence[RunRecord]) -> list[list[str]]:
    return [list(map(str, line.record.classes)) for line in run]


def compared(
    contents: Contents, beside: Beside | None, own: MethodSummary, metric: str
) -> Contents:
    """Return the report of one method with what it compares with: in its headline, and a table."""
    most = 5 if metric == "top5" else 1
    chance = [min(1.0, most / n) for n in own.classes_seen]
    others = summarize_methods(beside.records, metric) if beside else []
    titles = {s.method: _title(s.method, own.method, beside.folder) for s in others if beside}
    shown = [(own.method, own), *((titles[s.method], s) for s in others)]
    rows = [
        [html.name(title, s.style), html.cell(s.average, "main"), html.cell(s.final)]
        for title, s in shown
    ]
    rows.append(
        [Markup("chance"), *(html.cell(Spread(c, None)) for c in (fmean(chance), chance[-1]))]
    )
    caption = f"Average incremental and last {metric_name(metric)}, in percent"
    text = f"Chance: {'five' if most > 1 else 'one'} of the classes seen so far, at random."
    if beside:
        text = f"The other methods are those of {beside.folder}: same classes, tasks, seeds. {text}"
    table = html.table(
        f"{caption}; {html.over_seeds([s for _, s in shown])}.", ["method", "average", "last"], rows
    )
    section = Section("beside", "In comparison", table + html.note(text))
    averages = {s.method: s.average.mean for s in others if s.average}
    named = [n for n in (split_title(own.method)[0], "LMRC", UPPER_BOUND) if n in averages]
    parts = [f"{titles[n]}: {100 * averages[n]:.1f} %" for n in dict.fromkeys(named)]
    words = "; ".join(parts or [f"chance: {100 * fmean(chance):.1f} %"])
    headline = f"{contents.headline.removesuffix('.')}; {words}." if contents.headline else ""
    first, *rest = contents.sections
    return replace(contents, headline=headline, sections=[first, section, *rest])


def _title(method: str, own: str, folder: str) -> str:
    """Return the title of a row beside the page's own."""
    if method == own:
        return f"{method} ({folder})"
    if method == UPPER_BOUND:
        return "joint training (keeps all data)"
    return f"{method}, exemplar-free" if method == split_title(own)[0] else method
