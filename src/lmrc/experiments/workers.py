"""The runs of a recipe, one after another or several processes at a time."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from lmrc.data.datasets import Dataset
from lmrc.data.folders import size_of
from lmrc.experiments.inputs import open_dataset, open_stream
from lmrc.experiments.recipe import Recipe
from lmrc.experiments.runs import Run, execute, fresh_learner, unfinished
from lmrc.experiments.warned import in_one_line
from lmrc.outside import cut, say
from lmrc.report.records import RECORDS, RunRecord, read_records
from lmrc.training.device import pick_device
from lmrc.training.ranks import current
from lmrc.training.rotations import check_square

MOST_JOBS = 8  # unless asked for more: each has a copy of Python and torch in memory
POLL_SECONDS = 0.2  # how often the records of other processes are looked at


def usual_jobs(n_runs: int, device: str) -> int:
    """Return how many runs go side by side where no one says: one per core, one on a GPU.

    By all runs asked for and not by those left, so that one that is gone on with computes with as
    many threads as before. Small networks gain little from more threads, much from more runs.
    """
    if pick_device(device).type != "cpu" or current().is_distributed:
        return 1
    return max(1, min(n_runs, torch.get_num_threads(), MOST_JOBS))


def one_after_another(
    recipe: Recipe,
    runs: Sequence[Run],
    out: Path,
    data_dir: Path | None,
    where: dict[str, Any],
    failed: list[Run],
) -> Iterator[RunRecord]:
    """Run what is not in the records yet; one that fails does not take the others down."""
    ranks = current()
    waiting = ranks.broadcast(lambda: unfinished(recipe, runs, out))
    if not waiting:
        return  # the data set is not even opened
    dataset = _open(recipe, waiting, out, data_dir)
    for run in waiting:
        try:
            yield from execute(recipe, run, out, dataset, **where)
        except Exception as error:
            if ranks.is_distributed:
                raise  # the others wait for what this one does not come to
            _tell(run, error)
            failed.append(run)


def _open(recipe: Recipe, waiting: Sequence[Run], out: Path, data_dir: Path | None) -> Dataset:
    """Open the data set; what is wrong with all runs is told at once."""
    learners = [fresh_learner(recipe, run) for run in waiting]
    turned = any(getattr(learner, "rotations", "none") != "none" for learner in learners)
    path = recipe.dataset.removeprefix("folder:")
    if turned and path != recipe.dataset:  # before any image is decoded: it may take long
        _check_square(recipe.size or size_of(path, recipe.limit))
    dataset = open_dataset(recipe, data_dir)
    if turned:
        _check_square(dataset.X_train.shape[1:3])
    open_stream(recipe, waiting[0].seed, dataset)
    current().broadcast(lambda: _check_same(recipe, dataset, out))
    return dataset


def _check_square(size: int | tuple[int, ...]) -> None:
    """Refuse images that cannot be turned, and vectors, by their height and width."""
    sides = (size, size) if isinstance(size, int) else size
    check_square((1, *sides) if len(sides) == 2 else sides)


def _check_same(recipe: Recipe, dataset: Dataset, out: Path) -> None:
    """Refuse to add to records of other samples: tables would average over both."""
    records = read_records(out) if (out / RECORDS).exists() else []
    # Those of before it was written down say nothing, nor do those of images that stayed files.
    if dataset.digest and {r.extra.get("data") for r in records} - {None, dataset.digest}:
        raise ValueError(
            f"{recipe.dataset} is no longer what it was when the records in {out} were made: put "
            "it back as it was, or choose another folder with --out"
        )


def side_by_side(
    recipe: Recipe,
    runs: Sequence[Run],
    out: Path,
    data_dir: Path | None,
    where: dict[str, Any],
    jobs: int,
    failed: list[Run],
) -> Iterator[RunRecord]:
    """Run several processes at a time; one that dies does not take the others down.

    What did not finish is put into `failed`.
    """
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
    waiting = unfinished(recipe, runs, out)
    if waiting:  # a download is made once
        _open(recipe, waiting, out, data_dir)
        tell_of_mps(where["device"])
    working: dict[Run, Any] = {}
    threads = max(1, torch.get_num_threads() // jobs)  # OMP_NUM_THREADS is heeded
    known = len(read_records(out)) if (out / RECORDS).exists() else 0
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                run = waiting.pop(0)
                task = (recipe, run, out, data_dir, where, threads)
                working[run] = context.Process(target=_work, args=task)
                working[run].start()
            time.sleep(POLL_SECONDS)
            ended = [run for run, process in working.items() if process.exitcode is not None]
            records = read_records(out) if (out / RECORDS).exists() else []
            yield from records[known:]
            known = len(records)
            for run in ended:
                if working.pop(run).exitcode != 0:
                    failed.append(run)
    finally:
        for process in working.values():
            process.terminate()


def tell_of_mps(device: str) -> None:
    """Say what lets runs share a GPU, where it is not there: without it they take turns."""
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # where NVIDIA has it
    if pick_device(device).type == "cuda" and not Path(pipes, "control").exists():
        print(
            "Runs that share a GPU are faster under NVIDIA's MPS: nvidia-cuda-mps-control -d",
            file=sys.stderr,
        )


def _work(
    recipe: Recipe, run: Run, out: Path, data_dir: Path | None, where: dict[str, Any], threads: int
) -> None:
    torch.set_num_threads(threads)
    warnings.formatwarning = in_one_line
    try:
        for _ in execute(recipe, run, out, open_dataset(recipe, data_dir), **where):
            pass
    except Exception as error:
        _tell(run, error)
        sys.exit(1)


def _tell(run: Run, error: Exception) -> None:
    """Say why a run failed; in a line where that is no matter of a method's code."""
    foreseen = isinstance(error, (OSError, MemoryError))  # a full disk, say
    if foreseen or type(error).__module__.startswith("lmrc."):
        said = " ".join(str(error).split()) or type(error).__name__
        say(cut(f"{run.name}: {said}"), file=sys.stderr)
    else:
        traceback.print_exception(error, file=sys.stderr)
