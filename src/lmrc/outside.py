"""Text from outside (names of classes and files, values of forged files), made harmless to show."""

from __future__ import annotations

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


def shown(text: str) -> str:
    r"""Return text that a terminal only shows: what would control it is written as its escape.

    An escape sequence may rewrite what was printed before, a bidi mark the order of letters.
    Within a string of JSON, the escapes stand for the same characters.

    >>> print(shown("cat\x1b[2J\u202edog\n"))
    cat\u001b[2J\u202edog\n
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _is_harmless(c) else json.dumps(c)[1:-1] for c in text)


def _is_harmless(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character) not in _HARMFUL


def brief(value: Any) -> str:
    """Return the repr of a value, shortened to some 60 characters whatever it is.

    >>> brief("a" * 1000), brief([[0] * 1000] * 1000)[:20]
    ("'aaaaaaaaaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaaaaaaa'", '[[0, 0, 0, 0, ...], ')
    """
    return cut(shown(_repr.repr(value)), 120)


def cut(text: str, most: int = MAX_MESSAGE) -> str:
    """Return text without its middle where it is too long.

    >>> cut("one two three four", 12)
    'one t … four'
    """
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[: most - 3 - half]} … {text[-half:]}"


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print lines, as `shown`: all commands print by this."""
    for line in lines:
        print(shown(line), file=file or sys.stdout, flush=True)


def markdown_cell(text: str) -> str:
    r"""Return text as a cell of a table in Markdown.

    >>> print(markdown_cell("a|b"))
    a\|b
    """
    return shown(text).replace("|", r"\|")


def csv_cell(value: Any) -> Any:
    """Return a cell of a CSV file: text that a spreadsheet would compute has ' before it.

    >>> csv_cell("=1+1"), csv_cell("cat"), csv_cell(-0.5)
    ("'=1+1", 'cat', -0.5)
    """
    if not isinstance(value, str):
        return value
    return f"'{shown(value)}" if value.startswith(_FORMULA) else shown(value)
