"""Progress of runs, on standard error: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING

from lmrc.report.records import RunRecord
from lmrc.report.summary import METRIC_NAMES, percent, summarize_methods
from lmrc.text import escape, say

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


class Progress:
    """Shows the records made so far. This one shows nothing."""

    shows_table = False

    def update(self, records: Sequence[RunRecord]) -> None:
        """Show the records; the last one is new."""


class Countdown:
    """Counts what is done of a total, and estimates the remaining time.

    What was `done` before does not count for the estimate.
    """

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self.done, self.before = total, done, done
        self.started = perf_counter()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return perf_counter() - self.started

    def time_left(self) -> str:
        """Return the remaining time as text; empty before the first record and after the last."""
        made, left = self.done - self.before, self.total - self.done
        if made <= 0 or left <= 0:
            return ""
        return f", about {duration(self.seconds / made * left)} left"

    def tell(self, text: str) -> None:
        """Count one more, and print it on a line of its own."""
        self.done += 1
        line = f"[{self.done}/{self.total}] {text}{self.time_left()}"
        say(line, file=sys.stderr)


class _TaskCountdown(Countdown):
    """Counts tasks; a method's tasks are expected to take as long as those in this run."""

    def __init__(self, to_run: Mapping[str, int], done: int) -> None:
        super().__init__(done + sum(to_run.values()), done)
        self.to_run, self.made = Counter(to_run), list[RunRecord]()

    def time_left(self) -> str:
        """Return the remaining time as text; empty before each method left has a record."""
        seconds: dict[str, list[float]] = defaultdict(list)
        for line in self.made:
            seconds[line.method].append(line.record.train_seconds + line.record.test_seconds)
        left = self.to_run - Counter(line.method for line in self.made)
        if not left or not left.keys() <= seconds.keys():
            return ""
        share = sum(n * fmean(seconds[method]) for method, n in left.items())
        share /= sum(map(sum, seconds.values()))  # several may run at a time
        return f", about {duration(self.seconds * share)} left"


def duration(seconds: float) -> str:
    """Return a time as text.

    >>> duration(41.2), duration(250), duration(7300)
    ('41 s', '4 min', '2.0 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


@contextmanager
def show(
    to_run: Mapping[str, int],
    *,
    tasks: int,
    done: int = 0,
    metric: str = "accuracy",
    quiet: bool = False,
) -> Iterator[Progress]:
    """Open the display that fits: nothing, a live table of methods and tasks, or lines.

    `to_run` is how many tasks of each method are still to run; `done` is how many records of any
    method there are before.
    """
    if quiet:
        yield Progress()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(tasks, _TaskCountdown(to_run, done), metric)
        return
    with Live(console=console, auto_refresh=False) as live:
        display = _LiveTable(live, list(to_run), tasks, _TaskCountdown(to_run, done), metric)
        display.update([])
        yield display


class _Lines(Progress):
    """One line per record, for logs."""

    def __init__(self, tasks: int, countdown: _TaskCountdown, metric: str) -> None:
        self.tasks, self.countdown, self.metric = tasks, countdown, metric

    def update(self, records: Sequence[RunRecord]) -> None:
        """Print the last record."""
        last, measured = records[-1], records[-1].record
        self.countdown.made = list(records[self.countdown.before :])
        share = getattr(measured, self.metric)
        of = f"{measured.n_classes_seen} classes{' (top 5)' if self.metric == 'top5' else ''}"
        self.countdown.tell(
            f"{last.method}, seed {last.seed}, task {measured.task + 1} of {self.tasks}: "
            + (f"{100 * share:.1f} % of {of}, " if share is not None else "")
            + f"{measured.train_seconds:.1f} s"
        )


class _LiveTable(Progress):
    """Methods by tasks; each cell is the mean over the seeds so far.

    Only the average shows its deviation, to fit into 80 columns.
    """

    shows_table = True

    def __init__(
        self,
        live: Live,
        methods: Sequence[str],
        tasks: int,
        countdown: _TaskCountdown,
        metric: str,
    ) -> None:
        self.live, self.methods, self.tasks = live, methods, tasks
        self.countdown, self.metric = countdown, metric

    def update(self, records: Sequence[RunRecord]) -> None:
        """Draw the table anew."""
        self.live.update(self._table(records), refresh=True)

    def _table(self, records: Sequence[RunRecord]) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=f"{METRIC_NAMES[self.metric]} over all seen classes (%)",
            caption=self._caption(records),
            box=box.SIMPLE_HEAD,
        )
        table.add_column("method")
        for i in range(self.tasks):
            table.add_column(f"task {i + 1}", justify="right")
        table.add_column("average", justify="right", style="bold")
        summaries = {summary.method: summary for summary in summarize_methods(records, self.metric)}
        for method in self.methods:
            summary = summaries.get(method)
            cells = [f"{100 * spread.mean:.1f}" for spread in summary.accuracy] if summary else []
            cells += ["·"] * (self.tasks - len(cells))
            average = summary.average if summary else None
            table.add_row(Text(escape(method)), *cells, percent(average) if average else "·")
        return table

    def _caption(self, records: Sequence[RunRecord]) -> str:
        if records:
            self.countdown.done = len(records)
            self.countdown.made = list(records[self.countdown.before :])
        done, total = self.countdown.done, self.countdown.total
        if done == total:
            seeds = len({record.seed for record in records})
            spread = f"mean ± standard deviation over {seeds} seeds, " if seeds > 1 else ""
            return f"{spread}{duration(self.countdown.seconds)}"
        return f"{done} of {total} tasks{self.countdown.time_left()}"
