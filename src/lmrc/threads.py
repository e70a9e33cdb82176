"""Threads for computations on many small matrices."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

_limit_lock = threading.Lock()
_controller = cache(ThreadpoolController)  # to find the libraries takes a millisecond


class Threads:
    """Worker threads with one BLAS thread each, started when first needed: one per processor.

    BLAS's own threads wait for one another in every product, which is slow if other programs use
    the processor, too; and everything but the products runs in a single thread.
    """

    def __init__(self, max_workers: int) -> None:
        self._workers = min(max_workers, os.cpu_count() or 1)

    def __enter__(self) -> Threads:
        self._open = ExitStack()
        self._pool: ThreadPoolExecutor | None = None
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def map(self, function: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        """Call a function for each set of arguments, in parallel."""
        if self._pool is None:
            # The limit is global to the process: two users at a time might not restore the old one.
            self._open.enter_context(_limit_lock)
            self._open.enter_context(_controller().limit(limits=1, user_api="blas"))
            self._pool = self._open.enter_context(ThreadPoolExecutor(self._workers))
        return list(self._pool.map(function, *arguments))
