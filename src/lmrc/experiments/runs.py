"""Runs of learners over a stream that can be stopped at any moment and gone on with.

A run folder holds ``records.jsonl``, to which each finished task adds a line, and under
``models/`` the model of every run that is not finished; under ``trained/`` the models of finished
ones, where they are to be kept.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
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
from lmrc.methods.base import IncrementalClassifier
from lmrc.methods.catalog import find_method, make_learner, takes
from lmrc.methods.persistence import model_from
from lmrc.nets.backbones import check_name
from lmrc.report.records import (
    HOW,
    NO_SETTINGS,
    RunRecord,
    append_record,
    by_method_and_seed,
    read_records,
)
from lmrc.report.titles import pooled
from lmrc.store.folder import MANIFEST, Model, read
from lmrc.store.lock import locked
from lmrc.training.device import pick_device
from lmrc.training.ranks import current

#: What of the data set takes part, and when.
_PARTS = (
    *("size", "limit", "validate", "classes", "first_classes"),
    *("announce_classes", "blurry", "disjoint"),
)


@dataclass(frozen=True)
class Run:
    """One method with one seed and one pool size.

    Attributes
    ----------
    method : str
        Its short name, or a dotted path.
    seed, memory : int
    title : str
        A name for tables and records: ``LMRC + 20 per class``.
    keep_model : bool
        Whether the model at its end is kept.
    """

    method: str
    seed: int
    memory: int
    title: str
    keep_model: bool = False

    @property
    def name(self) -> str:
        """A name for files: ``lmrc-20-s0``."""
        pool = f"-{self.memory}" if self.memory else ""
        method = re.sub(r"[^\w.+-]", ".", self.method)  # "module:Class" is no name on every system
        return f"{method}{pool}-s{self.seed}"


def plan(recipe: Recipe, keep_models: bool = False) -> list[Run]:
    """List the runs of a recipe: all with the first seed, then all with the next."""
    runs = (
        Run(method, seed, memory, title_of(recipe, method, memory), keep_models)
        for seed in range(recipe.seeds)
        for memory in recipe.memory
        for method in recipe.methods
    )
    return list(dict.fromkeys(runs))  # what is asked for twice is run once


def title_of(recipe: Recipe, method: str, memory: int) -> str:
    """Return a method's name for tables, with its pool size."""
    return pooled(find_method(method, recipe.variants).title, memory, recipe.total)


def finished(folder: Path, run: Run) -> int:
    """Count the tasks of a run that are in the folder's records, up to one that is not."""
    if not (folder / "records.jsonl").exists():
        return 0
    runs = by_method_and_seed(read_records(folder))
    return len(runs.get(run.title, {}).get(run.seed, []))


def unfinished(recipe: Recipe, runs: Iterable[Run], folder: Path) -> list[Run]:
    """Return the runs that are not whole in the folder's records.

    Where a kill came between a run's last record and the removal of its model, it is removed here.
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
    """Go on with a run where its records end; add and yield a record after each task.

    Parameters
    ----------
    recipe, run
        What to run.
    folder : Path
        The run folder.
    dataset : Dataset
    **where
        Parameters of the learner that are the machine's and not the experiment's: device, compile.
    """
    _end_with_parent()
    with _alone(folder, run) if current().is_first else nullcontext():
        yield from _go_on(recipe, run, folder, dataset, **where)


def _go_on(
    recipe: Recipe, run: Run, folder: Path, dataset: Dataset, **where: Any
) -> Iterator[RunRecord]:
    ranks = current()
    # The first of several processes reads for all: the others may not see its folder.
    done, left = ranks.broadcast(lambda: left_over(folder, run))
    for entry, model in measure(recipe, run, dataset, done, left, **where):
        ends = entry.record.task + 1 == recipe.tasks
        if model is not None and ends and ranks.is_first:
            model.save(trained_path(folder, run))  # before the record: then the run is finished
        if entry.record.task >= done:  # else a kill came between this record and its model
            if ranks.is_first:
                append_record(folder, entry)
            yield entry
        if model is not None and not ends and ranks.is_first:
            model.save(model_path(folder, run))


def measure(
    recipe: Recipe, run: Run, dataset: Dataset, done: int, left: Model | None, **where: Any
) -> Iterator[tuple[RunRecord, IncrementalClassifier | None]]:
    """Go on with a run; yield a record after each task. It knows of no run folder.

    Parameters
    ----------
    recipe, run, dataset, **where
        As in `execute`.
    done, left
        What `left_over` found.

    Yields
    ------
    record : RunRecord
        Where the model left over is older than the records, some are made again.
    model : IncrementalClassifier or None
        From which the run can go on; None for a learner of another kind, and at the run's end,
        unless it is to be kept.
    """
    cls = find_method(run.method, recipe.variants).cls
    taught = dataset.as_vectors() if _is_scikit(cls) else dataset
    stream = open_stream(recipe, run.seed, taught)
    if done == len(stream):
        return
    learner, learnt = _learner(recipe, run, left, done, **where)
    device = pick_device(getattr(learner, "device", "cpu"))
    made_with: dict[str, Any] = {"versions": versions(), "hardware": hardware(device)}
    told = "classes" in signature(learner.partial_fit).parameters and recipe.announce_classes
    for record, rules in evaluate_rules(stream, learner, bool(told), start=learnt):
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


def left_over(folder: Path, run: Run) -> tuple[int, Model | None]:
    """Return how many records of a run there are, and the content of its model, if there is one."""
    path = model_path(folder, run)
    return finished(folder, run), read(path) if (path / MANIFEST).exists() else None


def check_settings(
    recipe: Recipe, runs: Iterable[Run], chosen: Iterable[str], **where: Any
) -> None:
    """Refuse parameters that no learner takes, and values that one would refuse at its first task.

    Parameters
    ----------
    recipe, runs
        What is to be run.
    chosen : iterable of str
        Names of parameters that a user chose. One that a learner does not have is passed over
        where another has it.
    **where
        As in `execute`.
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
    steps = [rung["method"] for rung in recipe.rungs]
    for run in runs:
        if steps and run.title not in steps:
            raise UsageError(f"{run.method} is no step of {recipe.experiment}: leave it out")
        if run.memory and not takes(methods[run.method], _room(recipe)):
            raise UsageError(f"{run.method} keeps no images: it has no {_room(recipe)}")
        if not recipe.announce_classes and _is_scikit(methods[run.method].cls):
            raise UsageError(f"{run.method} must know all classes at first: add --announce-classes")
        learner = fresh_learner(recipe, run, **where)
        if isinstance(learner, IncrementalClassifier):
            try:
                learner._check_parameters()
                if isinstance(learner.backbone, str):
                    check_name(learner.backbone)
            except ValueError as error:
                raise UsageError(str(error)) from error


def settings_of(recipe: Recipe, run: Run) -> dict[str, Any]:
    """Return the settings that a run's records hold, without running it."""
    return _settings(recipe, run, fresh_learner(recipe, run))


def _learner(
    recipe: Recipe, run: Run, left: Model | None, done: int, **where: Any
) -> tuple[Any, int]:
    """Return the run's model as it was left, or a fresh one, and how much it has learnt.

    A learner that is not of our kind has no model file: it learns again from the first task.
    """
    fresh = fresh_learner(recipe, run, **where)
    if left is not None and isinstance(fresh, IncrementalClassifier):
        backbone = None if isinstance(fresh.backbone, str) else fresh.backbone
        device = where.get("device", "auto")
        model = model_from(run.name, *left, method=type(fresh), backbone=backbone, device=device)
        if model.n_tasks_ <= done:  # else records were taken away: they are to be made again
            how = {n: where[n] for n in HOW if n in where and n in model.get_params()}
            return model.set_params(**how), model.n_tasks_
    return fresh, 0


def fresh_learner(recipe: Recipe, run: Run, **where: Any) -> Any:
    """Return the learner of a run, which has learnt nothing yet."""
    # 0, too: a class may have exemplars by default.
    memory = {"memory_per_class": 0, "memory_total": 0, _room(recipe): run.memory}
    own = {"random_state": run.seed, **memory, **where}
    method = find_method(run.method, recipe.variants)
    return make_learner(method, recipe.settings_of(run.method) | own)


def _room(recipe: Recipe) -> str:
    return "memory_total" if recipe.total else "memory_per_class"


def _is_scikit(cls: type) -> bool:
    """Tell scikit-learn's own classifiers: they take vectors, and want all classes at first."""
    return cls.__module__.partition(".")[0] == "sklearn"


@contextmanager
def _alone(folder: Path, run: Run) -> Iterator[None]:
    """Wait until no other process works on this run; once it is finished, remove its model.

    The other may be started by hand, or outlive its killed parent for a moment.
    """
    with held(folder, run):
        yield
    # Who waits for the lock still, or takes it anew from here on, finds the run finished.
    remove_model(folder, run)


@contextmanager
def held(folder: Path, run: Run) -> Iterator[None]:
    """Wait until no other process works on this run, and keep others off."""
    lock = _lock(folder, run)
    lock.parent.mkdir(exist_ok=True)
    with lock.open("ab") as file, locked(file):
        yield


def _end_with_parent() -> None:
    """End this process when the one that started it is killed: no one is left to stop it."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def model_path(folder: Path, run: Run) -> Path:
    """Return where the model of an unfinished run is."""
    return folder / "models" / run.name


def trained_path(folder: Path, run: Run) -> Path:
    """Return where the model of a finished run is kept."""
    return folder / "trained" / run.name


def _lock(folder: Path, run: Run) -> Path:
    return folder / "models" / f"{run.name}.lock"


def remove_model(folder: Path, run: Run) -> None:
    """Remove the model of a run that is finished, and its lock."""
    shutil.rmtree(model_path(folder, run), ignore_errors=True)
    _lock(folder, run).unlink(missing_ok=True)
    with suppress(OSError):  # unless others are there
        (folder / "models").rmdir()


def _extra(
    recipe: Recipe, stream: ClassStream, learner: Any, task: int, rules: RuleScores
) -> dict[str, Any]:
    extra: dict[str, Any] = {}
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
    """Count what a model holds of its data beside the network; label vectors are random."""
    groups = (getattr(learner, name) for name in learner.saved_tensors if name != "labels_")
    tensors = [tensor for group in groups for tensor in group.values()]
    images = learner.memory_.x[:].nbytes if learner.memory_ else 0
    return {"images": images, "statistics": sum(tensor.nbytes for tensor in tensors)}


def _settings(recipe: Recipe, run: Run, learner: Any) -> dict[str, Any]:
    parameters = learner.get_params() if hasattr(learner, "get_params") else {}
    for name in NO_SETTINGS:
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
    """Return what JSON cannot hold, such as a network of one's own, in words."""
    return value if is_plain(value) else repr(value)
