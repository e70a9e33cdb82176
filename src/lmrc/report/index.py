"""One page over many run folders, with a line for each of their reports."""

import html as escapes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from lmrc.report import html
from lmrc.report.page import PAGE, bare_page
from lmrc.report.records import encoded, read_description
from lmrc.store.files import write_atomically

INDEX = "index.html"
MAX_DEPTH = 6
MAX_PAGE = 2**26  # bytes

_TITLE = re.compile(r"<title>(.*?)</title>", re.S)
_HEADLINE = re.compile(r"<h1>(.*?)</h1>", re.S)


class Entry(NamedTuple):
    """A report page: where it is, its title with the data, and its headline."""

    place: str
    title: str
    headline: str


def reports_in(folder: Path) -> list[Entry]:
    """Return the report pages under a folder, by path."""
    return sorted(_entries(folder))


def _entries(folder: Path) -> Iterator[Entry]:
    for place, folders, names in os.walk(folder):
        here = Path(place)
        depth = len(here.relative_to(folder).parts)
        folders[:] = sorted(folders) if depth < MAX_DEPTH else []
        page = here / PAGE
        if PAGE in names and page.is_file() and page.stat().st_size <= MAX_PAGE:
            text = page.read_text("utf-8", "replace")
            shown = here.relative_to(folder).as_posix()
            title = ": ".join(filter(None, [_plain(_TITLE.search(text)), _data(here)]))
            yield Entry(shown, title, _plain(_HEADLINE.search(text)))


def _data(folder: Path) -> str:
    """Return data set, tasks and seeds of a run; nothing where there is none, or damaged."""
    try:
        recipe = read_description(folder).recipe
    except (OSError, ValueError):
        return ""
    counts = [
        f"{n} {noun}{'s' * (n != 1)}"
        for noun in ("task", "seed")
        if isinstance(n := recipe.get(f"{noun}s"), int)
    ]
    return ", ".join([str(recipe["dataset"])[:100], *counts]) if recipe.get("dataset") else ""


def _plain(found: re.Match[str] | None) -> str:
    return escapes.unescape(re.sub("<[^>]*>", "", found[1])).strip()[:500] if found else ""


def write_index(folder: Path) -> tuple[Path, list[Entry]]:
    """Write ``index.html`` over all reports under a folder; return its path and what it lists."""
    entries = reports_in(folder)
    if not entries:
        raise FileNotFoundError(
            f"{folder} holds neither records nor folders with a {PAGE}: name a folder that lmrc "
            "reproduce or lmrc demo wrote, or one above such folders"
        )
    rows = [
        [
            Markup("/<wbr>").join(entry.place.split("/")),
            Markup('<a href="{}/{}">{}</a><br><span class="note">{}</span>').format(
                quote(entry.place), PAGE, entry.headline or entry.title or entry.place, entry.title
            ),
        ]
        for entry in entries
    ]
    table = html.table(f"{len(entries)} pages.", ["folder", "result"], rows, "text")
    page = bare_page("Results", Markup("<h1>Results</h1>\n{}").format(table))
    write_atomically(folder / INDEX, encoded(page))
    return folder / INDEX, entries
