"""Sections that all experiments over tasks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from markupsafe import Markup

from lmrc.report import html
from lmrc.report.heat import task_confusion
from lmrc.report.html import Drawing, Section
from lmrc.report.summary import MethodSummary, grows, metric_name, over_tasks

#: Above this many, the classes' table is folded and set smaller.
MANY_CLASSES = 20
#: Above this many, the methods' confusions are folded.
MANY_METHODS = 7

NOT_ENDED = "No run has learnt all tasks yet."
PROTOCOL = (
    "The paper's numbers are of the epoch that is best on the test set, with the classes in their "
    "natural order; ours are of the last epoch."
)


def accuracy_table(
    summaries: Sequence[MethodSummary],
    paper: Mapping[str, float] = MappingProxyType({}),
    metric: str = "accuracy",
) -> Markup:
    """Return accuracy after each task, and its average with the paper's beside it."""
    longest = max(summaries, key=lambda summary: len(summary.accuracy))
    # The average first: of many tasks, a narrow screen shows but the first few.
    head = ["method", "average", *(["paper"] if paper else [])]
    head += _steps(longest.classes_seen)
    rows = []
    for s in summaries:
        missing = [None] * (len(longest.accuracy) - len(s.accuracy))
        cells = [html.cell(s.average, "main")]
        cells += [html.paper_cell(paper.get(s.method))] if paper else []
        cells += [html.cell(spread) for spread in [*s.accuracy, *missing]]
        rows.append([html.name(s.method, s.place), *cells])
    kind = metric_name(metric).capitalize()
    caption = f"{kind} over all seen classes, in percent; {html.over_seeds(summaries)}."
    return html.table(caption, head, rows) + (html.note(PROTOCOL) if paper else Markup())


def measured_table(summaries: Sequence[MethodSummary], measured: str, words: str) -> Markup:
    """Return one measure of the records after each task, a row per method."""
    longest = max(summaries, key=lambda summary: len(summary.classes_seen))
    head = ["method", *_steps(longest.classes_seen)]
    rows = []
    for s in summaries:
        spreads = over_tasks(s.runs, measured)
        missing = [None] * (len(longest.classes_seen) - len(spreads))
        cells = [html.cell(spread) for spread in [*spreads, *missing]]
        rows.append([html.name(s.method, s.place), *cells])
    return html.table(f"{words}, in percent; {html.over_seeds(summaries)}.", head, rows)


def _steps(classes_seen: Sequence[int]) -> list[str]:
    """Return a heading for each task."""
    if grows(classes_seen):
        return [f"{n} classes" for n in classes_seen]
    return [f"task {i}, {n} classes" for i, n in enumerate(classes_seen, 1)]


def end_table(summaries: Sequence[MethodSummary], metric: str = "accuracy") -> Markup:
    """Return what the last task leaves: old and new classes, forgetting, heads."""
    first = "all classes" if metric == "accuracy" else "all, top 5"
    head = ["method", first, "old", "newest", "forgetting", "right head", "head given"]
    rows = [
        [html.name(s.method, s.place), html.cell(s.final, "main")]
        + [
            html.cell(x)
            for x in (s.old, s.new, s.forgetting, s.task_id_accuracy, s.task_aware_accuracy)
        ]
        for s in summaries
    ]
    note = (
        "Old: classes of all earlier tasks; newest: of the last. Forgetting: how far "
        "the earlier tasks have fallen from their best. Right head: how often the "
        "prediction is from the right task. Head given: accuracy if that were known."
    )
    caption = f"After the last task, in percent; {html.over_seeds(summaries)}."
    return html.table(caption, head, rows) + html.note(note)


def classes_section(summaries: Sequence[MethodSummary]) -> Section:
    """Return the accuracy on each class; many are folded."""
    heading = "Each class, after the last task"
    labels = list(dict.fromkeys(label for summary in summaries for label in summary.per_class))
    if not labels:
        return Section("classes", heading, html.note(NOT_ENDED))
    head = ["class", *(summary.method for summary in summaries)]
    names = {label: name for s in summaries for label, name in s.class_names.items()}
    rows = []
    for label in labels:
        spreads = [summary.per_class.get(label) for summary in summaries]
        name = names.get(label, label)
        rows.append([name, *(html.cell(spread, "share") for spread in spreads)])
    order = "in order of arrival" if _one_order(summaries) else "in the first seed's order"
    caption = f"Accuracy on each class, {order}, in percent; {html.over_seeds(summaries)}."
    many = len(labels) > MANY_CLASSES
    in_words = bool(names) or not all(label.lstrip("-").isdecimal() for label in labels)
    kind = "classes" + " named" * in_words + " compact" * many
    table = html.table(caption, head, rows, kind)
    return Section(
        "classes", heading, html.folded(f"All {len(labels)} classes", table) if many else table
    )


def heads_section(
    summaries: Sequence[MethodSummary], drawings: Mapping[str, Drawing] | None = None
) -> Section:
    """Return the confusion between heads, a square for each method."""
    text = Markup(
        "<p>Each task has a head that governs it. A row holds the samples of one class "
        "task; a column says to which task the prediction belongs. On the diagonal the "
        "right head won; a full column is a head that wins over all others. Shares of a row, in "
        "percent.</p>"
    )
    drawn = drawings if drawings is not None else confusions(summaries)
    if not drawn:
        return Section("heads", "Which head wins", text + html.note(NOT_ENDED))
    squares = html.joined(
        Markup("<figure>{}</figure>").format(drawing.to_svg(f"heads-{i}"))
        for i, drawing in enumerate(drawn.values())
    )
    grid = Markup('<div class="grid">{}</div>').format(squares)
    if len(drawn) > MANY_METHODS:
        grid = html.folded(f"All {len(drawn)} methods", grid)
    return Section("heads", "Which head wins", text + grid)


def confusions(summaries: Sequence[MethodSummary]) -> dict[str, Drawing]:
    """Draw each method's confusion between heads after the last task."""
    return {
        s.method: Drawing(
            task_confusion(s.task_confusion, _batch_labels(s), title=s.method),
            f"{s.method}: which head won against which governs, in percent.",
        )
        for s in summaries
        if s.task_confusion
    }


def band(summaries: Sequence[MethodSummary]) -> str:
    """Say what the bands of a figure are, where it has some."""
    return (
        " The bands are one standard deviation wide on either side."
        if html.n_seeds(summaries)
        else ""
    )


def _batch_labels(summary: MethodSummary) -> list[str]:
    """Name the tasks by their classes, where these are short and in one order for all."""
    longest = max(summary.runs, key=len)
    called = summary.class_names
    names = [" ".join(called.get(str(c), str(c)) for c in record.classes) for record in longest]
    if _one_order([summary]) and max(map(len, names)) <= 7:
        return names
    return [str(i + 1) for i in range(len(names))]


def _one_order(summaries: Sequence[MethodSummary]) -> bool:
    """Tell whether the classes come in one order in all runs, as far as these have got."""
    orders = [[list(map(str, r.classes)) for r in run] for s in summaries for run in s.runs]
    longest = max(orders, key=len)
    return all(order == longest[: len(order)] for order in orders)
