"""Ctrl-C: once stops the work, twice ends the process at once; the exit code is the same."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def listen() -> None:
    """Let a second interrupt end the process, where it would break into what the first one ends.

    Where interrupts are ignored, or handled by someone else, that stays.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, _stop)


def ignore() -> None:
    """Take no more interrupts: the process is ending."""
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, _end)
    raise KeyboardInterrupt


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)  # whatever is being written is there whole or not at all
