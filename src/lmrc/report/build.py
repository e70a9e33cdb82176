"""Which report belongs to which experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from lmrc.report import consolidation, heads, ladder, rehearsal, rotations, streams, suppression
from lmrc.report.contents import Contents
from lmrc.report.records import Description, RunRecord
from lmrc.report.titles import in_order

#: By experiment; those of other names (the demo, your own) are shown as `incremental` is.
BUILDERS: dict[str, Callable[[Description, Sequence[RunRecord]], Contents]] = {
    "softmax-suppression": suppression.build,
    "rehearsal": rehearsal.build,
    "consolidation": consolidation.build,
    "heads": heads.build,
    "ladder": ladder.build,
    "rotations": rotations.build,
}


def build(description: Description, records: Sequence[RunRecord]) -> Contents:
    """Return what the report of a run over class batches holds.

    Parameters
    ----------
    description : Description
        What was asked; its experiment decides about the sections.
    records : sequence of RunRecord
        What was measured; at least one.
    """
    if not records:
        raise ValueError("there are no records to report; run the experiment first.")
    # What is told of the data makes them others than the paper's, so its numbers say nothing here.
    notes = list(dict.fromkeys(note for r in records if (note := r.extra.get("data_note"))))
    asked = replace(description, paper={}) if notes else description
    ordered = in_order(records, description.recipe)
    contents = BUILDERS.get(description.experiment, streams.build)(asked, ordered)
    return replace(contents, notes=notes, markdown="\n\n".join([contents.markdown, *notes]))
