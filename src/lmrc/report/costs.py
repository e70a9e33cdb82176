"""What methods cost: seconds, and bytes stored beside the network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lmrc.report import html
from lmrc.report.html import Section
from lmrc.report.records import RunRecord, by_method_and_seed, is_whole
from lmrc.report.summary import MethodSummary, Spread
from lmrc.report.titles import split_title

CLOCK = "Seconds are those of the clock, of runs that may have shared the machine."
TRAINING = f"{CLOCK} Training: all tasks."
TESTING = (
    "Testing: all classes, after the last task, to predict and to score; older records took "
    "two looks at each sample for it."
)
STORED = (
    "Stored: what the model keeps of its data beside the network, for each class; – where that is "
    "not known, as of classifiers of other libraries."
)


@dataclass(frozen=True)
class Cost:
    """One method over the seeds that learnt the whole stream.

    Attributes
    ----------
    training : Spread or None
        Seconds, over all tasks.
    testing : Spread or None
        Seconds that the test samples of all classes took after the last task.
    images, statistics : float or None
        Bytes stored for each class; None where the records do not tell.
    """

    training: Spread | None
    testing: Spread | None
    images: float | None
    statistics: float | None


def costs(records: Iterable[RunRecord]) -> dict[str, Cost]:
    """Return what each method costs, in order of appearance."""
    found = {}
    for method, seeds in by_method_and_seed(records).items():
        runs = [run for run in seeds.values() if is_whole([line.record for line in run])]
        ends = [run[-1] for run in runs]
        found[method] = Cost(
            Spread.over(sum(line.record.train_seconds for line in run) for run in runs),
            Spread.over(end.record.test_seconds for end in ends),
            _stored(ends, "images"),
            _stored(ends, "statistics"),
        )
    return found


def section(summaries: Sequence[MethodSummary], by_method: Mapping[str, Cost]) -> Section:
    """Return a table of what each method costs, in the order and colours of the others."""
    is_told = any(by_method[s.method].images is not None for s in summaries)  # older records do not
    head = ["method", "training, s", "testing, s"]
    head += ["images, kB per class", "statistics, kB per class"] if is_told else []
    rows = []
    for s in summaries:
        cost = by_method[s.method]
        cells = [seconds(cost.training), seconds(cost.testing)]
        cells += [kilobytes(cost.images), kilobytes(cost.statistics)] if is_told else []
        rows.append([html.name(s.method, s.place), *map(html.td, cells)])
    caption = f"Seconds{', and what is stored' * is_told}; mean over the seeds."
    words = [TRAINING, TESTING, *([STORED] * is_told)]
    without = [s.method for s in summaries if not split_title(s.method)[1]]
    if keeping := [method for method in without if by_method[method].images]:
        words.append(
            f"Though no exemplars were asked for, these keep images: {', '.join(keeping)}."
        )
    note = html.note(" ".join(words))
    return Section("cost", "What it costs", html.table(caption, head, rows) + note)


def seconds(spread: Spread | None) -> str:
    """Return a time for the reader: digits as it needs them.

    Examples
    --------
    >>> from lmrc.report.costs import seconds
    >>> from lmrc.report.summary import Spread
    >>> seconds(Spread(1234.5, 20.0)), seconds(Spread(0.52, None)), seconds(None)
    ('1,234', '0.52', '–')
    """
    return "–" if spread is None else _number(spread.mean)


def kilobytes(stored: float | None) -> str:
    """Return a size for the reader; nothing is a plain 0."""
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
