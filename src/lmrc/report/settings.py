"""How the records were made, as sections of the page: recipe, settings, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from lmrc.methods.catalog import classes
from lmrc.methods.declared import LMRCPlusParameters, extensions_off
from lmrc.report import html
from lmrc.report.records import NOT_SETTINGS, Description, RunRecord
from lmrc.statistics.prediction_rules import EXACT
from lmrc.training.augment import flips

if TYPE_CHECKING:
    from lmrc.report.capacity import CapacityRecord

#: Settings that are redundant, or shown elsewhere on the page.
_ELSEWHERE = (
    *("experiment", "title", "question", "record_outputs"),
    *("settings", "by_method", "variants", "rows"),
)

THEN = ", then "


def recipe_section(description: Description) -> Markup:
    """Return the recipe and the notes of a run, for below its question."""
    shown = {key: v for key, v in description.recipe.items() if key not in _ELSEWHERE}
    if shown.get("methods"):  # a later command may have added some
        added = (method for command in description.commands for method in command.methods)
        shown["methods"] = list(dict.fromkeys([*shown["methods"], *added]))
    return settings_list(shown) + html.joined(map(html.note, description.notes))


def settings_table(description: Description, records: Sequence[RunRecord]) -> Markup:
    """Show once what the methods share, and in a table what differs between them."""
    settings: dict[str, dict[str, Any]] = {}
    beside_plus = any(r.settings.get("classifier") == "LMRCPlusClassifier" for r in records)
    for record in records:
        chosen, found = settings.setdefault(record.method, {}), _of_record(record, beside_plus)
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
    cells = [[html.value(chosen.get(key)) for key in differing] for chosen in settings.values()]
    across, down = [key.replace("_", " ") for key in differing], list(settings)
    corner = "method"
    if len(across) > len(down):  # the longer side goes down: pages scroll that way
        across, down, corner = down, across, "setting"
        cells = [list(column) for column in zip(*cells, strict=True)]
    rows = [[html.breakable(name), *row] for name, row in zip(down, cells, strict=True)]
    caption = "Settings that differ between the methods; –: no such setting, or without effect."
    table = html.table(caption, [corner, *across], rows, "text")
    return table + Markup("<h3>The same for all methods that have it</h3>") + settings_list(common)


def _of_record(record: RunRecord, beside_plus: bool) -> dict[str, Any]:
    """Return the settings of a record as they were in effect.

    A parameter that it does not name is newer than the record: its default is the old behaviour.
    Beside LMRC+, LMRC is shown with the extensions of LMRC+ switched off.
    """
    classifier = record.settings.get("classifier", "")
    found = _defaults(classifier) | record.settings
    if beside_plus and classifier == "LMRCClassifier":
        found |= extensions_off()
    if "augmentation" in record.extra:
        found["augment"] = record.extra["augmentation"]
    found = in_effect(found)
    if found.pop("strong_augment", False):  # else `augment` shows it; this is older than CutMix
        found["augment"] = "auto: jitter+cutout for colour images"
    return {name: value for name, value in found.items() if name not in NOT_SETTINGS}


def in_effect(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they are in effect: None for one that the others make irrelevant.

    Examples
    --------
    >>> from lmrc.report.settings import in_effect
    >>> in_effect({"schedule": "cosine", "halve_at": [50]})
    {'schedule': 'cosine', 'halve_at': None}
    >>> in_effect({"augment": "none", "test_time_flip": True})
    {'augment': 'none', 'test_time_flip': False}
    >>> in_effect({"epochs": 60, "freeze": True, "predict_with": "ridge"})
    {'epochs': None, 'freeze': True, 'predict_with': 'ridge'}
    """
    found = dict(settings)
    if found.get("schedule") == "cosine" and "halve_at" in found:
        found["halve_at"] = None
    augment = found.get("augment")
    if "strong_augment" in found and augment != "auto":
        found["strong_augment"] = None
    if found.get("test_time_flip") and isinstance(augment, str):
        # Only where training flips images, too; "auto" does so for colour images.
        found["test_time_flip"] = "for colour images" if augment == "auto" else flips(augment)
    if found.get("freeze") is True and found.get("predict_with") in EXACT:
        declared = LMRCPlusParameters.parameters
        found |= {n: None for n in found if n in declared and declared[n].trains}
    return found


@cache
def _defaults(classifier: str) -> dict[str, Any]:
    cls = classes().get(classifier)
    return {} if cls is None else cls().get_params(deep=False)


def environment(
    records: Sequence[RunRecord] | Sequence[CapacityRecord], seconds: float, work: str
) -> Markup:
    """Name versions and hardware of a run, each that occurs."""
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
    return html.definitions(
        (key.replace("_", " "), html.value(value))
        for key, value in settings.items()
        if value is not None
    )
