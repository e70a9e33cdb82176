"""Comparison on the page of a single method: with runs in a neighbouring folder, and chance."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

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
    as_spread,
    split_title,
    style_indices,
    summarize_methods,
)

#: Recipes that agree in these have the same data and a similar training.
SAME = ("dataset", "size", "limit", "validate", "classes", "metric", "blurry", "disjoint")
SAME_SETTINGS = ("backbone", "epochs")


class Beside(NamedTuple):
    """Complete runs of another folder, on the same stream as those of a page."""

    folder: str
    records: list[RunRecord]


def find_beside(
    folder: Path, description: Description, records: Sequence[RunRecord]
) -> Beside | None:
    """Return the folder beside this one with the most methods on the same stream.

    None if the page has several methods, or nothing is comparable. Methods of the experiment
    "incremental" are comparable if their tasks have the same classes and they have all seeds that
    are complete here.
    """
    methods = list(by_method_and_seed(records).values())
    if len(methods) != 1:
        return None
    streams = {seed: stream for seed, run in methods[0].items() if (stream := _stream(run))}
    found = []
    own = folder.resolve()
    try:
        places = sorted(own.parent.iterdir())
    except OSError:  # not even a list of the folders
        return None
    for place in places:
        try:
            if place == own or not (
                (place / RECORDS).is_file() and (place / DESCRIPTION).is_file()
            ):
                continue
            other = read_description(place)
            if other.experiment != "incremental" or _differs(other.recipe, description.recipe):
                continue
            lines = read_records(place)
        except (OSError, ValueError):  # another user's or program's, or damaged
            continue
        kept = [
            line
            for runs in by_method_and_seed(lines).values()
            if all(_stream(runs.get(seed, ())) == stream for seed, stream in streams.items())
            for seed in streams
            for line in runs[seed]
        ]
        if kept:
            found.append(Beside(place.name, kept))
    return max(found, key=lambda one: len({r.method for r in one.records}), default=None)


def _differs(recipe: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two recipes differ in their data, or in settings that all methods share."""
    settings = [one.get("settings") or {} for one in (recipe, other)]
    return any(recipe.get(name) != other.get(name) for name in SAME) or any(
        settings[0].get(name) != settings[1].get(name) for name in SAME_SETTINGS
    )


def _stream(run: Sequence[RunRecord]) -> list[list[str]]:
    """Return the classes of each task of a run; none if it is not complete."""
    complete = bool(run) and is_complete([line.record for line in run])
    return [list(map(str, line.record.classes)) for line in run] if complete else []


def summaries_beside(beside: Beside | None, own: MethodSummary) -> dict[str, MethodSummary]:
    """Return the methods beside a page's own, by name, with titles and styles of that page."""
    found = {}
    for s in summarize_methods(beside.records, own.metric) if beside else ():
        title = _title(s.method, own.method, beside.folder if beside else "")
        same = s.style == own.style
        style = style_indices([own.method, title])[title] if same else s.style
        found[s.method] = replace(s, method=title, style=style)
    return found


def compared(
    contents: Contents, own: MethodSummary, others: Mapping[str, MethodSummary], folder: str
) -> Contents:
    """Return the report of one method with chance in its headline, and a table of comparison."""
    most = 5 if own.metric == "top5" else 1
    chance = [min(1.0, most / n) for n in own.classes_seen]
    shown = [own, *others.values()]
    rows: list[list[html.Content]] = [
        [html.name(s.method, s.style), html.cell(s.average, "main"), s.final] for s in shown
    ]
    rows.append(["chance", *(as_spread(share) for share in (fmean(chance), chance[-1]))])
    caption = f"Average incremental and last {own.metric_name}, in percent"
    text = f"Chance: {'five' if most > 1 else 'one'} of the classes seen so far, at random."
    if others:
        text = (
            f"The other methods are from the folder {folder} beside this one: same classes, "
            f"tasks, seeds and backbone. Other settings may differ: see its page. {text}"
        )
    table = html.table(f"{caption}; {html.over_seeds(shown)}.", ["method", "average", "last"], rows)
    section = Section("beside", "In comparison", table + html.note(text))
    words = f"chance: {100 * fmean(chance):.1f} %"
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
