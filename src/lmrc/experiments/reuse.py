"""Records of `incremental` that another experiment uses instead of training again."""

import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lmrc.experiments.recipe import Recipe
from lmrc.experiments.runs import Run, finished, settings_of
from lmrc.methods.catalog import find_method
from lmrc.report.records import (
    EXECUTION,
    RunRecord,
    append_record,
    by_method_and_seed,
    name_runs,
    read_records,
)
from lmrc.store.upgrade import REMOVED
from lmrc.text import say


def copy_records(recipe: Recipe, runs: Sequence[Run], source: Path, folder: Path) -> list[str]:
    """Copy the records of finished runs with the same settings from another run folder.

    Runs that the folder has already are skipped. Returns a note on what was copied, and from where:
    none or one.
    """
    there = by_method_and_seed(read_records(source))
    copied: list[tuple[str, int]] = []
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
        copied.append((run.title, run.seed))
    for settings, which in others.items():
        say(
            f"{name_runs(which)} in {source}: other settings ({settings}), so trained here",
            file=sys.stderr,
        )
    if not copied:
        return []
    return [f"Copied from the records in {source}, not trained again: {name_runs(copied)}."]


def _differing(recipe: Recipe, run: Run, records: Sequence[RunRecord]) -> list[str]:
    """Name the settings in which the records differ from what the run would have.

    A parameter that a record does not name is newer than it; its default is the old behaviour. So
    is a removed one.
    """
    expected = json.loads(json.dumps(settings_of(recipe, run)))
    parameters = inspect.signature(find_method(run.method, recipe.variants).cls).parameters
    missing = object()
    before = {
        name: parameters[name].default if name in parameters else missing for name in expected
    }
    return [
        name
        for name in {**expected, **records[0].settings}
        if name not in EXECUTION
        and any(
            r.settings.get(name, before.get(name, missing))
            != expected.get(name, REMOVED.get(name, missing))
            for r in records
        )
    ]
