"""Threads for work on many small matrices."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

_one_at_a_time = threading.Lock()


class Threads:
    """Worker threads with one BLAS thread each, started when first needed.

    BLAS's own threads wait for one another in every product, which takes long where other
    programs use the processor, too; and they leave all other work to a single thread.

    Parameters
    ----------
    most : int
        As many threads as this, or as the machine has processors.
    """

    def __init__(self, most: int) -> None:
        self._workers = min(most, os.cpu_count() or 1)

    def __enter__(self) -> Threads:
        self._open = ExitStack()
        self._pool: ThreadPoolExecutor | None = None
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Call a function for each set of arguments, side by side."""
        if self._pool is None:
            # The limit is the whole process's: two at a time might not restore the old one.
            self._open.enter_context(_one_at_a_time)
            self._open.enter_context(threadpool_limits(1, user_api="blas"))
            self._pool = self._open.enter_context(ThreadPoolExecutor(self._workers))
        return list(self._pool.map(function, *arguments))
