"""Methods as pages call them: with their pools, in the recipe's order, each in its own colour."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from lmrc.methods.catalog import METHODS, title_of
from lmrc.report.records import Command, RunRecord

#: The place of each built-in method among the looks; the demo writes "fine-tuning" small.
_PLACES = {method.title.casefold(): place for place, method in enumerate(METHODS.values())}


def pooled(title: str, memory: int, total: bool | None = False) -> str:
    """Return the title of a method with exemplars: so many of each class, or in total.

    Examples
    --------
    >>> from lmrc.report.titles import pooled, split_title
    >>> pooled("LMRC", 20), pooled("LMRC", 0), split_title("LMRC + 20 per class")
    ('LMRC + 20 per class', 'LMRC', ('LMRC', 20))
    >>> pooled("LMRC", 2000, total=True)
    'LMRC + 2000 in total'
    """
    return f"{title} + {memory} {unit(total)}" if memory else title


def unit(total: bool | None) -> str:
    """Return what a number of exemplars counts."""
    return "in total" if total else "per class"


def split_title(title: str) -> tuple[str, int]:
    """Part the title of a method with a pool into its two; 0 without one."""
    found = re.fullmatch(r"(.+) \+ (\d{1,9}) (?:per class|in total)", title, flags=re.DOTALL)
    return (found[1], int(found[2])) if found else (title, 0)


def asked_for(commands: Iterable[Command], recipe: Mapping[str, Any]) -> set[tuple[str, int]]:
    """Return title and seed of the runs that some commands ask for."""
    return set().union(*asked_by_each(list(commands), recipe))


def asked_by_each(
    commands: Sequence[Command], recipe: Mapping[str, Any]
) -> list[set[tuple[str, int]]]:
    """Return title and seed of the runs that each command asks for."""
    titles = _titles({method for command in commands for method in command.methods}, recipe)
    return [
        {
            (pooled(titles[method], memory, recipe.get("total")), seed)
            for method, memory, seed in command.runs
        }
        for command in commands
    ]


def _titles(methods: Iterable[str], recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return what records call some methods of a recipe; to look one up takes long."""
    return {method: title_of(method, recipe.get("variants", {})) for method in methods}


def name_runs(runs: Iterable[tuple[str, int]]) -> str:
    """Name runs, each a title and a seed, in one phrase.

    >>> name_runs([("LMRC", 0), ("LM", 0), ("LMRC", 2)])
    'LMRC with seeds 0, 2; LM with seed 0'
    """
    seeds: dict[str, list[int]] = {}
    for title, seed in runs:
        seeds.setdefault(title, []).append(seed)
    return "; ".join(
        f"{title} with seed{'s' * (len(some) > 1)} {', '.join(map(str, some))}"
        for title, some in seeds.items()
    )


def in_order(records: Iterable[RunRecord], recipe: Mapping[str, Any]) -> list[RunRecord]:
    """Put the records of a method that the recipe names first before those of the others.

    Runs beside one another end in any order, and a page goes by its records. With pools, all
    methods with the first come before all with the next, as in one process. Methods that the recipe
    does not name come last, as they are.
    """
    titles = _titles(recipe.get("methods") or [], recipe)
    asked = [
        pooled(title, memory, recipe.get("total"))
        for memory in recipe.get("memory") or [0]
        for title in titles.values()
    ]
    position = {title: i for i, title in reversed([*enumerate(asked)])}
    return sorted(records, key=lambda record: position.get(record.method, len(asked)))


def places(methods: Sequence[str]) -> dict[str, int]:
    """Return the place among the looks of each method of a page.

    A built-in method has the same on every page, and so it has with a pool, where the same page
    does not show it with another. The rest take, in their order, what those leave.

    Examples
    --------
    >>> from lmrc.report.titles import places
    >>> places(["LM", "my.Method", "LMRC + 20 per class", "LMRC"])
    {'LM': 2, 'LMRC': 0, 'my.Method': 1, 'LMRC + 20 per class': 3}
    """
    given: dict[str, int] = {}
    for method in sorted(methods, key=lambda method: split_title(method)[1]):
        place = _PLACES.get(split_title(method)[0].casefold())
        if place is not None and place not in given.values():
            given[method] = place
    taken = set(given.values())
    free = (place for place in count() if place not in taken)
    return given | {method: next(free) for method in methods if method not in given}
