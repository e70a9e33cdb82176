"""Untrusted text (names of classes and files, values of forged files), escaped and shortened."""

import json
import sys
import unicodedata
from reprlib import Repr
from typing import Any, TextIO

MAX_MESSAGE = 1000  # characters of an error or a warning

_HARMFUL = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control and format characters, among them bidi marks
_JOINERS = "\u200c\u200d"  # without these two, Persian words and some emoji fall apart
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

_repr = Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60
_repr.maxlevel = 3
_repr.maxlist = _repr.maxtuple = _repr.maxdict = 4


def escape(text: str) -> str:
    r"""Escape control and format characters, so that text is safe to print on a terminal.

    An escape sequence could overwrite earlier output, a bidi mark could reorder letters. The
    escapes are those of JSON: inside a JSON string they stand for the same characters.

    >>> print(escape("cat\x1b[2J\u202edog\n"))
    cat\u001b[2J\u202edog\n
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_harmless(c) else json.dumps(c)[1:-1] for c in text)


def _is_harmless(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character) not in _HARMFUL


def brief(value: Any) -> str:
    """Return the repr of any value, shortened to about 60 characters.

    >>> brief("a" * 1000), brief([[0] * 1000] * 1000)[:20]
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaa'", '[[0, 0, 0, 0, ...], ')
    """
    return shorten(escape(_repr.repr(value)), 120)


def shorten(text: str, maximum: int = MAX_MESSAGE) -> str:
    """Replace the middle of a text that is too long by an ellipsis.

    >>> shorten("one two three four", 12)
    'one t … four'
    """
    half = (maximum - 3) // 2
    return text if len(text) <= maximum else f"{text[: maximum - 3 - half]} … {text[-half:]}"


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print lines, escaped. All commands print with this function."""
    for line in lines:
        print(escape(line), file=file or sys.stdout, flush=True)


def in_one_line(message: Warning | str, *_: object, **__: object) -> str:
    """Return a warning as one line, without the line of code that Python shows."""
    return f"lmrc: warning: {escape(shorten(' '.join(str(message).split())))}\n"


def markdown_cell(text: str) -> str:
    r"""Return text as a cell of a Markdown table.

    >>> print(markdown_cell("a|b"))
    a\|b
    """
    return escape(text).replace("|", r"\|")


def csv_cell(value: Any) -> Any:
    """Return a cell of a CSV file; text that looks like a formula gets a leading '.

    >>> csv_cell("=1+1"), csv_cell("cat"), csv_cell(-0.5)
    ("'=1+1", 'cat', -0.5)
    """
    if not isinstance(value, str):
        return value
    return f"'{escape(value)}" if value.startswith(_FORMULA) else escape(value)
