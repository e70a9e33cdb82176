"""What ``records.jsonl`` and ``run.json`` may hold, checked when they are read.

What passes is of the types that the dataclasses name, finite, and of a size that a page can show.
A check takes a value and its name, and raises a ValueError that says in one short line what is
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lmrc.text import brief

Check = Callable[[Any, str], None]

MAX_DEPTH = 6
MAX_VALUES, MAX_FIELDS = 200_000, 1000  # of settings and a recipe: an order may list all classes
MAX_NAME, MAX_TEXT = 1000, 2**17  # characters
MAX_METHODS = 64  # in a folder: each has a figure
MAX_RUNS = 10_000
MAX_TASKS = 1000
MAX_LOG10 = 7000  # of a count of label vectors

# --- Checks of JSON values ---------------------------------------------------------------------


def text(maximum: int = MAX_TEXT) -> Check:
    """Check for text of some length."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, str) or len(value) > maximum:
            raise ValueError(
                f"{name} must be text of {maximum} letters at most, got {brief(value)}"
            )

    return check


def number(low: float, high: float) -> Check:
    """Check for a finite number within bounds."""

    def check(value: Any, name: str) -> None:
        if type(value) not in (int, float) or not low <= value <= high:
            raise ValueError(
                f"{name} must be a number from {low:g} to {high:g}, got {brief(value)}"
            )

    return check


def integer(low: int, high: int = 2**63) -> Check:
    """Check for a whole number within bounds."""

    def check(value: Any, name: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(
                f"{name} must be a whole number from {low} to {high}, got {brief(value)}"
            )

    return check


def boolean(value: Any, name: str) -> None:
    """Check for true or false."""
    if type(value) is not bool:
        raise ValueError(f"{name} must be true or false, got {brief(value)}")


def one_of(*values: str) -> Check:
    """Check for one of these words."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, str) or value not in values:
            raise ValueError(f"{name} must be one of {', '.join(values)}, got {brief(value)}")

    return check


def optional(check_value: Check) -> Check:
    """Check for null, or a value that passes another check."""

    def check(value: Any, name: str) -> None:
        if value is not None:
            check_value(value, name)

    return check


def list_of(check_item: Check, minimum: int = 0, maximum: float = math.inf) -> Check:
    """Check for a list of items of one kind."""

    def check(value: Any, name: str) -> None:
        _check_list(value, name, minimum, maximum)
        for i, item in enumerate(value):
            check_item(item, f"{name}[{i}]")

    return check


def tuple_of(*checks: Check) -> Check:
    """Check for a list with one item for each check."""

    def check(value: Any, name: str) -> None:
        _check_list(value, name, len(checks), len(checks))
        for i, (check_item, item) in enumerate(zip(checks, value, strict=True)):
            check_item(item, f"{name}[{i}]")

    return check


def _check_list(value: Any, name: str, minimum: int, maximum: float) -> None:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, got {brief(value)}")
    if not minimum <= len(value) <= maximum:
        bounds = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
        raise ValueError(f"{name} must have {bounds} items, got {len(value)}")


def mapping_of(check_value: Check, maximum: int = MAX_FIELDS) -> Check:
    """Check for an object with any keys and values of one kind."""

    def check(value: Any, name: str) -> None:
        _check_object(value, name, maximum)
        for key, item in value.items():
            check_value(item, f"{name}.{_key(key)}")

    return check


def object_of(
    required: Mapping[str, Check],
    allowed: Mapping[str, Check] | None = None,
    others: Check | None = None,
) -> Check:
    """Check for an object with these fields; with `others`, also for any other that passes it."""
    known = {**required, **(allowed or {})}

    def check(value: Any, name: str) -> None:
        _check_object(value, name, MAX_FIELDS)
        for field in required:
            if field not in value:
                raise ValueError(f"{name} has no {field}")
        for key, item in value.items():
            check_item = known.get(key, others)
            if check_item is None:
                raise ValueError(f"{name} has the unknown field {_key(key)}")
            check_item(item, f"{name}.{_key(key)}")

    return check


def _check_object(value: Any, name: str, maximum: int) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {brief(value)}")
    if len(value) > maximum:
        raise ValueError(f"{name} must have {maximum} fields at most, got {len(value)}")
    for key in value:
        NAME(key, f"the name of a field of {name}")


def _key(key: str) -> str:
    return key if key.isidentifier() and len(key) < 60 else brief(key)


def any_json(value: Any, name: str) -> None:
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


def class_label(value: Any, name: str) -> None:
    """Check for the label of a class."""
    if not isinstance(value, str | int) or len(str(value)) > MAX_NAME:
        raise ValueError(f"{name} must be text or a whole number, got {brief(value)}")


def square(check_cell: Check, maximum: int) -> Check:
    """Check for a list of rows that are as long as it has rows."""

    def check(value: Any, name: str) -> None:
        list_of(list_of(check_cell), 1, maximum)(value, name)
        if any(len(row) != len(value) for row in value):
            raise ValueError(f"{name} is not square")

    return check


def distinct(values: Iterable[Any], name: str) -> None:
    """Refuse duplicates."""
    found = list(values)
    if len(set(found)) < len(found):
        raise ValueError(f"{name} are not all different")


NAME = text(MAX_NAME)
WORDS = text()
SHARE = number(0, 1)
COUNT = integer(0)

# --- The files ---------------------------------------------------------------------------------

SECONDS = number(0, 1e10)
SETTINGS = object_of({}, {"classifier": NAME}, any_json)
MADE_WITH = {"versions": mapping_of(NAME, 100), "hardware": NAME, "threads": integer(0)}

#: Of `lmrc.evaluation.run.TaskRecord`.
_MEASURED = object_of(
    {
        "task": integer(0, MAX_TASKS - 1),
        "classes": list_of(class_label, 1),
        "n_classes_seen": integer(1),
        "accuracy": SHARE,
        "top5": optional(SHARE),
        "task_accuracies": list_of(SHARE, 1, MAX_TASKS),
        "old_accuracy": optional(SHARE),
        "new_accuracy": SHARE,
        "task_id_accuracy": SHARE,
        "task_aware_accuracy": optional(SHARE),
        "task_confusion": square(COUNT, MAX_TASKS),
        "per_class": mapping_of(SHARE, 10**6),
        "train_seconds": SECONDS,
        "test_seconds": SECONDS,
    }
)
_RULE_SCORES = object_of(
    {"accuracy": SHARE, "task_id_accuracy": SHARE, "task_aware_accuracy": optional(SHARE)}
)
_OUTPUTS = object_of(
    {
        "kind": one_of("probability", "probability within a head", "similarity"),
        "classes": list_of(class_label, 2, 100),
        "means": list_of(list_of(number(-1e6, 1e6)), 2, 100),
    }
)
_RUN_RECORD = object_of(
    {
        "method": NAME,
        "seed": COUNT,
        "settings": SETTINGS,
        "record": _MEASURED,
        **MADE_WITH,
    },
    {
        "extra": object_of(
            {},
            {
                "data": optional(NAME),
                "data_note": WORDS,
                "augmentation": NAME,
                "stored_bytes": object_of({"images": COUNT, "statistics": COUNT}),
                "prediction_rules": mapping_of(_RULE_SCORES, 1000),
                "class_names": list_of(NAME),
                "outputs": _OUTPUTS,
            },
            any_json,
        )
    },
)


def run_record(value: Any) -> None:
    """Check a line of ``records.jsonl``: the record of one task."""
    _RUN_RECORD(value, "it")
    measured, extra = value["record"], value.get("extra", {})
    n, tasks = measured["task"] + 1, len(measured["task_confusion"])
    if n > tasks:
        raise ValueError(f"its task is {n - 1}, but its task_confusion is of {tasks}")
    if len(measured["task_accuracies"]) != n:
        raise ValueError(f"its task_accuracies are not {n}, one for each so far")
    if len(extra.get("class_names", measured["classes"])) != len(measured["classes"]):
        raise ValueError("its class_names are not as many as its classes")
    outputs = extra.get("outputs", {"classes": [], "means": []})
    if any(len(part) != len(outputs["classes"]) for part in (outputs["means"], *outputs["means"])):
        raise ValueError("the means of its outputs are not a row and a column for each class")


def capacity_record(value: Any) -> None:
    """Check a line of ``records.jsonl`` of `capacity`."""
    _CAPACITY_RECORD(value, "it")


_LOG10 = number(-MAX_LOG10, MAX_LOG10)
_CAPACITY_RECORD = object_of(
    {
        "dim": integer(1, 10**6),
        "threshold": number(-1, 1),
        "seed": COUNT,
        "found": integer(1),
        "settings": object_of({"limit": COUNT}, others=any_json),
        "log10_expected": object_of({"beta": _LOG10, "normal": _LOG10, "paper": _LOG10}),
        "seconds": SECONDS,
        **MADE_WITH,
    }
)

_SCORE = number(-1e9, 1e9)
_SHOWN = list_of(tuple_of(NAME, NAME, NAME, _SCORE, text(MAX_TEXT)), 0, 100)
_SHARES = list_of(SHARE, 1, 1000)
_UNKNOWN = object_of(
    {
        "n": COUNT,
        "scores": mapping_of(object_of({"auroc": SHARE, "fpr95": SHARE}), 10),
        "histogram": object_of(
            {"edges": list_of(_SCORE, 2, 1001), "known": _SHARES, "unknown": _SHARES}
        ),
    },
    {"threshold": _SCORE, "share": SHARE, "lost": SHARE, "found": SHARE},
)
_MODEL_SCORE = object_of(
    {
        "n": COUNT,
        **dict.fromkeys(("accuracy", "top5", "task_id_accuracy", "task_aware_accuracy"), SHARE),
        "heads": list_of(list_of(NAME), 1, MAX_TASKS),
        "task_confusion": square(COUNT, MAX_TASKS),
        "per_class": list_of(tuple_of(NAME, COUNT, SHARE)),
        "mistakes": list_of(tuple_of(NAME, NAME, COUNT)),
    },
    {
        "seconds": SECONDS,
        "settings": SETTINGS,
        "made_with": WORDS,
        "reliability": list_of(tuple_of(COUNT, SHARE, SHARE), 0, 100),
        "coverage": list_of(tuple_of(SHARE, SHARE), 0, 1000),
        "ece": optional(SHARE),
        "unknown": optional(_UNKNOWN),
        "images": object_of({}, {"mistakes": _SHOWN, "doubtful": _SHOWN}),
    },
)


def model_score(value: Any) -> None:
    """Check the line of ``records.jsonl`` of a model's page."""
    _MODEL_SCORE(value, "it")
    if len(value["heads"]) != len(value["task_confusion"]):
        raise ValueError("its task_confusion does not have a row for each head")
    if unknown := value.get("unknown"):
        bars = unknown["histogram"]
        if not len(bars["edges"]) - 1 == len(bars["known"]) == len(bars["unknown"]):
            raise ValueError("its histogram does not have a share for each bin")


_METHODS, _MEMORY = list_of(NAME, 0, MAX_METHODS), list_of(integer(0, 10**9), 0, 100)
_COMMAND = object_of(
    {"words": WORDS}, {"methods": _METHODS, "memory": _MEMORY, "seeds": integer(1, MAX_RUNS)}
)
_RECIPE = object_of(
    {},
    {
        "methods": optional(_METHODS),
        "memory": optional(_MEMORY),
        "total": optional(boolean),
        "dims": list_of(integer(1, 10**6)),
        "thresholds": list_of(number(-1, 1)),
        "seeds": integer(1, MAX_RUNS),
        "metric": one_of("accuracy", "top5"),
        "settings": mapping_of(any_json),
        "by_method": mapping_of(mapping_of(any_json)),
        "variants": mapping_of(object_of({"title": NAME}, {"method": NAME}, any_json), 1000),
        "rows": optional(
            list_of(object_of({"name": NAME, "method": NAME}, {"rule": NAME}), 0, MAX_METHODS)
        ),
    },
    any_json,
)
_DESCRIPTION = object_of(
    {"experiment": NAME, "title": WORDS, "question": WORDS},
    {
        "commands": list_of(_COMMAND, 0, 200),
        "headline": WORDS,
        "findings": list_of(WORDS),
        "recipe": _RECIPE,
        "notes": list_of(WORDS),
        "paper": mapping_of(SHARE),
    },
)


def description(value: Any) -> None:
    """Check ``run.json``."""
    _DESCRIPTION(value, "it")
    recipe = value.get("recipe", {})
    requests = [*value.get("commands", []), recipe]
    methods = {method for one in requests for method in one.get("methods") or []}
    runs = sum(
        len(one.get("methods") or []) * len(one.get("memory") or [0]) * one.get("seeds", 1)
        for one in requests
    )
    if len(methods) > MAX_METHODS or runs > MAX_RUNS:
        raise ValueError(
            f"it asks for {len(methods)} methods in {runs} runs; "
            f"{MAX_METHODS} in {MAX_RUNS} at most can be shown"
        )
    distinct((row["name"] for row in recipe.get("rows") or []), "the names of its rows")


def check_together(records: Iterable[Any]) -> None:
    """Refuse run records that do not go together in a folder."""
    tasks: dict[str, int] = {}
    positions: set[int] = set()
    for line in records:
        here = len(line.record.task_confusion)
        if tasks.setdefault(line.method, here) != here:
            raise ValueError(f"the task_confusion of {brief(line.method)} is of several sizes")
        if outputs := line.extra.get("outputs"):
            positions.add(len(outputs["classes"]))
    if len(tasks) > MAX_METHODS:
        raise ValueError(f"they are of {len(tasks)} methods, and {MAX_METHODS} at most are shown")
    if len(positions) > 1:
        raise ValueError("their outputs have several numbers of classes")
