"""Records of a method summarised over its seeds: titles, means, deviations, tables."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, NamedTuple

from lmrc.evaluation.run import TaskRecord, summarize
from lmrc.methods.catalog import METHODS
from lmrc.report.records import RunRecord, by_method_and_seed, class_names, is_complete
from lmrc.text import csv_cell, markdown_cell

#: The mean over the tasks of each metric, as `lmrc.evaluation.run.summarize` names it.
_AVERAGES = {"accuracy": "average_incremental_accuracy", "top5": "average_top5"}
METRIC_NAMES = {"accuracy": "accuracy", "top5": "top-5 accuracy"}

#: Standard deviation that is assumed of a method with one seed alone, as a share.
ASSUMED_DEVIATION = 0.01

#: The line style of each built-in method, by its title in lower case.
_STYLES = {method.title.casefold(): i for i, method in enumerate(METHODS.values())}


def with_exemplars(title: str, memory: int, total: bool | None = False) -> str:
    """Return the title of a method with exemplars: so many of each class, or in total.

    >>> with_exemplars("LMRC", 20), with_exemplars("LMRC", 0), split_title("LMRC + 20 per class")
    ('LMRC + 20 per class', 'LMRC', ('LMRC', 20))
    >>> with_exemplars("LMRC", 2000, total=True)
    'LMRC + 2000 in total'
    """
    return f"{title} + {memory} {memory_unit(total)}" if memory else title


def memory_unit(total: bool | None) -> str:
    """Return what a number of exemplars counts."""
    return "in total" if total else "per class"


def split_title(title: str) -> tuple[str, int]:
    """Split the title of a method with exemplars into method and number; 0 without exemplars."""
    found = re.fullmatch(r"(.+) \+ (\d{1,9}) (?:per class|in total)", title, flags=re.DOTALL)
    return (found[1], int(found[2])) if found else (title, 0)


def style_indices(methods: Sequence[str]) -> dict[str, int]:
    """Return the index of each method's line style, for all figures and tables of a page.

    A built-in method has the same style on every page, with exemplars, too, unless the page also
    shows it with another number of them. The others never take a built-in method's.

    >>> style_indices(["LM", "my.Method", "LMRC + 20 per class", "LMRC"])
    {'LM': 2, 'LMRC': 0, 'my.Method': 8, 'LMRC + 20 per class': 9}
    """
    given: dict[str, int] = {}
    for method in sorted(methods, key=lambda method: split_title(method)[1]):
        index = _STYLES.get(split_title(method)[0].casefold())
        if index is not None and index not in given.values():
            given[method] = index
    free = count(len(METHODS))
    return given | {method: next(free) for method in methods if method not in given}


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds; no deviation for one seed alone."""

    mean: float
    deviation: float | None

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Spread | None:
        """Return the spread of those values that are there, None for none.

        >>> Spread.over([0.5, 0.25, 0.75])
        Spread(mean=0.5, deviation=0.25)
        >>> Spread.over([0.5, None])
        Spread(mean=0.5, deviation=None)
        """
        present = [value for value in values if value is not None]
        if not present:
            return None
        return cls(fmean(present), stdev(present) if len(present) > 1 else None)


def as_spread(share: float | None) -> Spread | None:
    """Return a share that has no deviation, such as the paper's."""
    return None if share is None else Spread(share, None)


def best(found: Mapping[str, Spread]) -> dict[str, float]:
    """Return the best method, and those within one standard deviation of it; the best first.

    >>> best({"a": Spread(0.70, 0.01), "b": Spread(0.72, 0.06), "c": Spread(0.60, 0.01)})
    {'b': 0.72, 'a': 0.7}
    >>> best({"a": Spread(0.70, 0.0), "b": Spread(0.705, 0.0), "c": Spread(0.705, 0.0)})
    {'b': 0.705, 'c': 0.705}
    """
    ranked = sorted(found, key=lambda method: -found[method].mean)

    def lead(method: str) -> float:
        return found[ranked[0]].mean - found[method].mean

    def deviation(method: str) -> float:
        known = [found[m].deviation for m in (ranked[0], method)]
        return max(ASSUMED_DEVIATION if d is None else d for d in known)

    return {m: found[m].mean for m in ranked if m == ranked[0] or lead(m) <= deviation(m)}


def name_best(shares: Mapping[str, float]) -> tuple[str, str]:
    """Name what `best` found in one phrase, and its shares in percent in another.

    >>> name_best({"b": 0.72, "a": 0.7}), name_best({"b": 0.72})
    (('b and a are on par', '72.0 and 70.0'), ('b is best', '72.0'))
    """
    percents = [f"{100 * share:.1f}" for share in shares.values()]
    verb = "are on par" if len(shares) > 1 else "is best"
    return f"{_listed(list(shares))} {verb}", _listed(percents)


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True)
class MethodSummary:
    """One method over its seeds. Shares are from 0 to 1."""

    method: str
    metric: str  # "accuracy" or "top5": what `accuracy`, `average` and `final` are of
    #: Index of its colour, marker and dashes, as `lmrc.report.figures.line_style` takes it.
    style: int
    runs: list[list[TaskRecord]]  # one run per seed, in order of tasks
    n_complete: int  # how many of them learnt the whole stream
    classes_seen: list[int]  # number of classes known after each task
    accuracy: list[Spread]  # over all seen classes, after each task
    #: Average incremental accuracy; then, after the last task: accuracy over all, old and new
    #: classes, forgetting, task-ID accuracy and task-aware accuracy. Over runs that learnt the
    #: whole stream; None while there is none.
    average: Spread | None
    final: Spread | None
    old: Spread | None
    new: Spread | None
    forgetting: Spread | None
    task_id_accuracy: Spread | None
    task_aware_accuracy: Spread | None
    #: Accuracy on each class after the last task, by its label, in order of arrival.
    per_class: dict[str, Spread]
    class_names: dict[str, str]  # names of the classes, by label, where the labels are no names
    #: Test samples by true and by predicted task, after the last task, summed over the seeds; empty
    #: while no run learnt the whole stream.
    task_confusion: list[list[int]]

    @property
    def metric_name(self) -> str:
        """The name of the metric for the reader."""
        return METRIC_NAMES[self.metric]

    @property
    def newest_alone(self) -> list[float]:
        """The share of test samples that are of the newest task, after each task."""
        sizes = [[sum(row) for row in record.task_confusion] for record in self.runs[0]]
        return [found[i] / (sum(found) or 1) for i, found in enumerate(sizes) if i < len(found)]


def summarize_methods(
    records: Iterable[RunRecord], metric: str = "accuracy"
) -> list[MethodSummary]:
    """Summarise the records, method by method in their order of appearance."""
    runs = by_method_and_seed(records)
    styles = style_indices(list(runs))
    return [
        _summarize(method, styles[method], list(seeds.values()), metric)
        for method, seeds in runs.items()
    ]


def _summarize(method: str, style: int, lines: list[list[RunRecord]], metric: str) -> MethodSummary:
    runs = [[line.record for line in run] for run in lines]
    longest = max(runs, key=len)
    complete = [run for run in runs if is_complete(run)]
    ends = [run[-1] for run in complete]
    sums = [summarize(run) for run in complete]
    return MethodSummary(
        method=method,
        metric=metric,
        style=style,
        runs=runs,
        n_complete=len(complete),
        classes_seen=[record.n_classes_seen for record in longest],
        accuracy=[spread for spread in over_tasks(runs, metric) if spread],
        average=Spread.over(total[_AVERAGES[metric]] for total in sums),
        final=Spread.over(getattr(end, metric) for end in ends),
        old=Spread.over(end.old_accuracy for end in ends),
        new=Spread.over(end.new_accuracy for end in ends),
        forgetting=Spread.over(total["forgetting"] for total in sums),
        task_id_accuracy=Spread.over(end.task_id_accuracy for end in ends),
        task_aware_accuracy=Spread.over(end.task_aware_accuracy for end in ends),
        per_class=_per_class(longest, ends),
        class_names=class_names(line for run in lines for line in run),
        task_confusion=_sum([end.task_confusion for end in ends]),
    )


def over_tasks(runs: Sequence[Sequence[TaskRecord]], measure: str) -> list[Spread | None]:
    """Return one measure after each task, over the runs that got there."""
    longest = max(map(len, runs))
    reached = [[getattr(run[i], measure) for run in runs if len(run) > i] for i in range(longest)]
    return [Spread.over(values) for values in reached]


def grows(classes_seen: Sequence[int]) -> bool:
    """Tell whether each task brings new classes: only then their number identifies a task."""
    return all(a < b for a, b in pairwise(classes_seen))


def _per_class(run: list[TaskRecord], ends: list[TaskRecord]) -> dict[str, Spread]:
    """Return the accuracy on each class, in its order of arrival in `run`."""
    # Labels read back from JSON are text, those of a record just made may be ints.
    tables = [{str(label): share for label, share in end.per_class.items()} for end in ends]
    labels = [str(label) for record in run for label in record.classes]
    spreads = {label: Spread.over(table.get(label) for table in tables) for label in labels}
    return {label: spread for label, spread in spreads.items() if spread}


def _sum(matrices: Sequence[list[list[int]]]) -> list[list[int]]:
    return [
        [sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)
    ]


def percent(spread: Spread | None) -> str:
    """Return a share for the reader: in percent, with its deviation if there is one.

    >>> percent(Spread(0.8041, 0.012)), percent(Spread(0.8041, None)), percent(None)
    ('80.4 ± 1.2', '80.4', '–')
    """
    if spread is None:
        return "–"
    mean, deviation = spread
    return f"{100 * mean:.1f}" + ("" if deviation is None else f" ± {100 * deviation:.1f}")


def markdown_table(
    summaries: Sequence[MethodSummary], paper: Mapping[str, float] = MappingProxyType({})
) -> str:
    """Return average incremental and last accuracy of each method as a Markdown table.

    The paper's averages, by method, are in the next column where there are any.
    """
    kind = summaries[0].metric_name
    head = ["method", f"average incremental {kind} (%)"]
    head += ["in the paper (%)"] if paper else []
    head += [f"last {kind} (%)"]
    rows = [
        [s.method, s.average, *([as_spread(paper.get(s.method))] if paper else []), s.final]
        for s in summaries
    ]
    return as_markdown(head, rows)


def as_markdown(
    head: Sequence[str], rows: Iterable[Sequence[Spread | str | None]], texts: int = 1
) -> str:
    r"""Return a Markdown table, of which the first columns are text and the others numbers.

    >>> print(as_markdown(["method", "%"], [["a|b", Spread(0.5, None)]]))
    | method | % |
    | --- | ---: |
    | a\|b | 50.0 |
    """
    rule = ["---"] * texts + ["---:"] * (len(head) - texts)
    body = [[markdown_cell(c if isinstance(c, str) else percent(c)) for c in row] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *body))


def csv_table(
    summaries: Sequence[MethodSummary], paper: Mapping[str, float] = MappingProxyType({})
) -> str:
    """Return one row per method, shares from 0 to 1, each followed by its deviation (``_sd``)."""
    top5 = "top5_" * (summaries[0].metric == "top5")
    tasks = max(len(summary.accuracy) for summary in summaries)
    columns = [f"{top5}after_task_{i + 1}" for i in range(tasks)]
    columns += [f"average_incremental_{top5}accuracy", f"final_{top5}accuracy"]
    columns += ["old_accuracy", "new_accuracy"]
    columns += ["forgetting", "task_id_accuracy", "task_aware_accuracy"]
    head = ["method", "seeds", *with_deviations(columns)]
    rows = []
    for s in summaries:
        missing = [None] * (tasks - len(s.accuracy))
        spreads = [*s.accuracy, *missing, s.average, s.final, s.old, s.new]
        spreads += [s.forgetting, s.task_id_accuracy, s.task_aware_accuracy]
        rows.append([s.method, s.n_complete, *in_columns(spreads)])
    if paper:
        head.append(f"paper_average_incremental_{top5}accuracy")
        rows = [[*row, paper.get(s.method, "")] for row, s in zip(rows, summaries, strict=True)]
    return csv_text(head, rows)


def with_deviations(columns: Iterable[str]) -> list[str]:
    """Return the head of columns that `in_columns` fills: a mean, and its deviation (``_sd``)."""
    return [column + end for column in columns for end in ("", "_sd")]


def in_columns(spreads: Iterable[Spread | None]) -> list[Any]:
    """Return means and deviations, two columns each."""
    return [cell for spread in spreads for cell in spread or ("", "")]


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV, in which a spreadsheet finds no formula."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerows([csv_cell(cell) for cell in row] for row in (head, *rows))
    return text.getvalue()
