"""The files of a run folder: what was run (run.json) and what was measured (records.jsonl).

``records.jsonl`` holds one JSON line for each method, seed and task, appended when it is
finished. With ``run.json`` it is all that tables, figures and the page are made from.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from itertools import count, product, takewhile
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from lmrc.evaluation.run import TaskRecord
from lmrc.lock import locked
from lmrc.store.files import write_atomically
from lmrc.text import brief

if TYPE_CHECKING:
    from lmrc.report.capacity import CapacityRecord

RECORDS = "records.jsonl"
DESCRIPTION = "run.json"

#: Parameters of how to compute, not of what: an interrupted run may resume with other values.
EXECUTION = ("compile", "deterministic")
#: Parameters that are no settings of an experiment: of a single run, or without effect on it.
NOT_SETTINGS = ("random_state", "verbose", "device", *EXECUTION)

Read = TypeVar("Read")

#: The records of some runs: by method in order of appearance, then by seed, in order of tasks.
Runs = dict[str, dict[int, list["RunRecord"]]]


@dataclass(frozen=True)
class RunRecord:
    """The scores after one task, and all that it takes to measure them again."""

    method: str  # name of the method as tables show it
    seed: int  # the ``random_state`` of the learner
    #: Data set, tasks and every parameter of the learner; plain JSON values.
    settings: dict[str, Any]
    record: TaskRecord  # what `lmrc.evaluate` measured
    versions: dict[str, str]  # versions of Python and of the packages that matter
    hardware: str  # the machine, in words
    threads: int  # number of threads torch computed with
    #: Optional values: ``execution`` (device, precision, CUDA graph and compiler in use),
    #: ``stored_bytes`` beside the network (images, statistics), ``prediction_rules`` (accuracy,
    #: task_id_accuracy and task_aware_accuracy by each rule), ``class_names`` of the task's
    #: classes, ``data`` (a digest of the data set), ``data_note``, and what a single experiment
    #: measures. Plain JSON values.
    extra: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the record as one line of JSON, without its end of line."""
        whole = {**vars(self), "record": self.record.to_dict()}
        if not self.extra:
            del whole["extra"]
        return json.dumps(whole, ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class Command:
    """A command that wrote to a folder, and its runs: all combinations of the attributes."""

    words: str  # as it was typed
    #: Short names, or dotted paths; none where the command has no choice of methods.
    methods: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=lambda: [0])  # numbers of exemplars
    seeds: int = 1  # seeds 0, 1, …

    @classmethod
    def of(cls, words: str, recipe: Mapping[str, Any]) -> Command:
        """Return a command with the runs of its recipe."""
        chosen = ("methods", "memory", "seeds") if recipe.get("methods") else ()
        return cls(words, **{name: recipe[name] for name in chosen if recipe.get(name)})

    @property
    def runs(self) -> set[tuple[str, int, int]]:
        """Method, number of exemplars and seed of each run."""
        return set(product(self.methods, self.memory, range(self.seeds)))


@dataclass(frozen=True)
class Description:
    """The question that a folder's runs answer, how they were made, and their result."""

    experiment: str  # which experiment the folder belongs to
    #: Its name, and the question that it answers.
    title: str
    question: str
    commands: list[Command]  # the exact commands that run it again, in their order
    headline: str = ""  # the result in one sentence; empty until the run is finished
    #: Further results, one sentence each; empty until the run is finished.
    findings: list[str] = field(default_factory=list)
    #: Settings that all runs of the folder share; methods, numbers of exemplars and seeds are those
    #: of all commands together.
    recipe: dict[str, Any] = field(default_factory=dict)
    #: Where the records come from, if not from these commands.
    notes: list[str] = field(default_factory=list)
    #: Average incremental accuracy that the paper prints, by method as tables show it.
    paper: dict[str, float] = field(default_factory=dict)


def append_record(folder: Path, record: RunRecord | CapacityRecord) -> None:
    """Add a record to the folder's file, and return once it is on the disk.

    Safe for several processes at a time. A line that a killed process left unfinished is removed.
    """
    line = (record.to_json() + "\n").encode()
    with (folder / RECORDS).open("a+b") as file, locked(file):
        file.seek(0)
        whole = file.read()
        if not whole.endswith(b"\n"):
            file.truncate(whole.rfind(b"\n") + 1)
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read_records(folder: Path) -> list[RunRecord]:
    """Read the folder's records, in the order in which they were made."""
    return read_lines(folder, RunRecord)


def read_lines(folder: Path, kind: type[Read]) -> list[Read]:
    """Read records of any kind; none where the folder has no file of them.

    A last line without its newline is ignored: a run was killed while it wrote it.
    """
    path, found = folder / RECORDS, list[Read]()
    if not path.exists():
        return found
    with path.open("rb") as file:  # text may hold other line separators
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                try:
                    found.append(as_type(kind, json.loads(line)))
                except (ValueError, RecursionError) as error:
                    raise ValueError(
                        f"{path}, line {number} is not a record ({error}); remove the line: the "
                        "command that made it, given again, makes what is missing."
                    ) from error
    return found


def as_type(kind: Any, value: Any, name: str = "it") -> Any:
    """Return a JSON value as what a type annotation says: a dataclass, or lists, dicts and values.

    >>> as_type(Command, {"words": "lmrc demo", "seeds": 3})
    Command(words='lmrc demo', methods=[], memory=[0], seeds=3)
    >>> as_type(list[int], [1, "2"])
    Traceback (most recent call last):
    ValueError: it[1] must be of type int, got '2'
    """
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any or (origin is UnionType and value is None):
        return value
    if origin is UnionType:  # with None
        return as_type(parts[0], value, name)
    items = value.values() if isinstance(value, dict) else value
    if origin in (list, dict) and type(value) is origin and {*map(type, items)} <= {parts[-1]}:
        return value  # of plain values, as most are: at once
    if origin is list and isinstance(value, list):
        return [as_type(parts[0], item, f"{name}[{i}]") for i, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {key: as_type(parts[1], item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        hints, needed = _fields(kind)
        if unknown := value.keys() - hints.keys():
            raise ValueError(f"{name} has the unknown field {brief(min(unknown))}")
        if missing := needed - value.keys():
            raise ValueError(f"{name} has no {min(missing)}")
        parsed = {key: as_type(hints[key], item, f"{name}.{key}") for key, item in value.items()}
        return kind(**parsed)
    if type(value) is (origin or kind) or (kind is float and type(value) is int):
        return value
    wanted = getattr(origin or kind, "__name__", kind)
    raise ValueError(f"{name} must be of type {wanted}, got {brief(value)}")


@cache
def _fields(kind: type) -> tuple[dict[str, Any], set[str]]:
    """Return the types of a dataclass's fields, and the names of those without a default."""
    without = {f.name for f in fields(kind) if f.default is f.default_factory is MISSING}
    return get_type_hints(kind), without


def encoded(text: str) -> bytes:
    """Return text as UTF-8; names of files may hold bytes that are no text."""
    return text.encode(errors="backslashreplace")


def write_description(folder: Path, description: Description) -> None:
    """Write the folder's ``run.json``, whole or not at all."""
    whole = asdict(description)
    for command in whole["commands"]:
        if not command["methods"]:  # then memory and seeds say nothing
            del command["methods"], command["memory"], command["seeds"]
    text = json.dumps(whole, ensure_ascii=False, indent=1)
    write_atomically(folder / DESCRIPTION, encoded(f"{text}\n"))


def read_description(folder: Path) -> Description:
    """Read the folder's ``run.json``."""
    path = folder / DESCRIPTION
    try:
        found: Description = as_type(Description, json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} does not describe a run ({error}); run the experiment again."
        ) from error
    return found


def by_method_and_seed(records: Iterable[RunRecord]) -> Runs:
    """Group records by method, in order of appearance, and by seed; sort each by task.

    Records after a missing one are ignored, as they will be made again. If a task has two, the
    later one counts.
    """
    found: dict[str, dict[int, dict[int, RunRecord]]] = {}
    for line in records:
        of_run = found.setdefault(line.method, {}).setdefault(line.seed, {})
        of_run[line.record.task] = line
    runs = {
        method: {
            seed: [run[task] for task in takewhile(run.__contains__, count())]
            for seed, run in seeds.items()
            if 0 in run
        }
        for method, seeds in found.items()
    }
    return {method: seeds for method, seeds in runs.items() if seeds}


def is_complete(run: Sequence[TaskRecord]) -> bool:
    """Tell whether the records of a method with one seed cover the whole stream."""
    return len(run) == len(run[0].task_confusion)  # it has a row for each task of the stream


def class_names(records: Iterable[RunRecord]) -> dict[str, str]:
    """Return the classes' names, by label as text; empty where the labels are the names.

    Of several names of a class, as Tiny-ImageNet has them, the first, unless two classes share it.
    """
    names: dict[str, str] = {}
    for line in records:
        if given := line.extra.get("class_names"):
            names |= dict(zip(map(str, line.record.classes), given, strict=True))
    first = {label: name.split(",")[0].replace("_", " ") for label, name in names.items()}
    shared = {word for word, n in Counter(first.values()).items() if n > 1}
    return {label: names[label] if word in shared else word for label, word in first.items()}


def name_runs(runs: Iterable[tuple[str, int]]) -> str:
    """Name runs, each a method's title and a seed, in one phrase.

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
