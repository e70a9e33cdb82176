"""Progress of a task on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import perf_counter
from typing import Any

from lmrc.training.loop import EpochRecord


class Progress:
    """Shows what is done about a task, and for how long: on a terminal, if asked to.

    Parameters
    ----------
    title : str
        What it is about.
    verbose : int
        0 shows nothing.
    """

    def __init__(self, title: str, verbose: int) -> None:
        self.title = title
        self.shows = bool(verbose) and sys.stderr.isatty()

    def epochs(self, records: Iterable[EpochRecord], n: int) -> Iterator[EpochRecord]:
        """Pass the records of n epochs on, and show them on the way."""
        if not self.shows:
            yield from records
            return
        from rich import progress
        from rich.table import Column

        what_is_left = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # the rest is shown
        with _bar(
            progress.BarColumn(bar_width=16),
            progress.TextColumn("epoch"),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),  # goes on within an epoch, however long that is
            progress.TextColumn("left {task.fields[left]}"),
            progress.TextColumn("{task.fields[terms]}", table_column=what_is_left),
            expand=True,
        ) as bar:
            task, began = bar.add_task(self.title, total=n, terms="", left="?"), perf_counter()
            for done, record in enumerate(records, start=1):
                # The last epoch tells: earlier ones may come from a checkpoint.
                ended = perf_counter()
                left, began = timedelta(seconds=round((n - done) * (ended - began))), ended
                terms = [k for k in record if k not in ("epoch", "learning_rate", "loss")]
                shown = ["loss", *terms] if len(terms) > 1 else ["loss"]  # one term is the loss
                text = "  ".join(f"{k} {record[k]:.3f}" for k in shown)
                bar.update(task, advance=1, terms=text, left=str(left))
                yield record

    @contextmanager
    def of(self, work: str) -> Iterator[None]:
        """Show that some work goes on, as long as it does."""
        if not self.shows:
            yield
            return
        from rich import progress

        with _bar(progress.TimeElapsedColumn(), transient=True) as bar:
            bar.add_task(f"{self.title}: {work}", total=None)
            yield


def _bar(*columns: Any, **settings: Any) -> Any:
    from rich import progress
    from rich.console import Console

    title = progress.TextColumn("[bold]{task.description}")
    return progress.Progress(title, *columns, console=Console(stderr=True), **settings)
