"""Ctrl-C: the first stops the work, a second ends the process at once, with the same exit code."""

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # 128 + SIGINT, as in shells


def install_handler() -> None:
    """Let a second interrupt end the process, since it would disturb the handling of the first.

    If interrupts are ignored or have another handler, nothing is changed.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, _interrupt)


def ignore_further() -> None:
    """Ignore further interrupts: the process is ending."""
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGINT, _exit)
    raise KeyboardInterrupt


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(INTERRUPTED)  # files are written atomically
