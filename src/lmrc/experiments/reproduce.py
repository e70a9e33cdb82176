"""``lmrc reproduce``: run an experiment of the paper, or go on with one, and report it."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lmrc.experiments.recipe import Recipe, load_recipe
from lmrc.experiments.runs import Run, execute, finished, open_dataset, plan
from lmrc.report.live import show
from lmrc.report.records import (
    Description,
    RunRecord,
    read_description,
    read_records,
    write_description,
)
from lmrc.report.summary import markdown_table, summarize_methods
from lmrc.report.write import write_report

POLL_SECONDS = 0.2  # how often the records of other processes are looked at


def main(
    experiment: str,
    dataset: str,
    out: Path,
    *,
    data_dir: Path | None = None,
    jobs: int = 1,
    device: str = "auto",
    quiet: bool = False,
    **changes: Any,
) -> None:
    """Run what is not yet in the records of the folder, then write the report.

    Parameters
    ----------
    experiment, dataset : str
        Which recipe.
    out : Path
        The run folder. If it holds this experiment already, the run goes on where it stopped.
    data_dir : Path, optional
        Where the data set's files are.
    jobs : int, default=1
        Runs side by side, each in a process of its own.
    device : str, default="auto"
    quiet : bool, default=False
        Show no progress.
    **changes
        What differs from the recipe.
    """
    recipe = load_recipe(experiment, dataset, **changes)
    _open_folder(out, recipe)
    runs = plan(recipe)
    failed: list[Run] = []
    titles = list(dict.fromkeys(run.title for run in runs))
    total = len(runs) * recipe.batches
    with show(titles, batches=recipe.batches, total=total, quiet=quiet) as progress:
        where = {"device": device}
        steps = (
            _one_after_another(recipe, runs, out, data_dir, where)
            if jobs == 1
            else _side_by_side(recipe, runs, out, data_dir, where, jobs, failed)
        )
        records = read_records(out) if (out / "records.jsonl").exists() else []
        for record in steps:
            records.append(record)
            progress.update(records)
    page = write_report(out)
    print(markdown_table(summarize_methods(read_records(out))))
    print(f"\nThe page with figures and tables: {page}")
    if failed:
        names = ", ".join(run.name for run in failed)
        raise RuntimeError(f"{names} did not finish; run the same command again to go on")


def _open_folder(out: Path, recipe: Recipe) -> None:
    """Make the run folder, or check that it belongs to the same experiment with the same settings.

    Seeds, methods and pool sizes may be added at any time: the others would make another result.
    """
    out.mkdir(parents=True, exist_ok=True)
    asked = {**asdict(recipe), "seeds": None, "methods": None, "memory": None}
    command = shlex.join(["lmrc", *sys.argv[1:]])
    if (out / "run.json").exists():
        before = read_description(out)
        if before.recipe != asked:
            differs = [n for n in asked if before.recipe.get(n) != asked[n]]
            raise FileExistsError(
                f"{out} holds {before.experiment} with other settings ({', '.join(differs)}): "
                "choose another folder with --out, or the same settings to go on"
            )
    write_description(
        out, Description(recipe.experiment, recipe.title, recipe.question, command, recipe=asked)
    )


def _one_after_another(
    recipe: Recipe, runs: Sequence[Run], out: Path, data_dir: Path | None, where: dict[str, Any]
) -> Iterator[RunRecord]:
    dataset = open_dataset(recipe, data_dir)
    for run in runs:
        yield from execute(recipe, run, out, dataset, **where)


def _side_by_side(
    recipe: Recipe,
    runs: Sequence[Run],
    out: Path,
    data_dir: Path | None,
    where: dict[str, Any],
    jobs: int,
    failed: list[Run],
) -> Iterator[RunRecord]:
    """Run several processes at a time; one that dies does not take the others down."""
    context = multiprocessing.get_context("spawn")  # a forked process cannot use the GPU
    waiting = [run for run in runs if finished(out, run) < recipe.batches]
    working: dict[Run, Any] = {}
    threads = max(1, (os.cpu_count() or 1) // jobs)
    known = len(read_records(out)) if (out / "records.jsonl").exists() else 0
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                run = waiting.pop(0)
                task = (recipe, run, out, data_dir, where, threads)
                working[run] = context.Process(target=_work, args=task)
                working[run].start()
            time.sleep(POLL_SECONDS)
            ended = [run for run, process in working.items() if process.exitcode is not None]
            records = read_records(out) if (out / "records.jsonl").exists() else []
            yield from records[known:]
            known = len(records)
            for run in ended:
                if working.pop(run).exitcode != 0:
                    failed.append(run)
    finally:
        for process in working.values():
            process.terminate()


def _work(
    recipe: Recipe, run: Run, out: Path, data_dir: Path | None, where: dict[str, Any], threads: int
) -> None:
    torch.set_num_threads(threads)
    for _ in execute(recipe, run, out, open_dataset(recipe, data_dir), **where):
        pass
