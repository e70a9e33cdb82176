"""Models of earlier formats: brought to the present one as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: The format of a version's description and tensors. Format 1 has no number.
MODEL_FORMAT = 2

_RENAMED_SETTINGS = {"penalty": "penalty_weight"}
_RENAMED_IN_HISTORY = {"pieces": "cutmix"}


def upgraded(
    description: dict[str, Any], groups: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model's description and groups of tensors, or their shapes, as they are today.

    What is malformed stays so: who makes a classifier of it says what is wrong.
    """
    content = dict(groups)
    if description.get("format", 1) != 1:
        return description, content
    description = dict(description)
    if isinstance(settings := description.get("settings"), dict):
        description["settings"] = _renamed(settings, _RENAMED_SETTINGS)
    if isinstance(history := description.get("history_"), list):
        description["history_"] = [
            _renamed(epoch, _RENAMED_IN_HISTORY) if isinstance(epoch, dict) else epoch
            for epoch in history
        ]
    if "labels" in content:
        content["labels"] = _renamed(content["labels"], {"head.label_vectors": "vectors"})
    return description, content


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in values.items()}
