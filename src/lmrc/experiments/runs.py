"""Runs of learners over a stream that can be stopped at any moment and gone on with.

A run folder holds ``records.jsonl``, to which each finished class batch adds a line, and under
``models/`` the model of every run that is not finished.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lmrc.data.datasets import Dataset, load_dataset
from lmrc.data.stream import ClassStream
from lmrc.evaluation.run import evaluate
from lmrc.experiments.environment import hardware, versions
from lmrc.experiments.recipe import Recipe
from lmrc.methods.catalog import find_method, make_learner
from lmrc.methods.persistence import load
from lmrc.report.records import RunRecord, append_record, read_records
from lmrc.store.folder import MANIFEST
from lmrc.training.device import pick_device


@dataclass(frozen=True)
class Run:
    """One method with one seed and one pool size."""

    method: str
    seed: int
    memory: int

    @property
    def name(self) -> str:
        """A name for files: ``lmrc-20-s0``."""
        pool = f"-{self.memory}" if self.memory else ""
        return f"{self.method}{pool}-s{self.seed}"

    @property
    def title(self) -> str:
        """A name for tables: ``LMRC + 20 per class``."""
        pool = f" + {self.memory} per class" if self.memory else ""
        return find_method(self.method).title + pool


def plan(recipe: Recipe) -> list[Run]:
    """List the runs of a recipe: all with the first seed, then all with the next."""
    return [
        Run(method, seed, memory)
        for seed in range(recipe.seeds)
        for memory in recipe.memory
        for method in recipe.methods
    ]


def finished(folder: Path, run: Run) -> int:
    """Count the class batches of a run that are in the folder's records."""
    if not (folder / "records.jsonl").exists():
        return 0
    records = read_records(folder)
    return sum(record.method == run.title and record.seed == run.seed for record in records)


def execute(
    recipe: Recipe, run: Run, folder: Path, dataset: Dataset, **where: Any
) -> Iterator[RunRecord]:
    """Go on with a run where its records end; add and yield a record after each class batch.

    Parameters
    ----------
    recipe, run
        What to run.
    folder : Path
        The run folder.
    dataset : Dataset
    **where
        Parameters of the learner that are the machine's and not the experiment's: device, ….
    """
    order: Any = run.seed if recipe.order == "per-seed" else recipe.order
    stream = ClassStream(dataset, batches=recipe.batches, order=order)
    done = finished(folder, run)
    if done == len(stream):
        return
    learner, learnt = _learner(recipe, run, folder, **where)
    device = pick_device(getattr(learner, "device", "cpu"))
    made_with: dict[str, Any] = {"versions": versions(), "hardware": hardware(device)}
    for record in evaluate(stream, learner, start=learnt):
        entry = RunRecord(
            method=run.title,
            seed=run.seed,
            settings=_settings(recipe, learner, order),
            record=record,
            threads=torch.get_num_threads(),
            **made_with,
        )
        if record.batch >= done:  # else a kill came between this record and its model
            append_record(folder, entry)
            yield entry
        if record.batch + 1 < len(stream):
            learner.save(_model(folder, run))
    shutil.rmtree(_model(folder, run), ignore_errors=True)


def open_dataset(recipe: Recipe, data_dir: Path | None) -> Dataset:
    """Load the recipe's data set."""
    return load_dataset(recipe.dataset, data_dir=data_dir, limit=recipe.limit)


def _learner(recipe: Recipe, run: Run, folder: Path, **where: Any) -> tuple[Any, int]:
    """Return the run's model as it was left, or a fresh one, and how much it has learnt."""
    path = _model(folder, run)
    if (path / MANIFEST).exists():
        learner = load(path, device=where.get("device", "auto"))
        return learner, learner.n_batches_
    pool = {"memory_per_class": run.memory} if run.memory else {}
    own = {"random_state": run.seed, **pool, **where}
    return make_learner(find_method(run.method), recipe.settings | own), 0


def _model(folder: Path, run: Run) -> Path:
    return folder / "models" / run.name


def _settings(recipe: Recipe, learner: Any, order: Any) -> dict[str, Any]:
    parameters = learner.get_params() if hasattr(learner, "get_params") else {}
    for name in ("random_state", "verbose", "device"):  # in the record's own fields, or no matter
        parameters.pop(name, None)
    stream = {"dataset": recipe.dataset, "class_batches": recipe.batches, "order": order}
    limit = {"limit": recipe.limit} if recipe.limit else {}
    return {**stream, **limit, "classifier": type(learner).__name__, **parameters}
