"""Warnings as the command line says them, in this process and in those beside it."""

from __future__ import annotations

from lmrc.outside import cut, shown


def in_one_line(message: Warning | str, *_: object, **__: object) -> str:
    """Return a warning's line, in the place of Python's, which names lines of code."""
    return f"lmrc: warning: {shown(cut(' '.join(str(message).split())))}\n"
