"""The runs of a recipe on a Ray cluster.

A Ray task needs no folder of the driver's: it gets the number of tasks that are in the records
already, and sends back the record of each further one. Ray restarts the work of a lost worker
elsewhere; records that are made twice are written once.
"""

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lmrc.experiments.inputs import open_dataset
from lmrc.experiments.recipe import Recipe
from lmrc.experiments.runs import (
    Run,
    Work,
    locked_run,
    measure,
    model_path,
    remove_model,
    resume_point,
    trained_path,
    unfinished,
)
from lmrc.methods.state import pack
from lmrc.report.records import RunRecord, append_record, as_type
from lmrc.store import folder as store
from lmrc.store.folder import Model

MAX_RETRIES = 5  # lost workers per run: a run that kills its worker is not retried forever


def run_on_ray(work: Work, *, address: str, gpus: float | None = None) -> Iterator[RunRecord]:
    """Do as `lmrc.experiments.workers.run_sequentially`, on a Ray cluster.

    Each machine of the cluster needs the data set's files; the run folder is on this one alone.
    Without an address, it is the cluster that this machine belongs to, or else a new one on this
    machine. `gpus` are per run; by default 1 where the cluster has any.
    """
    ray, recipe, out = _import_ray(), work.recipe, work.out
    with ExitStack() as stack:
        for run in work.runs:
            stack.enter_context(locked_run(out, run))
        waiting = unfinished(recipe, work.runs, out)
        if not waiting:
            return
        ray.init(address or None, log_to_driver=False, logging_level="warning")
        stack.callback(ray.shutdown)
        if gpus is None:
            gpus = 1 if ray.cluster_resources().get("GPU") else 0
        remote = ray.remote(_run).options(
            num_cpus=1, num_gpus=gpus, num_returns="streaming", max_retries=MAX_RETRIES
        )
        left = {run: resume_point(recipe, run, out) for run in waiting}
        working = {
            remote.remote(recipe, run, work.data_dir, work.where, *left[run]): run
            for run in waiting
        }
        done = {run: records for run, (records, _) in left.items()}
        while working:
            ready, _ = ray.wait(list(working), num_returns=1)
            run = working[ready[0]]
            try:
                line, model = ray.get(next(ready[0]))
            except StopIteration:
                del working[ready[0]]
                remove_model(out, run)
                continue
            except ray.exceptions.RayError:
                traceback.print_exc(file=sys.stderr)
                del working[ready[0]]
                work.failed.append(run)
                continue
            entry: RunRecord = as_type(RunRecord, json.loads(line))
            ends = entry.record.task + 1 == recipe.tasks
            if model is not None and ends:
                _save(model, trained_path(out, run))
            if entry.record.task >= done[run]:
                append_record(out, entry)
                done[run] += 1
                yield entry
            if model is not None and not ends:
                _save(model, model_path(out, run))


def _run(
    recipe: Recipe,
    run: Run,
    data_dir: Path | None,
    where: dict[str, Any],
    done: int,
    left: Model | None,
) -> Iterator[tuple[str, Model | None]]:
    """Yield the record of each task as a line of JSON, and the model so far."""
    dataset = open_dataset(recipe, data_dir)
    for entry, model in measure(recipe, run, dataset, done, left, **where):
        yield entry.to_json(), None if model is None else _on_cpu(pack(model))


def _save(model: Model, path: Path) -> None:
    with store.writing(path) as place:
        store.write(place, *model)


def _on_cpu(model: Any) -> Model:
    description, tensors = model
    groups = {name: {n: t.cpu() for n, t in group.items()} for name, group in tensors.items()}
    return description, groups


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise RuntimeError("--ray needs Ray: pip install ray") from error
    return ray
