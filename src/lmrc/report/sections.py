"""Sections that all experiments over tasks share: accuracy, cost, classes, confusion."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup

from lmrc.report import html
from lmrc.report.figures import task_confusion
from lmrc.report.html import Contents, Drawing, Section
from lmrc.report.records import Description, RunRecord, by_method_and_seed, is_complete
from lmrc.report.settings import environment, settings_table
from lmrc.report.summary import (
    MethodSummary,
    Spread,
    as_spread,
    csv_table,
    grows,
    markdown_table,
    over_tasks,
    split_title,
)

#: With more classes than this, their table is collapsed and set smaller.
MANY_CLASSES = 20
#: With more methods than this, their confusion matrices are collapsed.
MANY_METHODS = 7

NOT_FINISHED = "No run has learnt all tasks yet."
PROTOCOL = (
    "The paper's numbers are of the epoch that is best on the test set, with the classes in their "
    "natural order; ours are of the last epoch."
)
CLOCK = "Seconds are wall-clock time, of runs that may have shared the machine."
TRAINING = f"{CLOCK} Training: all tasks."
TESTING = (
    "Testing: predictions and scores for all classes, after the last task; older records needed "
    "two forward passes for them."
)
STORED = (
    "Stored: data that the model keeps beside the network, per class; kept encoders count as "
    "statistics; –: unknown, or not finished."
)
TASK_MEASURES = (
    "Task-ID accuracy: how often the predicted class belongs to the true class's task. Task-aware "
    "accuracy: accuracy with the task known."
)


def gather(
    description: Description,
    records: Sequence[RunRecord],
    summaries: Sequence[MethodSummary],
    *,
    headline: str,
    findings: list[str],
    sections: list[Section],
    drawings: dict[str, Drawing],
    markdown: str | None = None,
    tables: dict[str, str] | None = None,
) -> Contents:
    """Put a report together, with what is the same for all experiments over tasks.

    ``table.csv`` is always there. The default of `markdown` has the average and final accuracies.
    """
    paper = description.paper
    seconds = sum(r.record.train_seconds + r.record.test_seconds for r in records)
    return Contents(
        headline=headline,
        findings=findings,
        sections=sections,
        settings=settings_table(description, records),
        environment=environment(records, seconds, "Training and testing"),
        markdown=markdown or markdown_table(summaries, paper),
        drawings=drawings,
        tables={"table": csv_table(summaries, paper), **(tables or {})},
    )


def metric_of(description: Description) -> str:
    """Return the metric of the experiment on its data set."""
    metric: str = description.recipe.get("metric", "accuracy")
    return metric


# --- Accuracy -------------------------------------------------------------------------------------


def accuracy_table(
    summaries: Sequence[MethodSummary], paper: Mapping[str, float] = MappingProxyType({})
) -> Markup:
    """Return accuracy after each task, and its average with the paper's beside it."""
    # The average first: of many tasks, a narrow screen shows only the first few.
    before = {"average": [html.cell(s.average, "main") for s in summaries]}
    if paper:
        before["paper"] = [html.cell(as_spread(paper.get(s.method)), "paper") for s in summaries]
    title = f"{summaries[0].metric_name.capitalize()} over all seen classes"
    table = measure_table(summaries, summaries[0].metric, title, before)
    return table + (html.note(PROTOCOL) if paper else Markup())


def measure_table(
    summaries: Sequence[MethodSummary],
    measure: str,
    title: str,
    before: Mapping[str, Sequence[html.Cell]] = MappingProxyType({}),
) -> Markup:
    """Return one measure of the records after each task, a row per method.

    Columns `before` those of the tasks have a cell per method, by heading.
    """
    seen = max((s.classes_seen for s in summaries), key=len)
    if grows(seen):
        tasks = [f"{n} classes" for n in seen]
    else:
        tasks = [f"task {i}, {n} classes" for i, n in enumerate(seen, 1)]
    rows = []
    for s, *cells in zip(summaries, *before.values(), strict=True):
        spreads = over_tasks(s.runs, measure)
        missing = [None] * (len(seen) - len(spreads))
        rows.append([html.name(s.method, s.style), *cells, *spreads, *missing])
    caption = f"{title}, in percent; {html.over_seeds(summaries)}."
    return html.table(caption, ["method", *before, *tasks], rows)


def final_table(summaries: Sequence[MethodSummary]) -> Markup:
    """Return the measures after the last task: all, old and new classes, forgetting, task ID."""
    first = "all classes" if summaries[0].metric == "accuracy" else "all, top 5"
    head = ["method", first, "old", "new", "forgetting", "task-ID", "task-aware"]
    rows = [
        [
            *(html.name(s.method, s.style), html.cell(s.final, "main")),
            *(s.old, s.new, s.forgetting, s.task_id_accuracy, s.task_aware_accuracy),
        ]
        for s in summaries
    ]
    note = (
        "Old: classes of all earlier tasks; new: of the last. Forgetting: how far the accuracy on "
        f"the earlier tasks has fallen from its best, on average. {TASK_MEASURES}"
    )
    caption = f"After the last task, in percent; {html.over_seeds(summaries)}."
    return html.table(caption, head, rows) + html.note(note)


def band(summaries: Sequence[MethodSummary]) -> str:
    """Say what the bands of a figure are, where it has some."""
    return " Bands: ± one standard deviation." if html.n_seeds(summaries) else ""


# --- Cost -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """The cost of one method, over the seeds that learnt the whole stream."""

    training: Spread | None  # seconds, over all tasks
    testing: Spread | None  # seconds for the test samples of all classes, after the last task
    #: Bytes stored per class; None where the records do not say.
    images: float | None
    statistics: float | None


def costs(records: Iterable[RunRecord]) -> dict[str, Cost]:
    """Return the cost of each method, in order of appearance."""
    found = {}
    for method, seeds in by_method_and_seed(records).items():
        runs = [run for run in seeds.values() if is_complete([line.record for line in run])]
        ends = [run[-1] for run in runs]
        found[method] = Cost(
            Spread.over(sum(line.record.train_seconds for line in run) for run in runs),
            Spread.over(end.record.test_seconds for end in ends),
            _stored(ends, "images"),
            _stored(ends, "statistics"),
        )
    return found


def cost_section(summaries: Sequence[MethodSummary], by_method: Mapping[str, Cost]) -> Section:
    """Return a table of the methods' costs, in the order and colours of the other tables."""
    is_known = any(by_method[s.method].images is not None for s in summaries)
    head = ["method", "training, s", "testing, s"]
    head += ["exemplars, kB per class", "statistics, kB per class"] if is_known else []
    rows = []
    for s in summaries:
        cost = by_method[s.method]
        cells = [seconds(cost.training), seconds(cost.testing)]
        cells += [kilobytes(cost.images), kilobytes(cost.statistics)] if is_known else []
        rows.append([html.name(s.method, s.style), *cells])
    caption = f"Seconds{', and what is stored' * is_known}; mean over the seeds."
    notes = [TRAINING, TESTING, *([STORED] * is_known)]
    exemplar_free = [s.method for s in summaries if not split_title(s.method)[1]]
    if storing := [method for method in exemplar_free if by_method[method].images]:
        notes.append(f"Methods that store images by themselves: {', '.join(storing)}.")
    return Section("cost", "Cost", html.table(caption, head, rows) + html.note(" ".join(notes)))


def seconds(spread: Spread | None) -> str:
    """Return a time with as many digits as it needs.

    >>> from lmrc.report.summary import Spread
    >>> seconds(Spread(1234.5, 20.0)), seconds(Spread(0.52, None)), seconds(None)
    ('1,234', '0.52', '–')
    """
    return "–" if spread is None else _number(spread.mean)


def kilobytes(stored: float | None) -> str:
    """Return a number of bytes in kB."""
    return "–" if stored is None else _number(stored / 1000)


def _number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2f}"


def _stored(ends: Sequence[RunRecord], what: str) -> float | None:
    each = [
        end.extra["stored_bytes"][what] / end.record.n_classes_seen
        for end in ends
        if "stored_bytes" in end.extra
    ]
    spread = Spread.over(each)
    return spread and spread.mean


# --- Classes and tasks ----------------------------------------------------------------------------


def detail_sections(summaries: Sequence[MethodSummary]) -> list[Section]:
    """Return the accuracy on each class, and the confusion between tasks."""
    return [classes_section(summaries), confusion_section(summaries)]


def classes_section(summaries: Sequence[MethodSummary]) -> Section:
    """Return the accuracy on each class; many are collapsed."""
    heading = "Accuracy per class, after the last task"
    labels = list(dict.fromkeys(label for summary in summaries for label in summary.per_class))
    if not labels:
        return Section("classes", heading, html.note(NOT_FINISHED))
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
    has_names = bool(names) or not all(label.lstrip("-").isdecimal() for label in labels)
    kind = "classes" + " named" * has_names + " compact" * many
    table = html.table(caption, head, rows, kind)
    return Section(
        "classes", heading, html.collapsible(f"All {len(labels)} classes", table) if many else table
    )


def confusion_section(
    summaries: Sequence[MethodSummary], drawings: Mapping[str, Drawing] | None = None
) -> Section:
    """Return the confusion between tasks, a matrix for each method."""
    heading = "Confusion between tasks"
    text = Markup(
        "<p>A row holds the samples of one task; a column says to which task the predicted class "
        "belongs. On the diagonal the task is right. A dark last column is recency bias: samples "
        "of old tasks predicted as classes of the newest one. Shares of a row, in percent.</p>"
    )
    drawn = drawings if drawings is not None else confusions(summaries)
    if not drawn:
        return Section("confusion", heading, text + html.note(NOT_FINISHED))
    matrices = html.joined(
        Markup("<figure>{}</figure>").format(drawing.to_svg(f"confusion-{i}"))
        for i, drawing in enumerate(drawn.values())
    )
    grid = Markup('<div class="grid">{}</div>').format(matrices)
    if len(drawn) > MANY_METHODS:
        grid = html.collapsible(f"All {len(drawn)} methods", grid)
    return Section("confusion", heading, text + grid)


def confusions(summaries: Sequence[MethodSummary]) -> dict[str, Drawing]:
    """Draw each method's confusion between tasks after the last task."""
    return {
        s.method: Drawing(
            task_confusion(s.task_confusion, _task_labels(s), title=s.method),
            f"{s.method}: predicted task by true task, in percent.",
        )
        for s in summaries
        if s.task_confusion
    }


def _task_labels(summary: MethodSummary) -> list[str]:
    """Name the tasks by their classes, where these are short and in one order for all."""
    longest = max(summary.runs, key=len)
    known = summary.class_names
    names = [" ".join(known.get(str(c), str(c)) for c in record.classes) for record in longest]
    if _one_order([summary]) and max(map(len, names)) <= 7:
        return names
    return [str(i + 1) for i in range(len(names))]


def _one_order(summaries: Sequence[MethodSummary]) -> bool:
    """Tell whether the classes come in one order in all runs, as far as these have got."""
    orders = [[list(map(str, r.classes)) for r in run] for s in summaries for run in s.runs]
    longest = max(orders, key=len)
    return all(order == longest[: len(order)] for order in orders)
