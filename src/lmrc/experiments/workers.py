"""The runs of a recipe, sequentially or in parallel processes."""

import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmrc.data.datasets import Dataset
from lmrc.data.folders import size_of
from lmrc.data.validation import is_image_batch, read_images
from lmrc.experiments.inputs import open_dataset, open_stream
from lmrc.experiments.recipe import Recipe
from lmrc.experiments.runs import Run, Work, execute, fresh_learner, unfinished
from lmrc.methods.base import IncrementalClassifier
from lmrc.report.records import RunRecord, read_records
from lmrc.text import in_one_line, say, shorten
from lmrc.training.device import pick_device
from lmrc.training.ranks import current
from lmrc.training.rotations import check_square

MAX_JOBS = 8  # by default: each has a copy of Python and torch in memory
POLL_SECONDS = 0.2  # how often the records of other processes are read


def default_jobs(n_runs: int, device: str) -> int:
    """Return the default number of parallel runs: one per core, one on a GPU.

    It depends on all runs, not on those that are left, so that a resumed run computes with as many
    threads as before. Small networks gain little from more threads, much from more runs.
    """
    if pick_device(device).type != "cpu" or current().is_distributed:
        return 1
    return max(1, min(n_runs, torch.get_num_threads(), MAX_JOBS))


def run_sequentially(work: Work) -> Iterator[RunRecord]:
    """Run what is not in the records yet, and yield each new record."""
    ranks = current()
    waiting = ranks.broadcast(lambda: unfinished(work.recipe, work.runs, work.out))
    if not waiting:
        return  # the data set is not even opened
    dataset = _open(work, waiting)
    for run in waiting:
        try:
            yield from execute(work.recipe, run, work.out, dataset, **work.where)
        except Exception as error:
            if ranks.is_distributed:
                raise  # the other processes would wait forever
            _print_failure(run, error)
            work.failed.append(run)


def _open(work: Work, waiting: Sequence[Run]) -> Dataset:
    """Open the data set; report at once what is wrong for all runs."""
    recipe = work.recipe
    learners = [fresh_learner(recipe, run) for run in waiting]
    rotated = any(getattr(learner, "rotations", "none") in ("one", "all") for learner in learners)
    path = recipe.dataset.removeprefix("folder:")
    if rotated and path != recipe.dataset:  # before any image is decoded: it may take long
        _check_square(recipe.size or size_of(path, recipe.limit))
    dataset = open_dataset(recipe, work.data_dir)
    images = dataset.X_train
    ours = any(isinstance(learner, IncrementalClassifier) for learner in learners)
    if ours and isinstance(images, np.ndarray) and is_image_batch(images):
        read_images(images[:100])  # once, not in each run
    if rotated:
        _check_square(dataset.X_train.shape[1:3])
    open_stream(recipe, waiting[0].seed, dataset)
    current().broadcast(lambda: _check_same(recipe, dataset, work.out))
    return dataset


def _check_square(size: int | tuple[int, ...]) -> None:
    """Refuse vectors, and images that are not square: they cannot be rotated."""
    sides = (size, size) if isinstance(size, int) else size
    check_square((1, *sides) if len(sides) == 2 else sides)


def _check_same(recipe: Recipe, dataset: Dataset, out: Path) -> None:
    """Refuse to add to records of another version of the data set."""
    # Older records have no digest, nor have data sets whose images are read from files.
    digests = {record.extra.get("data") for record in read_records(out)}
    if dataset.digest and digests - {None, dataset.digest}:
        raise ValueError(
            f"{recipe.dataset} has changed since the records in {out} were made: restore it, or "
            "choose another folder with --out"
        )


def run_in_parallel(work: Work, jobs: int) -> Iterator[RunRecord]:
    """Do as `run_sequentially`, with several processes at a time."""
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
    waiting = unfinished(work.recipe, work.runs, work.out)
    if waiting:  # download it once
        _open(work, waiting)
    working: dict[Run, Any] = {}
    threads = max(1, torch.get_num_threads() // jobs)  # respects OMP_NUM_THREADS
    known = len(read_records(work.out))
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                run = waiting.pop(0)
                working[run] = context.Process(target=_work, args=(work, run, threads, jobs))
                with _interrupts_blocked():
                    working[run].start()
            time.sleep(POLL_SECONDS)
            ended = [run for run, process in working.items() if process.exitcode is not None]
            records = read_records(work.out)
            yield from records[known:]
            known = len(records)
            for run in ended:
                if working.pop(run).exitcode != 0:
                    work.failed.append(run)
    finally:
        for process in working.values():
            process.terminate()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keep Ctrl-C from processes that are started meanwhile: their parent ends them, silently."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: Work, run: Run, threads: int, jobs: int) -> None:
    torch.set_num_threads(threads)
    os.environ["LOCAL_WORLD_SIZE"] = str(jobs)  # they share the memory, and the cores for decoding
    warnings.formatwarning = in_one_line
    try:
        dataset = open_dataset(work.recipe, work.data_dir)
        for _ in execute(work.recipe, run, work.out, dataset, **work.where):
            pass
    except Exception as error:
        _print_failure(run, error)
        sys.exit(1)


def _is_refused(error: Exception) -> bool:
    """Tell whether it is a value that a check of ours has refused: its message says what to do."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    module = frame.f_globals.get("__name__", "")
    return isinstance(error, ValueError) and module.startswith("lmrc.")


def _print_failure(run: Run, error: Exception) -> None:
    """Print why a run failed: in one line, unless the cause is in a method's code."""
    expected = isinstance(error, (OSError, MemoryError))  # a full disk, say
    if expected or type(error).__module__.startswith("lmrc.") or _is_refused(error):
        message = " ".join(str(error).split()) or type(error).__name__
        say(shorten(f"{run.name}: {message}"), file=sys.stderr)
    else:
        traceback.print_exception(error, file=sys.stderr)
