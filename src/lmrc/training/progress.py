"""Progress of a class batch on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from lmrc.training.loop import EpochRecord


def progress(
    records: Iterable[EpochRecord], *, title: str, epochs: int, verbose: int
) -> Iterator[EpochRecord]:
    """Pass epoch records on; with ``verbose``, show them on the way (on a terminal alone)."""
    if not verbose or not sys.stderr.isatty():
        yield from records
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    what_is_left = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # the rest is always shown
    with Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=16),
        TextColumn("epoch"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),  # goes on within an epoch, however long that is
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[terms]}", table_column=what_is_left),
        console=Console(stderr=True),
        expand=True,
    ) as bar:
        task = bar.add_task(title, total=epochs, terms="")
        for record in records:
            terms = [k for k in record if k not in ("epoch", "learning_rate", "loss")]
            shown = ["loss", *terms] if len(terms) > 1 else ["loss"]  # one term is the loss
            bar.update(task, advance=1, terms="  ".join(f"{k} {record[k]:.3f}" for k in shown))
            yield record
