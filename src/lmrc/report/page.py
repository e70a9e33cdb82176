"""The page of a run: one HTML file that needs nothing else, made from the records alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from lmrc.report import figures
from lmrc.report.records import Description, RunRecord
from lmrc.report.summary import MethodSummary, Spread, summarize_methods

#: Above this many, the classes' table is folded.
MANY_CLASSES = 20


def render(description: Description, records: Sequence[RunRecord]) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    description : Description
        What was asked, and what the run showed.
    records : sequence of RunRecord
        What was measured; at least one.
    """
    if not records:
        raise ValueError("there are no records to report; run the experiment first.")
    summaries = summarize_methods(records)
    template = Template(files("lmrc.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=_prose(description.title),
        headline=_prose(description.headline or "This run has not ended yet."),
        lead=_lead(description.findings),
        question=_prose(description.question),
        accuracy_figure=_accuracy_figure(summaries),
        accuracy_table=_accuracy_table(summaries),
        end_table=_end_table(summaries),
        class_table=_class_table(summaries),
        head_figures=_head_figures(summaries),
        settings=_settings({record.method: record.settings for record in records}),
        command=escape(description.command),
        environment=_environment(records),
    )


# --- Sections ------------------------------------------------------------------------------------


def _lead(findings: Iterable[str]) -> str:
    text = " ".join(findings)
    return f'<p class="lead">{_prose(text)}</p>' if text else ""


def _accuracy_figure(summaries: Sequence[MethodSummary]) -> str:
    figure = figures.accuracy_over_batches(summaries)
    methods = ", ".join(summary.method for summary in summaries)
    svg = figures.to_svg(
        figure,
        name="accuracy",
        description=f"Accuracy over all seen classes after each class batch: {methods}. "
        "The table below holds the numbers.",
    )
    band = " The bands are one standard deviation wide on either side." if _seeds(summaries) else ""
    caption = f"Accuracy on the test samples of all classes seen so far.{band}"
    return f'<figure class="wide">{svg}<figcaption>{caption}</figcaption></figure>'


def _accuracy_table(summaries: Sequence[MethodSummary]) -> str:
    longest = max(summaries, key=lambda summary: len(summary.accuracy))
    head = ["method", *(f"{n} classes" for n in longest.classes_seen), "average"]
    rows = []
    for position, summary in enumerate(summaries):
        missing = [None] * (len(longest.accuracy) - len(summary.accuracy))
        cells = [_cell(spread) for spread in [*summary.accuracy, *missing]]
        rows.append([_name(summary, position), *cells, _cell(summary.average, "main")])
    caption = f"Accuracy over all seen classes, in percent; {_over_seeds(summaries)}."
    return _table(caption, head, rows)


def _end_table(summaries: Sequence[MethodSummary]) -> str:
    head = ["method", "all classes", "old", "newest", "forgetting", "right head", "head given"]
    rows = [
        [_name(s, i), _cell(s.final, "main")]
        + [_cell(x) for x in (s.old, s.new, s.forgetting, s.head_choice, s.head_given)]
        for i, s in enumerate(summaries)
    ]
    note = (
        "Old: classes of all earlier class batches; newest: of the last. Forgetting: how far "
        "the earlier class batches have fallen from their best. Right head: how often the "
        "prediction is from the right class batch. Head given: accuracy if that were known."
    )
    caption = f"After the last class batch, in percent; {_over_seeds(summaries)}."
    return _table(caption, head, rows) + f'<p class="note">{note}</p>'


def _class_table(summaries: Sequence[MethodSummary]) -> str:
    labels = list(dict.fromkeys(label for summary in summaries for label in summary.per_class))
    if not labels:
        return '<p class="note">No run has learnt all class batches yet.</p>'
    head = ["class", *(summary.method for summary in summaries)]
    rows = []
    for label in labels:
        spreads = [summary.per_class.get(label) for summary in summaries]
        rows.append([escape(label), *(_cell(spread, "share") for spread in spreads)])
    caption = f"Accuracy on each class, in order of arrival, in percent; {_over_seeds(summaries)}."
    table = _table(caption, head, rows, "classes")
    if len(labels) <= MANY_CLASSES:
        return table
    return f"<details><summary>All {len(labels)} classes</summary>{table}</details>"


def _head_figures(summaries: Sequence[MethodSummary]) -> str:
    whole = [summary for summary in summaries if summary.head_confusion]
    if not whole:
        return '<p class="note">No run has learnt all class batches yet.</p>'
    drawn = []
    for position, summary in enumerate(whole):
        figure = figures.head_confusion(
            summary.head_confusion, _batch_labels(summary), title=summary.method
        )
        svg = figures.to_svg(
            figure,
            name=f"heads-{position}",
            description=f"{summary.method}: which head won against which governs, in percent.",
        )
        drawn.append(f"<figure>{svg}</figure>")
    return f'<div class="grid">{"".join(drawn)}</div>'


def _batch_labels(summary: MethodSummary) -> list[str]:
    """Name the class batches by their classes, where these are short and in one order for all."""
    orders = [[[str(label) for label in r.classes] for r in run] for run in summary.runs]
    longest = max(orders, key=len)
    names = [" ".join(labels) for labels in longest]
    same = all(order == longest[: len(order)] for order in orders)
    if same and max(map(len, names)) <= 7:
        return names
    return [str(i + 1) for i in range(len(names))]


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Show once what the methods share, and in a table what differs between them."""
    values: dict[str, dict[str, None]] = {}
    for chosen in settings.values():
        for key, value in chosen.items():
            values.setdefault(key, {})[_value(value)] = None
    items = "".join(
        f"<div><dt>{_words(key)}</dt><dd>{next(iter(found))}</dd></div>"
        for key, found in values.items()
        if len(found) == 1
    )
    differing = [key for key, found in values.items() if len(found) > 1]
    if not differing:
        return f"<dl>{items}</dl>"
    head = ["method", *(key.replace("_", " ") for key in differing)]
    rows = [
        [escape(method), *(f"<td>{_value(chosen.get(key, '–'))}</td>" for key in differing)]
        for method, chosen in settings.items()
    ]
    table = _table("Where the methods differ; – where one has no such setting.", head, rows, "text")
    return f"{table}<h3>The same for all that have it</h3><dl>{items}</dl>"


def _environment(records: Sequence[RunRecord]) -> str:
    """Say on what the run was made; more than one machine or version is named as such."""
    made = [
        ", ".join(f"{name} {version}" for name, version in record.versions.items())
        + f"; {record.hardware}; {record.threads} thread{'s' * (record.threads != 1)}"
        for record in records
    ]
    seconds = sum(r.record.train_seconds + r.record.test_seconds for r in records)
    return (
        f'<p class="note">Made with {_prose(" and with ".join(dict.fromkeys(made)))}. '
        f"Training and testing took {seconds:,.0f} seconds in all.</p>"
    )


# --- Pieces --------------------------------------------------------------------------------------


def _prose(text: str) -> str:
    return escape(text).replace(" %", "&nbsp;%")


def _words(key: str) -> str:
    return escape(key.replace("_", " "))


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value)
    return escape(str(value))


def _seeds(summaries: Sequence[MethodSummary]) -> int:
    """Return how many seeds there are, 0 for one alone: then nothing deviates."""
    most = max(len(summary.runs) for summary in summaries)
    return most if most > 1 else 0


def _over_seeds(summaries: Sequence[MethodSummary]) -> str:
    seeds = _seeds(summaries)
    return f"mean ± standard deviation over {seeds} seeds" if seeds else "one seed"


def _name(summary: MethodSummary, position: int) -> str:
    colour = figures.look(position).colour
    key = f'<span class="key" style="background:{colour}"></span>'
    return f'<span class="keyed">{key}{escape(summary.method)}</span>'


def _cell(spread: Spread | None, kind: str = "") -> str:
    """Return a table cell: a share in percent, the deviation smaller beside it."""
    if spread is None:
        return "<td>–</td>"
    attributes = f' class="{kind}"' if kind else ""
    if kind == "share":
        attributes += f' style="--share:{spread.mean:.3f}"'
    deviation = spread.deviation
    more = "" if deviation is None else f' <span class="sd">± {100 * deviation:.1f}</span>'
    return f"<td{attributes}>{100 * spread.mean:.1f}{more}</td>"


def _table(caption: str, head: Iterable[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Return a table that scrolls in its own box. Rows are HTML: a row's name, then its cells."""
    names = list(head)
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(f'<tr><th scope="row">{name}</th>{"".join(cells)}</tr>' for name, *cells in rows)
    label = escape(caption)
    return (
        f'<p class="caption note">{label}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="{kind}" style="--columns:{len(names) - 1}">'
        f"<thead><tr>{columns}</tr></thead><tbody>{body}</tbody></table></div>"
    )
