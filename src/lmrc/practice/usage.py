"""Output of the commands: lines, warnings, progress, usage errors.

Modules that import torch are imported inside functions, for commands that do not need it.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from lmrc.experiments.options import UsageError as UsageError
from lmrc.text import say, shorten

Say = Callable[[str], None]

PROGRESS_EVERY = 30.0  # seconds


def options_given(context: Any) -> list[str]:
    """Return the options and arguments given on the command line, from typer's context."""
    return [
        option.opts[0]
        for option in context.command.params
        if option.name and str(context.get_parameter_source(option.name)).endswith("COMMANDLINE")
    ]


def printer(quiet: bool) -> Say:
    """Return a function that prints a line, or does nothing if quiet."""
    return (lambda line: None) if quiet else say


def show(
    model: Path,
    describe: Callable[[Path], Any],
    print_text: Callable[[Path, Say], None],
    as_json: bool,
    quiet: bool,
) -> None:
    """Print a description of a model as text or JSON."""
    if as_json and not quiet:
        print_json(describe(model))
    else:
        print_text(model, printer(quiet))


def print_json(content: Any) -> None:
    """Print JSON values."""
    say(*json.dumps(content, ensure_ascii=False, indent=1).split("\n"))


def warn(text: str) -> None:
    """Print a warning on standard error, even if quiet."""
    from lmrc.training.ranks import current

    if current().is_first:
        say(f"lmrc: {shorten(text)}", file=sys.stderr)


def progress_lines(silent: bool) -> Callable[[str, int, int], None]:
    """Return a function that prints progress, every 30 seconds at most.

    It takes a noun, the number done and the total. It is silent on a terminal, which shows a
    progress bar.
    """
    from lmrc.report.live import Countdown

    countdowns, last = dict[str, Countdown](), monotonic()

    def print_progress(noun: str, done: int, total: int) -> None:
        nonlocal last
        if noun not in countdowns:
            countdowns[noun] = Countdown(total, done)
            return
        if silent or monotonic() - last < PROGRESS_EVERY:
            return
        last, countdowns[noun].done = monotonic(), done
        say(f"{noun} {done:,} of {total:,}{countdowns[noun].time_left()}", file=sys.stderr)

    return print_progress


def noun_of(shape: Sequence[int]) -> str:
    """Return the noun for inputs of a shape.

    >>> noun_of((64,)), noun_of((3, 32, 32))
    ('vector', 'image')
    """
    return "vector" if len(shape) == 1 else "image"


def count(n: int, thing: str, things: str | None = None) -> str:
    """Return a number with its noun.

    >>> count(1, "image"), count(2, "class", "classes")
    ('1 image', '2 classes')
    """
    return f"{n:,} {thing if n == 1 else things or f'{thing}s'}"


def percent(share: float) -> str:
    """Return a share as percent.

    >>> percent(0.9512)
    '95.1 %'
    """
    return f"{100 * share:.1f} %"


def format_bytes(n: float) -> str:
    """Return a size in bytes as text.

    >>> format_bytes(812), format_bytes(44_700_000)
    ('812 bytes', '44.7 MB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n:.0f} bytes"
