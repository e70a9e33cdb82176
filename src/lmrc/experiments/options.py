"""Options of ``lmrc reproduce``: how they are read, and which of them an experiment takes.

Nothing heavy is imported here: the command line reads its options with it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NO_TRAINING = "it counts label vectors and trains nothing; its options are --seeds and --out"
_FROM = {"--from": "only consolidation and heads can use the records of another run"}
_NO_EXEMPLARS = dict.fromkeys(("--memory", "--memory-total"), "it is exemplar-free; use rehearsal")

_TRAINING_OPTIONS = (
    *("--dataset", "--data-dir", "--size", "--limit", "--validate", "--order", "--tasks"),
    *("--first-classes", "--announce-classes", "--blurry", "--disjoint"),
    *("--methods", "--backbone", "--epochs", "--memory", "--memory-total", "--set"),
    *("--jobs", "--device", "--from", "--ray", "--gpus-per-run", "--keep-models"),
)

#: Why an option is refused, by experiment.
REFUSED: dict[str, dict[str, str]] = {
    **dict.fromkeys(("incremental", "ablation", "rotations", "pretrained"), _NO_EXEMPLARS | _FROM),
    "softmax-suppression": dict.fromkeys(
        ("--tasks", "--first-classes", "--blurry", "--disjoint"), "it has two tasks of two classes"
    )
    | _NO_EXEMPLARS
    | _FROM,
    "rehearsal": _FROM,
    "capacity": dict.fromkeys(_TRAINING_OPTIONS, _NO_TRAINING),
    "consolidation": {"--methods": "it compares LMRC with LM", **_NO_EXEMPLARS},
    "heads": _NO_EXEMPLARS,
}

#: Options that several values may follow.
_SEVERAL = ("--methods", "--memory", "--memory-total", "--set")

_MAX_ORDER = 2**20  # bytes of a file of labels

#: Parameters of the learners that have an option of their own.
_OWN_OPTION = {
    "backbone": "--backbone",
    "epochs": "--epochs",
    "memory_per_class": "--memory",
    "memory_total": "--memory-total",
    "random_state": "--seeds",
    "device": "--device",
}


class UsageError(ValueError):
    """A command was used wrongly."""

    exit_code = 2


def one_by_one(arguments: list[str]) -> list[str]:
    """Let several values follow an option of `reproduce`, as in ``--methods lmrc lwf-mt joint``.

    ``--ray`` may stand alone: then its value is empty.

    >>> one_by_one(["reproduce", "--methods", "lmrc", "lm", "heads"])
    ['reproduce', '--methods', 'lmrc', '--methods', 'lm', 'heads']
    """
    if "reproduce" not in arguments:
        return arguments
    result: list[str] = []
    option, is_first = None, False
    for argument, following in zip(arguments, [*arguments[1:], "-"], strict=True):
        if argument.startswith("-") or argument in REFUSED:
            option = argument if argument in _SEVERAL else None
            is_first = True
        elif option:
            result += [] if is_first else [option]
            is_first = False
        result.append(argument)
        if argument == "--ray" and (following.startswith("-") or following in REFUSED):
            result.append("")
    return result


def check_options(experiment: str, given: list[str]) -> None:
    """Raise a UsageError for the first option, as typed, that the experiment does not take."""
    for option in given:
        if reason := REFUSED[experiment].get(option):
            raise UsageError(f"{option} makes no sense for {experiment}: {reason}")


def several(given: list[str] | None) -> list[str] | None:
    """Return the values of an option that is repeated, or has values separated by commas."""
    return [part.strip() for text in given for part in text.split(",")] if given else None


def memory_sizes(given: list[str] | None, total: list[str] | None = None) -> list[int] | None:
    """Read ``--memory`` or ``--memory-total``."""
    if given and total:
        raise UsageError("--memory and --memory-total contradict each other: give one of them")
    sizes = several(given or total)
    for text in sizes or []:
        if not text.isdecimal():
            option, of = ("--memory-total", "in total") if total else ("--memory", "per class")
            raise UsageError(f"{option} {text!r} is no whole number of exemplars {of}, as 20 is")
    return [int(text) for text in sizes] if sizes else None


def class_order(given: str | None) -> str | int | list[Any] | None:
    """Read ``--order``: a word, a seed, or a JSON file of labels, or of the labels of each task."""
    if given is None or given in ("natural", "per-seed"):
        return given
    if given.isdecimal():
        return int(given)
    if not Path(given).is_file():
        raise UsageError(
            f"--order {given!r} is none of natural, per-seed, a seed such as 1993, or a JSON file"
        )
    with Path(given).open("rb") as file:
        content = file.read(_MAX_ORDER + 1)
    try:
        order = json.loads(content) if len(content) <= _MAX_ORDER else None
    except (ValueError, RecursionError):
        order = None
    tasks: list[Any] = [order]
    if isinstance(order, list) and all(isinstance(task, list) for task in order):
        tasks = order
    if not order or not all(map(_are_labels, tasks)):
        raise UsageError(
            f"--order {given} must hold a JSON list of labels, such as [3, 1, 2], or of the "
            "labels of each task, such as [[3, 1], [1, 2]]"
        )
    return list(order)


def _are_labels(found: Any) -> bool:
    return isinstance(found, list) and bool(found) and all(type(x) in (str, int) for x in found)


def image_size(given: str | None) -> int | tuple[int, int] | None:
    """Read ``--size``: one number for a square, or HEIGHTxWIDTH."""
    if given is None:
        return None
    sides = given.lower().replace("×", "x").split("x")
    if not all(side.isascii() and side.isdigit() and int(side) for side in sides) or len(sides) > 2:
        raise UsageError(f"--size {given} is neither SIZE nor HEIGHTxWIDTH")
    numbers = [int(side) for side in sides]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def share(option: str, given: float | None) -> float | None:
    """Read a share of the images, such as ``--validate 0.1``."""
    if given is not None and not 0 < given < 1:
        raise UsageError(f"{option} {given:g} is no share between 0 and 1, as 0.1 is")
    return given


def learner_settings(
    given: list[str] | None, own_option: Mapping[str, str] = _OWN_OPTION
) -> dict[str, Any] | None:
    """Read ``--set NAME=VALUE``; a value that is not JSON is text.

    Parameters that have an option of their own are refused, with that option.
    """
    settings = {}
    for text in given or []:
        name, separator, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not separator or not name.isidentifier():
            raise UsageError(f"--set {text!r} is not NAME=VALUE, as response_weight=3 is")
        if option := own_option.get(name):
            raise UsageError(f"--set {name} has an option of its own: use {option}")
        try:
            settings[name] = json.loads(value, parse_constant=str)
        except ValueError:
            settings[name] = value.strip()
    return settings or None
