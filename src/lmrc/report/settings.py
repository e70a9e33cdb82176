"""What the records were made with, as sections of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from markupsafe import Markup

from lmrc.methods.persistence import CLASSES
from lmrc.report import html
from lmrc.report.capacity_records import CapacityRecord
from lmrc.report.records import NO_SETTINGS, Description, RunRecord
from lmrc.training.augment import flips

#: Settings that say nothing beyond the others, or that stand elsewhere on the page.
_ELSEWHERE = (
    *("experiment", "title", "question", "record_outputs"),
    *("settings", "by_method", "variants", "rungs"),
)

THEN = ", then "


def asked(description: Description) -> Markup:
    """Return the recipe and the notes of a run, for below its question."""
    shown = {key: v for key, v in description.recipe.items() if key not in _ELSEWHERE}
    return settings_list(shown) + html.joined(map(html.note, description.notes))


def settings_table(description: Description, records: Sequence[RunRecord]) -> Markup:
    """Show once what the methods share, and in a table what differs between them."""
    settings: dict[str, dict[str, Any]] = {}
    for record in records:
        chosen, found = settings.setdefault(record.method, {}), _of_record(record)
        before, now = chosen.get("augment"), found.get("augment")
        chosen.update(found)
        if isinstance(before, str) and before != now:  # from task to task, in LMRC+
            kinds = before.split(THEN)
            chosen["augment"] = before if now in kinds else THEN.join([*kinds, str(now)])
        if description.recipe.get("order") == "per-seed":
            chosen["order"] = "shuffled by the run's seed"
    values: dict[str, dict[str, Any]] = {}
    for chosen in settings.values():
        for key, value in chosen.items():
            values.setdefault(key, {})[html.value(value)] = value
    common = {key: next(iter(found.values())) for key, found in values.items() if len(found) == 1}
    differing = [key for key, found in values.items() if len(found) > 1]
    if not differing:
        return settings_list(common)
    cells = [
        [html.td(html.value(chosen.get(key))) for key in differing] for chosen in settings.values()
    ]
    across, down = [key.replace("_", " ") for key in differing], list(settings)
    corner = "method"
    if len(across) > len(down):  # what there is more of goes down: pages scroll that way
        across, down, corner = down, across, "setting"
        cells = [list(column) for column in zip(*cells, strict=True)]
    rows = [[html.breakable(name), *row] for name, row in zip(down, cells, strict=True)]
    caption = "Where the methods differ; – where one has no such setting, or no use for it."
    table = html.table(caption, [corner, *across], rows, "text")
    return table + Markup("<h3>The same for all that have it</h3>") + settings_list(common)


def _of_record(record: RunRecord) -> dict[str, Any]:
    """Return the settings of a record as they were in force.

    One that it does not name came after it: by default it does what was done before.
    """
    found = _defaults(record.settings.get("classifier", "")) | record.settings
    if "augmentation" in record.extra:
        found["augment"] = record.extra["augmentation"]
    found = in_force(found)
    if found.get("augment") == "auto" and found.get("classifier") == "LMRCPlusClassifier":
        found["augment"] = "auto: strong for colour images"
    return {name: value for name, value in found.items() if name not in NO_SETTINGS}


def in_force(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are in force: None for one that has no effect beside the others.

    Examples
    --------
    >>> from lmrc.report.settings import in_force
    >>> in_force({"schedule": "cosine", "halve_at": [50]})
    {'schedule': 'cosine', 'halve_at': None}
    >>> in_force({"augment": "none", "test_time_flip": True})
    {'augment': 'none', 'test_time_flip': False}
    """
    found = dict(settings)
    if found.get("schedule") == "cosine" and "halve_at" in found:
        found["halve_at"] = None
    augment = found.get("augment")
    if found.get("test_time_flip") and isinstance(augment, str):
        # Only where they are learnt, too; "auto" does that with colour images.
        found["test_time_flip"] = "for colour images" if augment == "auto" else flips(augment)
    return found


@cache
def _defaults(classifier: str) -> dict[str, Any]:
    cls = CLASSES.get(classifier)
    return {} if cls is None else cls().get_params(deep=False)


def environment(records: Sequence[RunRecord | CapacityRecord], seconds: float, work: str) -> Markup:
    """Say on what the run was made; more than one machine or version is named as such."""
    made = [
        ", ".join(f"{name} {version}" for name, version in record.versions.items())
        + f"; {record.hardware}; {record.threads} thread{'s' * (record.threads != 1)}"
        for record in records
    ]
    return html.note(
        f"Made with {' and with '.join(dict.fromkeys(made))}. {work} took {seconds:,.0f} seconds "
        "in all."
    )


def settings_list(settings: Mapping[str, Any]) -> Markup:
    """Return settings and their values as HTML, without those that are None."""
    return html.listed(
        (key.replace("_", " "), html.value(value))
        for key, value in settings.items()
        if value is not None
    )
