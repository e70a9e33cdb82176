"""Progress of reading many images, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def progress(items: Iterable[T], title: str, total: int) -> Iterator[T]:
    """Pass items on; on a terminal, and nowhere else, show how many have passed."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, title, total=total, console=Console(stderr=True), transient=True)
