"""The one schema of ``records.jsonl`` and ``run.json``: what may stand in them, checked when read.

What passes is of the types that the dataclasses name, finite, and of a size that a page can show.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lmrc.outside import brief
from lmrc.report.shape import (
    COUNT,
    NAME,
    SHARE,
    WORDS,
    distinct,
    fields,
    flag,
    label,
    maybe,
    number,
    one_of,
    plain,
    row,
    several,
    square,
    table,
    whole,
)

MAX_METHODS = 64  # in a folder: each is a figure
MAX_RUNS = 10_000
MAX_TASKS = 1000
MAX_LOG10 = 7000  # of a count of label vectors

SECONDS = number(0, 1e10)
SETTINGS = fields({}, {"classifier": NAME}, plain)
MADE_WITH = {"versions": table(NAME, 100), "hardware": NAME, "threads": whole(0)}

#: Of `lmrc.evaluation.run.TaskRecord`.
_MEASURED = fields(
    {
        "task": whole(0, MAX_TASKS - 1),
        "classes": several(label, 1),
        "n_classes_seen": whole(1),
        "accuracy": SHARE,
        "top5": maybe(SHARE),
        "task_accuracies": several(SHARE, 1, MAX_TASKS),
        "old_accuracy": maybe(SHARE),
        "new_accuracy": SHARE,
        "task_id_accuracy": SHARE,
        "task_aware_accuracy": maybe(SHARE),
        "task_confusion": square(COUNT, MAX_TASKS),
        "per_class": table(SHARE, 10**6),
        "train_seconds": SECONDS,
        "test_seconds": SECONDS,
    }
)
_READOUT = fields(
    {"accuracy": SHARE, "task_id_accuracy": SHARE, "task_aware_accuracy": maybe(SHARE)}
)
_OUTPUTS = fields(
    {
        "kind": one_of("probability", "probability within a head", "similarity"),
        "classes": several(label, 2, 100),
        "means": several(several(number(-1e6, 1e6)), 2, MAX_TASKS),
    }
)
_RUN_RECORD = fields(
    {
        "method": NAME,
        "seed": COUNT,
        "settings": SETTINGS,
        "record": _MEASURED,
        **MADE_WITH,
    },
    {
        "extra": fields(
            {},
            {
                "data": maybe(NAME),
                "data_note": WORDS,
                "augmentation": NAME,
                "stored_bytes": fields({"images": COUNT, "statistics": COUNT}),
                "prediction_rules": table(_READOUT, 1000),
                "class_names": several(NAME),
                "outputs": _OUTPUTS,
            },
            plain,
        )
    },
)


def run_record(value: Any) -> None:
    """Check a line of ``records.jsonl``: what one task came to."""
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
    if any(len(means) != len(outputs["classes"]) for means in outputs["means"]):
        raise ValueError("the means of its outputs are not as many as their classes")


def capacity_record(value: Any) -> None:
    """Check a line of ``records.jsonl`` of `capacity`."""
    _CAPACITY_RECORD(value, "it")


_LOG10 = number(-MAX_LOG10, MAX_LOG10)
_CAPACITY_RECORD = fields(
    {
        "dim": whole(1, 10**6),
        "threshold": number(-1, 1),
        "seed": COUNT,
        "found": whole(1),
        "settings": fields({"limit": COUNT}, others=plain),
        "log10_expected": fields({"beta": _LOG10, "normal": _LOG10, "paper": _LOG10}),
        "seconds": SECONDS,
        **MADE_WITH,
    }
)

_MODEL_SCORE = fields(
    {
        "n": COUNT,
        **dict.fromkeys(("accuracy", "top5", "task_id_accuracy", "task_aware_accuracy"), SHARE),
        "heads": several(several(NAME), 1, MAX_TASKS),
        "task_confusion": square(COUNT, MAX_TASKS),
        "per_class": several(row(NAME, COUNT, SHARE)),
        "mistakes": several(row(NAME, NAME, COUNT)),
    },
    {"seconds": SECONDS, "settings": SETTINGS, "made_with": WORDS},
)


def model_score(value: Any) -> None:
    """Check the line of ``records.jsonl`` of a model's page."""
    _MODEL_SCORE(value, "it")
    if len(value["heads"]) != len(value["task_confusion"]):
        raise ValueError("its task_confusion does not have a row for each head")


_METHODS, _POOLS = several(NAME, 0, MAX_METHODS), several(whole(0, 10**9), 0, 100)
_COMMAND = fields(
    {"words": WORDS}, {"methods": _METHODS, "memory": _POOLS, "seeds": whole(1, MAX_RUNS)}
)
_RECIPE = fields(
    {},
    {
        "methods": maybe(_METHODS),
        "memory": maybe(_POOLS),
        "total": maybe(flag),
        "seeds": whole(1, MAX_RUNS),
        "metric": one_of("accuracy", "top5"),
        "settings": table(plain),
        "by_method": table(table(plain)),
        "variants": table(fields({"title": NAME}, {"method": NAME}, plain), 1000),
        "rungs": maybe(
            several(fields({"name": NAME, "method": NAME}, {"rule": NAME}), 0, MAX_METHODS)
        ),
    },
    plain,
)
_DESCRIPTION = fields(
    {"experiment": NAME, "title": WORDS, "question": WORDS},
    {
        "command": WORDS,
        "commands": several(_COMMAND, 0, 200),
        "headline": WORDS,
        "findings": several(WORDS),
        "recipe": _RECIPE,
        "notes": several(WORDS),
        "paper": table(SHARE),
    },
)


def description(value: Any) -> None:
    """Check ``run.json``."""
    _DESCRIPTION(value, "it")
    recipe, commands = value.get("recipe", {}), value.get("commands", [])
    if "command" in value and "commands" in value:
        raise ValueError("it has both command and commands")
    asked = [*commands, recipe]
    methods = {method for one in asked for method in one.get("methods") or []}
    runs = sum(
        len(one.get("methods") or []) * len(one.get("memory") or [0]) * one.get("seeds", 1)
        for one in asked
    )
    if len(methods) > MAX_METHODS or runs > MAX_RUNS:
        raise ValueError(
            f"it asks for {len(methods)} methods in {runs} runs; "
            f"{MAX_METHODS} in {MAX_RUNS} at most can be shown"
        )
    distinct((rung["name"] for rung in recipe.get("rungs") or []), "the names of its rungs")


def one_folder(records: Iterable[Any]) -> None:
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
