"""Checks of plain JSON values, of which `lmrc.report.schema` is made.

A check takes a value and its name, and raises a ValueError that says in one short line what is
wrong.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from lmrc.outside import brief

Check = Callable[[Any, str], None]

MAX_BYTES = 2**23  # of a line of records, and of run.json; 1,000 tasks take 2 to 3 MB
MAX_DEPTH = 6
MAX_VALUES, MAX_FIELDS = 200_000, 1000  # of settings and a recipe: an order may list all classes
MAX_NAME, MAX_TEXT = 1000, 2**17  # characters


def read_json(line: bytes) -> Any:
    """Parse a line of JSON: no more than `MAX_BYTES`, and every number finite."""
    if len(line) > MAX_BYTES:
        raise ValueError(f"it has {len(line):,} bytes, and {MAX_BYTES:,} at most are read")
    try:
        return json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def text(most: int = MAX_TEXT) -> Check:
    """Check for text of some length."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, str) or len(value) > most:
            raise ValueError(f"{name} must be text of {most} letters at most, got {brief(value)}")

    return check


def number(low: float, high: float) -> Check:
    """Check for a finite number within bounds."""

    def check(value: Any, name: str) -> None:
        if type(value) not in (int, float) or not low <= value <= high:
            raise ValueError(
                f"{name} must be a number from {low:g} to {high:g}, got {brief(value)}"
            )

    return check


def whole(low: int, high: int = 2**63) -> Check:
    """Check for a whole number within bounds."""

    def check(value: Any, name: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(
                f"{name} must be a whole number from {low} to {high}, got {brief(value)}"
            )

    return check


def flag(value: Any, name: str) -> None:
    """Check for true or false."""
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false, got {brief(value)}")


def one_of(*values: str) -> Check:
    """Check for one of some words."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, str) or value not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, got {brief(value)}")

    return check


def maybe(check_value: Check) -> Check:
    """Check for null, or what another check is for."""

    def check(value: Any, name: str) -> None:
        if value is not None:
            check_value(value, name)

    return check


def several(check_item: Check, fewest: int = 0, most: float = math.inf) -> Check:
    """Check for a list of items of one kind."""

    def check(value: Any, name: str) -> None:
        _check_list(value, name, fewest, most)
        for i, item in enumerate(value):
            check_item(item, f"{name}[{i}]")

    return check


def row(*checks: Check) -> Check:
    """Check for a list with one item for each check."""

    def check(value: Any, name: str) -> None:
        _check_list(value, name, len(checks), len(checks))
        for i, (check_item, item) in enumerate(zip(checks, value, strict=True)):
            check_item(item, f"{name}[{i}]")

    return check


def _check_list(value: Any, name: str, fewest: int, most: float) -> None:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {brief(value)}")
    if not fewest <= len(value) <= most:
        bounds = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise ValueError(f"{name} must have {bounds} items, got {len(value)}")


def table(check_value: Check, most: int = MAX_FIELDS) -> Check:
    """Check for an object with any keys and values of one kind."""

    def check(value: Any, name: str) -> None:
        _check_object(value, name, most)
        for key, item in value.items():
            check_value(item, f"{name}.{_key(key)}")

    return check


def fields(
    needed: Mapping[str, Check],
    optional: Mapping[str, Check] | None = None,
    others: Check | None = None,
) -> Check:
    """Check for an object with these fields; with `others`, any field more that it lets pass."""
    known = {**needed, **(optional or {})}

    def check(value: Any, name: str) -> None:
        _check_object(value, name, MAX_FIELDS)
        for field in needed:
            if field not in value:
                raise ValueError(f"{name} has no {field}")
        for key, item in value.items():
            check_item = known.get(key, others)
            if check_item is None:
                raise ValueError(f"{name} has the unknown field {_key(key)}")
            check_item(item, f"{name}.{_key(key)}")

    return check


def _check_object(value: Any, name: str, most: int) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {brief(value)}")
    if len(value) > most:
        raise ValueError(f"{name} must have {most} fields at most, got {len(value)}")
    for key in value:
        NAME(key, f"the name of a field of {name}")


def _key(key: str) -> str:
    return key if key.isidentifier() and len(key) < 60 else brief(key)


def plain(value: Any, name: str) -> None:
    """Check for any JSON value that is not too large nor nested too deeply."""
    _count(value, name, MAX_DEPTH, [0])


def _count(value: Any, name: str, depth: int, counted: list[int]) -> None:
    counted[0] += 1
    if not depth or counted[0] > MAX_VALUES:
        raise ValueError(f"{name} holds too many values, or too deeply nested ones")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} holds a number that is too large")
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _count(item, name, depth - 1, counted)


def label(value: Any, name: str) -> None:
    """Check for the label of a class."""
    if not isinstance(value, str | int) or len(str(value)) > MAX_NAME:
        raise ValueError(f"{name} must be text or a whole number, got {brief(value)}")


def square(check_cell: Check, most: int) -> Check:
    """Check for a list of rows that are as long as it has rows."""

    def check(value: Any, name: str) -> None:
        several(several(check_cell), 1, most)(value, name)
        if any(len(row) != len(value) for row in value):
            raise ValueError(f"{name} is not square")

    return check


def distinct(values: Iterable[Any], name: str) -> None:
    """Refuse what is there twice."""
    found = list(values)
    if len(set(found)) < len(found):
        raise ValueError(f"{name} are not all different")


NAME = text(MAX_NAME)
WORDS = text()
SHARE = number(0, 1)
COUNT = whole(0)
