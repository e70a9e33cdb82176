"""Progress of a task on a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import perf_counter
from typing import Any

from lmrc.training.loop import EpochRecord


class Progress:
    """Shows the progress of a task on a terminal, unless ``verbose`` is 0."""

    def __init__(self, title: str, verbose: int) -> None:
        self.title = title
        self.shows = bool(verbose) and sys.stderr.isatty()

    def epochs(self, records: Iterable[EpochRecord], n: int) -> Iterator[EpochRecord]:
        """Yield the records of n epochs, and show them."""
        if not self.shows:
            yield from records
            return
        from rich import progress
        from rich.table import Column

        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        with _bar(
            progress.BarColumn(bar_width=16),
            progress.TextColumn("epoch"),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),  # also counts within an epoch
            progress.TextColumn("left {task.fields[left]}"),
            progress.TextColumn("{task.fields[terms]}", table_column=rest),
            expand=True,
        ) as bar:
            task, began = bar.add_task(self.title, total=n, terms="", left="?"), perf_counter()
            for done, record in enumerate(records, start=1):
                # By the last epoch: earlier ones may come from a checkpoint.
                ended = perf_counter()
                left, began = timedelta(seconds=round((n - done) * (ended - began))), ended
                terms = [k for k in record if k not in ("epoch", "learning_rate", "loss")]
                shown = ["loss", *terms] if len(terms) > 1 else ["loss"]  # one term is the loss
                text = "  ".join(f"{k} {record[k]:.3f}" for k in shown)
                bar.update(task, advance=1, terms=text, left=str(left))
                yield record

    @contextmanager
    def counted(
        self, work: str, total: int, also: Callable[[int, int], None]
    ) -> Iterator[Callable[[int], None]]:
        """Show how much of some work is done: return what is to be called with that number.

        `also` is called with the number and the total, whether it is shown or not.
        """
        if not self.shows:
            yield lambda done: also(done, total)
            return
        from rich import progress

        columns = (
            progress.BarColumn(bar_width=16),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
        )
        with _bar(*columns, transient=True) as bar:
            task = bar.add_task(f"{self.title}: {work}", total=total)

            def report(done: int) -> None:
                bar.update(task, completed=done)
                also(done, total)

            yield report

    @contextmanager
    def of(self, work: str) -> Iterator[None]:
        """Show that some work is running."""
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
