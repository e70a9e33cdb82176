"""``lmrc reproduce``: run an experiment of the paper, or resume it, and write its report."""

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lmrc.data.datasets import check_name
from lmrc.experiments.capacity import count, counted, load_capacity_recipe
from lmrc.experiments.cluster import run_on_ray
from lmrc.experiments.options import UsageError
from lmrc.experiments.paper import paper_values
from lmrc.experiments.recipe import Recipe, load_recipe, read_recipe
from lmrc.experiments.reuse import copy_records
from lmrc.experiments.runs import (
    Run,
    Work,
    check_code,
    check_settings,
    finished,
    plan,
    trained_path,
)
from lmrc.experiments.workers import default_jobs, run_in_parallel, run_sequentially
from lmrc.report.live import Countdown, show
from lmrc.report.page import write_report
from lmrc.report.records import (
    DESCRIPTION,
    EXECUTION,
    RECORDS,
    Command,
    Description,
    by_method_and_seed,
    name_runs,
    read_description,
    read_records,
    write_description,
)
from lmrc.text import say
from lmrc.training.ranks import current

#: Experiments that can use the records of `incremental`.
READERS = ("consolidation", "heads")

#: These may change from one command to the next: they add runs, or are descriptions.
_FREE = ("seeds", "methods", "memory", "title", "question", "rows")


def default_folder(experiment: str, dataset: str | None = None) -> Path:
    """Return the default run folder of an experiment."""
    name = dataset or read_recipe(experiment).get("dataset")
    if name is None:
        return Path("runs") / experiment
    return Path("runs") / f"{experiment}-{Path(name).name.replace(':', '-')}"


def main(
    experiment: str,
    dataset: str | None,
    out: Path | None = None,
    *,
    source: Path | None = None,
    data_dir: Path | None = None,
    jobs: int | None = None,
    device: str = "auto",
    ray: str | None = None,
    gpus_per_run: float | None = None,
    keep_models: bool = False,
    quiet: bool = False,
    **changes: Any,
) -> None:
    """Run what is not yet in the records of the folder, then write the report.

    Without a data set it is the recipe's own. A run folder that holds this experiment already is
    resumed. `source` is a run folder of `incremental`, whose records `consolidation` and `heads`
    use instead of training again; by default the one under ``runs/``, if it exists. By default
    `jobs` runs are in parallel as `default_jobs` says. `ray` is the address of a Ray cluster, ""
    for Ray's own choice. `changes` are what differs from the recipe.
    """
    _check_processes(experiment, jobs, ray, gpus_per_run)
    out = out or default_folder(experiment, dataset)
    if experiment == "capacity":
        _count(out, quiet, **changes)
        return
    chosen = changes.pop("settings", None) or {}
    how = {name: chosen[name] for name in EXECUTION if name in chosen}
    settings = {name: value for name, value in chosen.items() if name not in how}
    try:
        recipe = load_recipe(experiment, dataset, **changes, settings=settings)
        check_name(recipe.dataset)
        runs = plan(recipe, keep_models)
        check_settings(recipe, runs, chosen, **how)
    except ValueError as error:  # nothing but the command line has been read so far
        raise UsageError(str(error)) from error
    jobs = jobs or default_jobs(len(runs), device)
    work = Work(recipe, runs, out, data_dir, {"device": device, **how})
    ranks = current()
    with _no_empty_folder(out):
        ranks.broadcast(lambda: _prepare(recipe, runs, source, out))
        if not ranks.is_first:
            # All processes train; the first one writes the results.
            list(run_sequentially(work))
            return
        records = read_records(out)
        known, to_run = by_method_and_seed(records), Counter[str]()
        for run in runs:
            to_run[run.title] += recipe.tasks - len(known.get(run.title, {}).get(run.seed, []))
        if ray is not None:
            steps = run_on_ray(work, address=ray, gpus=gpus_per_run)
        else:
            steps = run_in_parallel(work, jobs) if jobs > 1 else run_sequentially(work)
        bars = show(
            to_run, tasks=recipe.tasks, done=len(records), metric=recipe.metric, quiet=quiet
        )
        try:
            with bars as progress:
                for record in steps:
                    records.append(record)
                    progress.update(records)
        except KeyboardInterrupt:
            told = f"tasks recorded in {out}: {len(records)}; the same command continues"
            say(told, file=sys.stderr)
            raise
    if records:
        _report(out)
    if keep_models:
        _print_models(out, runs, recipe.tasks)
    if work.failed:
        names = ", ".join(run.name for run in work.failed)
        raise RuntimeError(
            f"{names} failed, see above; once the cause is fixed, the same command resumes"
        )


def _check_processes(
    experiment: str, jobs: int | None, ray: str | None, gpus_per_run: float | None
) -> None:
    """Refuse options for parallel work that contradict each other."""
    if current().is_distributed and experiment == "capacity":
        raise UsageError("capacity trains nothing: run it without torchrun")
    if current().is_distributed and ((jobs or 1) > 1 or ray is not None):
        raise UsageError("--jobs and --ray are for several models: leave them out with torchrun")
    if (jobs or 1) > 1 and ray is not None:
        raise UsageError("--jobs is for one machine: leave it out with --ray")
    if gpus_per_run is not None and ray is None:
        raise UsageError("--gpus-per-run is for a Ray cluster: add --ray")


def _count(out: Path, quiet: bool, **changes: Any) -> None:
    """Run `capacity`: no data set, no training."""
    recipe = load_capacity_recipe(**changes)
    plain = json.loads(json.dumps(asdict(recipe)))
    # More dimensions and thresholds only add to the result.
    _open_folder(out, "capacity", plain, free=("dims", "thresholds"))
    countdown = Countdown(len(recipe.counts), len(counted(out) & set(recipe.counts)))
    for record in count(recipe, out):
        if not quiet:
            bound = "at least " if record.is_lower_bound else ""
            countdown.tell(
                f"d = {record.dim}, T = {record.threshold:g}, seed {record.seed}: "
                f"{bound}{record.found} label vectors, {record.seconds:.1f} s"
            )
    _report(out)


def _report(out: Path) -> None:
    page, contents = write_report(out)
    say(*contents.markdown.split("\n"), "", f"Report with figures and tables: {page}")


def _print_models(out: Path, runs: Sequence[Run], tasks: int) -> None:
    """Print where the models are, and which runs have none."""
    kept, none = [], []
    for run in runs:
        if trained_path(out, run).exists():
            kept.append(run)
        elif finished(out, run) == tasks:
            none.append((run.title, run.seed))
    if kept:
        say(f"The trained models: {trained_path(out, kept[0]).parent}")
    if none:
        say(
            f"No models of {name_runs(none)}: their records were there already, or their class is "
            "no lmrc classifier. Use another folder (--out) to train again.",
            file=sys.stderr,
        )


@contextmanager
def _no_empty_folder(out: Path) -> Iterator[None]:
    """Remove a new run folder if the run fails before its first record."""
    description = out / DESCRIPTION
    new, was_there = not description.exists(), out.exists()
    try:
        yield
    except BaseException:
        if new and current().is_first and out.is_dir() and [*out.iterdir()] == [description]:
            description.unlink()
            if not was_there:
                out.rmdir()
        raise


def _open_folder(
    out: Path,
    experiment: str,
    recipe: dict[str, Any],
    *,
    paper: dict[str, float] | None = None,
    free: Sequence[str] = (),
) -> Description:
    """Make the run folder, or check that it belongs to the same experiment with the same settings.

    Seeds, methods and numbers of exemplars may be added at any time; other changes would mix
    different results. A command that includes all runs of an earlier one replaces it.
    """
    out.mkdir(parents=True, exist_ok=True)
    commands, notes = [Command.of(shlex.join(["lmrc", *sys.argv[1:]]), recipe)], []
    if (out / DESCRIPTION).exists():
        before = read_description(out)
        if before.experiment != experiment:
            raise FileExistsError(
                f"{out} holds {before.experiment}, not {experiment}: choose another folder "
                "with --out"
            )
        then = _comparable(before.recipe, recipe)
        compared = [name for name in recipe if name not in (*_FREE, *free)]
        differs = dict.fromkeys(  # in order, each once
            part for name in compared for part in _differing(then.get(name), recipe[name], name)
        )
        if differs and (out / RECORDS).exists():
            raise FileExistsError(
                f"{out} holds {before.experiment} with other settings ({', '.join(differs)}): "
                "choose another folder with --out, or the same settings to resume"
            )
        notes = before.notes
        if (out / RECORDS).exists():
            commands = [c for c in before.commands if not c.runs <= commands[0].runs] + commands
    elif (out / RECORDS).exists():
        raise FileExistsError(
            f"{out} holds records but no run.json, which describes them: choose another folder "
            "with --out"
        )
    description = Description(
        experiment,
        recipe["title"],
        recipe["question"],
        commands,
        recipe=recipe | _all_runs(commands),
        notes=notes,
        paper=paper or {},
    )
    write_description(out, description)
    return description


def _differing(then: Any, now: Any, name: str) -> Iterator[str]:
    """Name the settings in which two recipes differ, those within others by their own names."""
    given = [recipe for recipe in (then, now) if recipe is not None]
    if given and all(isinstance(recipe, dict) for recipe in given):
        then, now = then or {}, now or {}
        for part in {**then, **now}:
            yield from _differing(then.get(part), now.get(part), part)
    elif then != now and name not in EXECUTION:  # older folders may hold these, too
        yield name


def _all_runs(commands: Sequence[Command]) -> dict[str, Any]:
    """Return methods, numbers of exemplars and seeds of all commands; {} without methods."""
    if not commands[-1].methods:
        return {}
    return {
        "methods": list(dict.fromkeys(method for c in commands for method in c.methods)),
        "memory": list(dict.fromkeys(memory for c in commands for memory in c.memory)),
        "seeds": max(command.seeds for command in commands),
    }


def _comparable(before: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe of a folder, reduced to the methods that were run.

    Methods and variants may be added, with settings of their own.
    """
    variants = before.get("variants", {})
    used = {variants.get(name, {}).get("method", name) for name in before.get("methods", ())}
    now = recipe.get("by_method", {})
    # Older folders have no settings by method.
    own = {name: settings for name, settings in now.items() if name not in used}
    own |= {n: settings for n, settings in before.get("by_method", now).items() if n in used}
    return {**before, "by_method": own, "variants": recipe.get("variants", {}) | variants}


def _prepare(recipe: Recipe, runs: Sequence[Run], source: Path | None, out: Path) -> None:
    """Open the run folder, and copy records that another one has."""
    plain = json.loads(json.dumps(asdict(recipe)))
    check_code(recipe, runs, out)
    description = _open_folder(out, recipe.experiment, plain, paper=paper_values(recipe))
    if recipe.experiment in READERS:
        _read_from(recipe, runs, source, out, description)


def _read_from(
    recipe: Recipe, runs: Sequence[Run], source: Path | None, out: Path, description: Description
) -> None:
    """Copy the records of `incremental`, and print what was copied."""
    folder = source or default_folder("incremental", recipe.dataset)
    if source is not None and not (source / RECORDS).exists():
        raise FileNotFoundError(
            f"{source} holds no {RECORDS}: give a run folder of incremental with --from, or leave "
            "it out"
        )
    if notes := copy_records(recipe, runs, folder, out):
        say(*notes, file=sys.stderr)
        write_description(out, replace(description, notes=[*description.notes, *notes]))
