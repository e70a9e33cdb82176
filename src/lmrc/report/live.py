"""Runs as they go on: a live table on a terminal, plain lines elsewhere, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from lmrc.report.records import RunRecord
from lmrc.report.summary import percent, summarize_methods

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


class Progress(Protocol):
    """What shows the records made so far."""

    shows_table: bool

    def update(self, records: Sequence[RunRecord]) -> None:
        """Show that the last of `records` is there."""


@contextmanager
def show(
    methods: Sequence[str], *, batches: int, total: int, quiet: bool = False
) -> Iterator[Progress]:
    """Open the display that fits: nothing, a live table, or lines.

    Parameters
    ----------
    methods : sequence of str
        Rows of the table.
    batches : int
        Class batches, the columns of the table.
    total : int
        How many records there will be.
    quiet : bool, default=False
        Show nothing.
    """
    if quiet:
        yield _Nothing()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(batches, total)
        return
    with Live(console=console, auto_refresh=False) as live:
        display = _LiveTable(live, methods, batches, total)
        display.update([])
        yield display


class _Nothing:
    shows_table = False

    def update(self, records: Sequence[RunRecord]) -> None:
        """Show nothing."""


class _Lines:
    """One line per record, for logs."""

    shows_table = False

    def __init__(self, batches: int, total: int) -> None:
        self.batches, self.total = batches, total

    def update(self, records: Sequence[RunRecord]) -> None:
        """Print the last record."""
        last, measured = records[-1], records[-1].record
        print(
            f"[{len(records)}/{self.total}] {last.method}, seed {last.seed}, "
            f"class batch {measured.batch + 1} of {self.batches}: "
            f"{100 * measured.accuracy:.1f} % of {measured.n_classes_seen} classes, "
            f"{measured.train_seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )


class _LiveTable:
    """Methods by class batches; each cell is the mean over the seeds so far.

    Only the average shows its deviation: the table is to fit into 80 columns.
    """

    shows_table = True

    def __init__(self, live: Live, methods: Sequence[str], batches: int, total: int) -> None:
        self.live, self.methods, self.batches, self.total = live, methods, batches, total
        self.started = perf_counter()

    def update(self, records: Sequence[RunRecord]) -> None:
        """Draw the table anew."""
        self.live.update(self._table(records), refresh=True)

    def _table(self, records: Sequence[RunRecord]) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title="accuracy over all seen classes (%)",
            caption=self._caption(records),
            box=box.SIMPLE_HEAD,
        )
        table.add_column("method")
        for i in range(self.batches):
            table.add_column(f"batch {i + 1}", justify="right")
        table.add_column("average", justify="right", style="bold")
        summaries = {summary.method: summary for summary in summarize_methods(records)}
        for method in self.methods:
            summary = summaries.get(method)
            cells = [f"{100 * spread.mean:.1f}" for spread in summary.accuracy] if summary else []
            cells += ["·"] * (self.batches - len(cells))
            average = summary.average if summary else None
            table.add_row(Text(method), *cells, percent(average) if average else "·")
        return table

    def _caption(self, records: Sequence[RunRecord]) -> str:
        done, seconds = len(records), perf_counter() - self.started
        if done == self.total:
            seeds = len({record.seed for record in records})
            spread = f"mean ± standard deviation over {seeds} seeds, " if seeds > 1 else ""
            return f"{spread}{seconds:.0f} s"
        left = f", about {seconds / done * (self.total - done):.0f} s left" if done else ""
        return f"{done} of {self.total} class batches{left}"
