"""Which report belongs to which experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lmrc.report import ablation, consolidation, heads, rehearsal, rotations, streams, suppression
from lmrc.report.contents import Contents
from lmrc.report.records import Description, RunRecord, by_method_and_seed, is_whole
from lmrc.report.titles import asked_by_each, in_order, name_runs

#: By experiment; those of other names (the demo, your own) are shown as `incremental` is.
BUILDERS: dict[str, Callable[[Description, Sequence[RunRecord]], Contents]] = {
    "softmax-suppression": suppression.build,
    "rehearsal": rehearsal.build,
    "consolidation": consolidation.build,
    "heads": heads.build,
    "ablation": ablation.build,
    "rotations": rotations.build,
}


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return what the report of a run over tasks holds.

    Parameters
    ----------
    description : Description
        What was asked; its experiment decides about the sections.
    records : sequence of RunRecord
        What was measured; at least one.
    """
    if not by_method_and_seed(records):
        raise ValueError("there are no records to report; run the experiment first.")
    description, records, stopped = _without_stopped(description, records)
    # What is told of the data makes them others than the paper's, so its numbers say nothing here.
    notes = list(dict.fromkeys(note for r in records if (note := r.extra.get("data_note"))))
    asked = replace(description, paper={}) if notes else description
    ordered = in_order(records, description.recipe)
    contents = BUILDERS.get(description.experiment, streams.build)(asked, ordered)
    notes += stopped
    return replace(contents, notes=notes, markdown="\n\n".join([contents.markdown, *notes]))


def _without_stopped(
    description: Description, records: Sequence[RunRecord]
) -> tuple[Description, Sequence[RunRecord], list[str]]:
    """Leave out what an earlier command did not end, where a later one asks for less, and has it.

    Who asks for five seeds, stops and asks for three does not wait for the other two. Returns also
    what to tell of it: none or one sentence.
    """
    runs = by_method_and_seed(records)
    whole = {
        (method, seed)
        for method, seeds in runs.items()
        for seed, run in seeds.items()
        if is_whole([line.record for line in run])
    }
    commands, recipe = description.commands, description.recipe
    asked, runs_of = asked_by_each(commands, recipe), [command.runs for command in commands]
    ended = [runs <= whole for runs in asked]
    held = [
        i
        for i, runs in enumerate(runs_of)
        if not any(ended[j] and runs_of[j] < runs for j in range(i + 1, len(commands)))
    ]
    stopped = sorted(set().union(*asked) - set().union(*(asked[i] for i in held)) - whole)
    kept = [record for record in records if (record.method, record.seed) not in stopped]
    if not stopped or not kept:
        return description, records, []
    told = (
        "An earlier command asked for more, which has not ended and is not in here: "
        f"{name_runs(stopped)}."
    )
    return replace(description, commands=[commands[i] for i in held]), kept, [told]
