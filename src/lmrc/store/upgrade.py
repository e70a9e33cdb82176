"""Models of earlier formats, converted to the current one as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The format of a version's description and tensors. Format 1 has no number.
MODEL_FORMAT = 3

_SETTINGS = {
    "penalty": "penalty_weight",
    "average_last": "swa_epochs",
    "mirror": "test_time_flip",
    "rehearsals": "exemplar_repeats",
}
_VALUES = {
    "predict_with": {"tuned": "finetuned", "both": "ensemble"},
    "augment": {"strong": "jitter+cutout", "mixed": "cutmix"},
}
_HISTORY = {"pieces": "cutmix", "batch": "task"}
#: Names of groups before format 3, and now.
GROUPS = {"pool": "exemplars", "readout": "classifiers"}


def upgraded(
    description: dict[str, Any], groups: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model's description and groups of tensors (or their shapes) in the current format.

    What is malformed stays so: building the classifier raises the error.
    """
    if description.get("format", 1) not in (1, 2):
        return description, dict(groups)
    description = _renamed(description, {"n_batches_": "n_tasks_"})
    if isinstance(settings := description.get("settings"), dict):
        settings = _renamed(settings, _SETTINGS)
        for name, values in _VALUES.items():
            if isinstance(value := settings.get(name), str):
                settings[name] = values.get(value, value)
        description["settings"] = settings
    if isinstance(history := description.get("history_"), list):
        description["history_"] = [
            _renamed(epoch, _HISTORY) if isinstance(epoch, dict) else epoch for epoch in history
        ]
    content = _renamed(groups, GROUPS)
    if "labels" in content:
        content["labels"] = _renamed(content["labels"], {"head.label_vectors": "vectors"})
    for group in {"weights", "fisher"} & content.keys():
        content[group] = {
            f"encoder.{name.removeprefix('trunk.')}" if name.startswith("trunk.") else name: tensor
            for name, tensor in content[group].items()
        }
    return description, content


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in values.items()}
