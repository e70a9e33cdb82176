"""Runs of learners over a stream, which can be stopped at any moment and resumed.

A run folder holds ``records.jsonl``, to which each finished task adds a line; under ``models/`` the
models of unfinished runs; and, on request, under ``trained/`` those of finished runs.
"""

import multiprocessing
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from lmrc.data.datasets import Dataset
from lmrc.data.stream import ClassStream
from lmrc.evaluation.run import RuleScores, evaluate_rules
from lmrc.experiments.environment import hardware, versions
from lmrc.experiments.inputs import open_stream, order_of
from lmrc.experiments.options import UsageError
from lmrc.experiments.outputs import mean_outputs
from lmrc.experiments.recipe import Recipe, is_plain
from lmrc.lock import locked
from lmrc.methods.base import IncrementalClassifier
from lmrc.methods.catalog import code_digest, find_method, make_learner, takes
from lmrc.methods.persistence import model_from
from lmrc.nets.backbones import check_name
from lmrc.report.records import (
    EXECUTION,
    NOT_SETTINGS,
    RunRecord,
    append_record,
    by_method_and_seed,
    read_records,
)
from lmrc.report.summary import with_exemplars
from lmrc.store.folder import MANIFEST, Model, read
from lmrc.text import say
from lmrc.training.device import pick_device
from lmrc.training.ranks import current

#: Settings of the stream that are recorded where they are set.
_PARTS = (
    *("size", "limit", "validate", "classes", "first_classes"),
    *("announce_classes", "blurry", "disjoint"),
)


@dataclass(frozen=True)
class Run:
    """One method with one seed and one number of exemplars."""

    method: str  # its short name, or a dotted path
    seed: int
    memory: int
    title: str  # its name in tables and records: ``LMRC + 20 per class``
    keep_model: bool = False  # whether the final model is kept

    @property
    def name(self) -> str:
        """Its name in file names: ``lmrc-20-s0``."""
        memory = f"-{self.memory}" if self.memory else ""
        method = re.sub(r"[^\w.+-]", ".", self.method)  # "module:Class" is no name on every system
        return f"{method}{memory}-s{self.seed}"


@dataclass(frozen=True)
class Work:
    """The runs of a recipe, and where and how they are executed."""

    recipe: Recipe
    runs: list[Run]
    out: Path  # the run folder
    data_dir: Path | None
    where: dict[str, Any]  # parameters of the learners that are no settings: device, compile
    failed: list[Run] = field(default_factory=list)  # a failed run does not stop the others


def plan(recipe: Recipe, keep_models: bool = False) -> list[Run]:
    """List the runs of a recipe: all with the first seed, then all with the next."""
    runs = (
        Run(method, seed, memory, title_of(recipe, method, memory), keep_models)
        for seed in range(recipe.seeds)
        for memory in recipe.memory
        for method in recipe.methods
    )
    return list(dict.fromkeys(runs))  # without duplicates


def title_of(recipe: Recipe, method: str, memory: int) -> str:
    """Return a method's title, with its number of exemplars."""
    return with_exemplars(find_method(method, recipe.variants).title, memory, recipe.total)


def finished(folder: Path, run: Run) -> int:
    """Count the tasks of a run in the folder's records, up to the first that is missing."""
    runs = by_method_and_seed(read_records(folder))
    return len(runs.get(run.title, {}).get(run.seed, []))


def unfinished(recipe: Recipe, runs: Iterable[Run], folder: Path) -> list[Run]:
    """Return the runs that are not complete in the folder's records.

    If a run was killed between its last record and the removal of its model, it is removed here.
    """
    left = []
    for run in runs:
        if finished(folder, run) < recipe.tasks:
            left.append(run)
        else:
            remove_model(folder, run)
    return left


def execute(
    recipe: Recipe, run: Run, folder: Path, dataset: Dataset, **where: Any
) -> Iterator[RunRecord]:
    """Resume a run where its records end; add and yield a record after each task.

    `where` are parameters of the learner that do not belong to the experiment: device, compile.
    """
    _end_with_parent()
    ranks = current()
    with locked_run(folder, run) if ranks.is_first else nullcontext():
        # The first of several processes reads for all: the others may have no access to its folder.
        done, left = ranks.broadcast(lambda: resume_point(recipe, run, folder))
        for entry, model in measure(recipe, run, dataset, done, left, **where):
            ends = entry.record.task + 1 == recipe.tasks
            if model is not None and ends and ranks.is_first:
                model.save(trained_path(folder, run))  # before the record, which finishes the run
            if entry.record.task >= done:  # else it was killed between this record and its model
                if ranks.is_first:
                    append_record(folder, entry)
                yield entry
            if model is not None and not ends and ranks.is_first:
                model.save(model_path(folder, run))
    if ranks.is_first:  # a process that gets the lock from here on finds the run finished
        remove_model(folder, run)


def measure(
    recipe: Recipe, run: Run, dataset: Dataset, done: int, left: Model | None, **where: Any
) -> Iterator[tuple[RunRecord, IncrementalClassifier | None]]:
    """Resume a run from what `resume_point` found; yield a record and a model after each task.

    It needs no run folder. If the saved model is older than the records, some are made again. The
    run can be resumed from the model. It is None for learners of other libraries, and after the
    last task unless it is to be kept.
    """
    cls = find_method(run.method, recipe.variants).cls
    data = dataset.as_vectors() if _is_scikit(cls) else dataset
    stream = open_stream(recipe, run.seed, data)
    if done == len(stream):
        return
    learner, learnt = _learner(recipe, run, left, done, **where)
    device = pick_device(getattr(learner, "device", "cpu"))
    made_with: dict[str, Any] = {"versions": versions(), "hardware": hardware(device)}
    announce = "classes" in signature(learner.partial_fit).parameters and recipe.announce_classes
    for record, rules in evaluate_rules(stream, learner, bool(announce), start=learnt):
        entry = RunRecord(
            method=run.title,
            seed=run.seed,
            settings=_settings(recipe, run, learner),
            record=record,
            threads=torch.get_num_threads(),
            extra={"data": dataset.digest} | _extra(recipe, stream, learner, record.task, rules),
            **made_with,
        )
        wanted = record.task + 1 < len(stream) or run.keep_model
        yield entry, learner if wanted and isinstance(learner, IncrementalClassifier) else None


def resume_point(recipe: Recipe, run: Run, folder: Path) -> tuple[int, Model | None]:
    """Return the number of a run's records, and its saved model unless it is finished."""
    path, done = model_path(folder, run), finished(folder, run)
    goes_on = done < recipe.tasks and (path / MANIFEST).exists()
    return done, read(path) if goes_on else None  # a finished run's model is being removed


def check_settings(
    recipe: Recipe, runs: Iterable[Run], chosen: Iterable[str], **where: Any
) -> None:
    """Refuse parameters that no learner takes, and values that a learner would refuse.

    At least one of the learners must have each parameter that a user has `chosen`.
    """
    methods = {run.method: find_method(run.method, recipe.variants) for run in runs}
    for name in chosen:
        if not any(takes(method, name) for method in methods.values()):
            known = [p for m in methods.values() for p in signature(m.cls).parameters]
            close = get_close_matches(name, [p for p in known if p != name], 1)
            hint = f": did you mean {close[0]}?" if close else ""
            raise UsageError(
                f"--set {name}: none of {', '.join(methods)} takes that parameter{hint}"
            )
    rows = [row["method"] for row in recipe.rows]
    for run in runs:
        if rows and run.title not in rows:
            raise UsageError(f"{run.method} is no row of {recipe.experiment}: leave it out")
        if run.memory and not takes(methods[run.method], _memory_parameter(recipe)):
            raise UsageError(
                f"{run.method} stores no exemplars: it has no {_memory_parameter(recipe)}"
            )
        if not recipe.announce_classes and _is_scikit(methods[run.method].cls):
            raise UsageError(f"{run.method} needs all classes at first: add --announce-classes")
        learner = fresh_learner(recipe, run, **where)
        if isinstance(learner, IncrementalClassifier):
            try:
                learner._check_parameters()
                if isinstance(learner.backbone, str):
                    check_name(learner.backbone)
            except ValueError as error:
                raise UsageError(str(error)) from error


def check_code(recipe: Recipe, runs: Iterable[Run], folder: Path) -> None:
    """Refuse to add to records of a method whose code has changed, or to show them for it."""
    lines = read_records(folder)
    for run in runs:
        now = code_digest(find_method(run.method, recipe.variants).cls)
        then = {line.extra.get("code") for line in lines if line.method == run.title}
        if now is not None and then - {None, now}:  # older records have none
            raise FileExistsError(
                f"the code of {run.method} has changed since its records in {folder} were made: "
                "choose another folder with --out"
            )


def settings_of(recipe: Recipe, run: Run) -> dict[str, Any]:
    """Return the settings that the records of a run will hold."""
    return _settings(recipe, run, fresh_learner(recipe, run))


def _learner(
    recipe: Recipe, run: Run, left: Model | None, done: int, **where: Any
) -> tuple[Any, int]:
    """Return the run's saved model, or a fresh one, and how many tasks it has learnt.

    A learner of another library has no model file: it starts again from the first task.
    """
    fresh = fresh_learner(recipe, run, **where)
    if left is not None and isinstance(fresh, IncrementalClassifier):
        backbone = None if isinstance(fresh.backbone, str) else fresh.backbone
        device = where.get("device", "auto")
        model = model_from(run.name, *left, method=type(fresh), backbone=backbone, device=device)
        if model.n_tasks_ <= done:  # else records were removed: they are made again
            execution = {n: where[n] for n in EXECUTION if n in where and n in model.get_params()}
            return model.set_params(**execution), model.n_tasks_
    return fresh, 0


def fresh_learner(recipe: Recipe, run: Run, **where: Any) -> Any:
    """Return a new learner for a run."""
    # Also where it is 0: a class may have exemplars by default.
    memory = {"memory_per_class": 0, "memory_total": 0, _memory_parameter(recipe): run.memory}
    own = {"random_state": run.seed, **memory, **where}
    method = find_method(run.method, recipe.variants)
    return make_learner(method, recipe.settings_of(run.method) | own)


def _memory_parameter(recipe: Recipe) -> str:
    return "memory_total" if recipe.total else "memory_per_class"


def _is_scikit(cls: type) -> bool:
    """Tell scikit-learn's own classifiers: they need vectors, and all classes at first."""
    return cls.__module__.partition(".")[0] == "sklearn"


@contextmanager
def locked_run(folder: Path, run: Run) -> Iterator[None]:
    """Wait until no other process works on this run, and lock it.

    The other may be a user's second command, or outlive its killed parent for a moment.
    """
    lock = _lock(folder, run)
    lock.parent.mkdir(exist_ok=True)
    with lock.open("ab") as file, ExitStack() as held:
        try:
            held.enter_context(locked(file, wait=False))
        except BlockingIOError:
            say(f"{run.name}: waiting for another process that works on it", file=sys.stderr)
            held.enter_context(locked(file))
        yield


def _end_with_parent() -> None:
    """End this process when its parent is killed, which could no longer stop it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def model_path(folder: Path, run: Run) -> Path:
    """Return the path of the model of an unfinished run."""
    return folder / "models" / run.name


def trained_path(folder: Path, run: Run) -> Path:
    """Return the path of the final model of a run."""
    return folder / "trained" / run.name


def _lock(folder: Path, run: Run) -> Path:
    return folder / "models" / f"{run.name}.lock"


def remove_model(folder: Path, run: Run) -> None:
    """Remove the model of a run that is finished, and its lock."""
    shutil.rmtree(model_path(folder, run), ignore_errors=True)
    _lock(folder, run).unlink(missing_ok=True)
    with suppress(OSError):  # unless it holds others
        (folder / "models").rmdir()


def _extra(
    recipe: Recipe, stream: ClassStream, learner: Any, task: int, rules: RuleScores
) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if code := code_digest(type(learner)):
        extra["code"] = code
    if isinstance(learner, IncrementalClassifier):
        extra["execution"] = learner.execution_.described()
        extra["augmentation"] = learner.augmentation_
        extra["stored_bytes"] = _stored_bytes(learner)
    if rules:
        extra["prediction_rules"] = rules
    names = stream.dataset.class_names
    if names:
        extra["class_names"] = [
            names.get(label, str(label)) for label in stream.tasks[task].tolist()
        ]
    if stream.dataset.note:
        extra["data_note"] = stream.dataset.note
    if recipe.record_outputs and task + 1 == len(stream):
        extra["outputs"] = mean_outputs(stream, learner)
    return extra


def _stored_bytes(learner: IncrementalClassifier) -> dict[str, int]:
    """Count the bytes of data in a model beside its network; label vectors are random."""
    members = getattr(learner, "members_", [learner])  # of an ensemble
    saved = [name for name in learner.saved_tensors if name != "labels_"]
    groups = (getattr(member, name) for member in members for name in saved)
    tensors = [tensor for group in groups for tensor in group.values()]
    images = learner.memory_.x[:].nbytes if learner.memory_ else 0
    return {"images": images, "statistics": sum(tensor.nbytes for tensor in tensors)}


def _settings(recipe: Recipe, run: Run, learner: Any) -> dict[str, Any]:
    parameters = learner.get_params() if hasattr(learner, "get_params") else {}
    for name in NOT_SETTINGS:
        parameters.pop(name, None)
    stream = {
        "dataset": recipe.dataset,
        "tasks": recipe.tasks,
        "order": order_of(recipe, run.seed),
    }
    given = {name: value for name in _PARTS if (value := getattr(recipe, name))}
    plain = {name: _plain(value) for name, value in parameters.items()}
    return {**stream, **given, "classifier": type(learner).__name__, **plain}


def _plain(value: Any) -> Any:
    """Return a value for JSON; what it cannot hold, such as a custom backbone, as text."""
    return value if is_plain(value) else repr(value)
