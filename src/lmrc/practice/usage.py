"""How commands speak: what they say, what they warn of, and how they refuse wrong use.

What takes torch along is imported where it is used, for the commands that need none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from lmrc.outside import cut, say

Say = Callable[[str], None]

HALF_A_MINUTE = 30.0


class UsageError(ValueError):
    """A command was asked for something that makes no sense. Its exit code is 2."""

    exit_code = 2


def typed(context: Any) -> list[str]:
    """Return the options and arguments that the user wrote down, from typer's context."""
    return [
        option.opts[0]
        for option in context.command.params
        if option.name and str(context.get_parameter_source(option.name)).endswith("COMMANDLINE")
    ]


def speaker(quiet: bool) -> Say:
    """Return what prints a line, or nothing if quiet."""
    return (lambda line: None) if quiet else say


def show(
    model: Path,
    describe: Callable[[Path], Any],
    tell: Callable[[Path, Say], None],
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what there is to know about a model, for people or for programs."""
    if as_json and not quiet:
        print_json(describe(model))
    else:
        tell(model, speaker(quiet))


def print_json(content: Any) -> None:
    """Print plain values for programs."""
    say(*json.dumps(content, ensure_ascii=False, indent=1).split("\n"))


def warn(text: str) -> None:
    """Say on standard error, even if quiet, what the user had better know."""
    from lmrc.training.ranks import current

    if current().is_first:
        say(f"lmrc: {cut(text)}", file=sys.stderr)


def progress_lines(total: int, done: int, hushed: bool) -> Callable[[int], None]:
    """Return what prints, for logs, how many epochs are done: a line every half minute at most.

    Parameters
    ----------
    total, done : int
        Epochs in all, and from before.
    hushed : bool
        Print nothing: there is a terminal with a bar, say.
    """
    from lmrc.report.live import Countdown

    countdown, last = Countdown(total, done), monotonic()

    def tell(now_done: int) -> None:
        nonlocal last
        if hushed or monotonic() - last < HALF_A_MINUTE:
            return
        last, countdown.done = monotonic(), now_done
        line = f"epoch {now_done} of {total}{countdown.time_left()}"
        say(line, file=sys.stderr)

    return tell


def count(n: int, thing: str, things: str | None = None) -> str:
    """Return a number with its noun.

    >>> count(1, "image"), count(2, "class", "classes")
    ('1 image', '2 classes')
    """
    return f"{n:,} {thing if n == 1 else things or f'{thing}s'}"


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.9512)
    '95.1 %'
    """
    return f"{100 * share:.1f} %"


def bytes_in_words(n: float) -> str:
    """Return a size for the reader.

    >>> bytes_in_words(812), bytes_in_words(44_700_000)
    ('812 bytes', '44.7 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n:.0f} bytes"
