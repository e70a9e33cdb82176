"""Records of `incremental` that another experiment can read instead of training again."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lmrc.experiments.recipe import Recipe
from lmrc.experiments.runs import Run, finished, settings_of
from lmrc.methods.catalog import find_method
from lmrc.outside import say
from lmrc.report.records import (
    HOW,
    RECORDS,
    RunRecord,
    append_record,
    by_method_and_seed,
    read_records,
)
from lmrc.report.titles import name_runs


def take_over(recipe: Recipe, runs: Sequence[Run], source: Path, folder: Path) -> list[str]:
    """Copy the records of finished runs with the same settings from another run folder.

    Parameters
    ----------
    recipe : Recipe
    runs : sequence of Run
        What is needed; those of which the folder has records already are left alone.
    source : Path
        The run folder to read.
    folder : Path
        The run folder to copy them to, so that its report needs no other.

    Returns
    -------
    list of str
        What was taken and from where, in words: none or one.
    """
    if not (source / RECORDS).exists():
        return []
    there = by_method_and_seed(read_records(source))
    taken: list[tuple[str, int]] = []
    others: dict[str, list[tuple[str, int]]] = {}
    for run in runs:
        records = there.get(run.title, {}).get(run.seed, [])
        if finished(folder, run) or len(records) < recipe.tasks:
            continue
        if differing := _differing(recipe, run, records):
            others.setdefault(", ".join(differing), []).append((run.title, run.seed))
            continue
        for record in records:
            append_record(folder, record)
        taken.append((run.title, run.seed))
    for settings, which in others.items():
        say(
            f"{name_runs(which)} in {source}: other settings ({settings}), so it is run here",
            file=sys.stderr,
        )
    if not taken:
        return []
    return [f"Taken from the records in {source}, not trained again: {name_runs(taken)}."]


def _differing(recipe: Recipe, run: Run, records: Sequence[RunRecord]) -> list[str]:
    """Name the settings in which the records differ from what the run would have.

    A parameter that a record does not know came later, and does by default what was done before.
    """
    asked = json.loads(json.dumps(settings_of(recipe, run)))
    parameters = inspect.signature(find_method(run.method, recipe.variants).cls).parameters
    missing = object()
    before = {name: parameters[name].default if name in parameters else missing for name in asked}
    return [
        name
        for name in {**asked, **records[0].settings}
        if name not in HOW
        and any(
            r.settings.get(name, before.get(name, missing)) != asked.get(name, missing)
            for r in records
        )
    ]
