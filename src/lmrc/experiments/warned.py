"""Warnings as the command line prints them, in this process and in parallel ones."""

from __future__ import annotations

from lmrc.text import escape, shorten


def in_one_line(message: Warning | str, *_: object, **__: object) -> str:
    """Return a warning as one line, without the line of code that Python shows."""
    return f"lmrc: warning: {escape(shorten(' '.join(str(message).split())))}\n"
