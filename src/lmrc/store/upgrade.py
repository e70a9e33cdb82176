"""Models of earlier formats, converted to the current one as they are read."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

#: The format of a version's description and tensors. Format 1 has no number.
MODEL_FORMAT = 4

_SETTINGS = {
    "penalty": "penalty_weight",
    "mirror": "test_time_flip",
    "rehearsals": "exemplar_repeats",
}
_VALUES = {
    "predict_with": {"tuned": "finetuned", "both": "ensemble"},
    "augment": {"strong": "jitter+cutout", "mixed": "cutmix"},
}
#: Parameters that LMRC had before format 3, and LMRC+ alone has since: as they were by default.
_OF_LMRC_PLUS = {
    "rotations": "none",
    "objective": "cosine",
    "scale": 16.0,
    "statistics": "none",
    "feature_layers": 1,
    "predict_with": "wta",
    "test_time_flip": False,
    "exemplar_repeats": 1,
    "strong_augment": False,  # which is newer: LMRC never had it
}
#: Defaults of LMRC that LMRC+ has others for, where a file is older than the parameter.
_OF_LMRC = {"schedule": "halving", "first_epochs": None, "first_learning_rate": None}
#: Parameters that no class has any more, which concern training alone; as they were by default.
REMOVED = {"average_last": 0, "swa_epochs": 0}
_HISTORY = {"pieces": "cutmix", "batch": "task"}
#: Names of groups before format 3, and now.
GROUPS = {"pool": "exemplars", "readout": "classifiers"}


def upgraded(
    description: dict[str, Any], groups: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model's description and groups of tensors (or their shapes) in the current format.

    What is malformed stays so: building the classifier raises the error.
    """
    number = description.get("format", 1)
    if number == 3:
        # Calibrated for another unknown score: it has probabilities again once it learns a task.
        old = "map" in groups.get("calibration", ())
        groups = {n: g for n, g in groups.items() if not old or n != "calibration"}
        return _of_one_layer(description), groups
    if number not in (1, 2):
        return description, dict(groups)
    description = _renamed(description, {"n_batches_": "n_tasks_"})
    if isinstance(settings := description.get("settings"), dict):
        settings = _renamed(settings, _SETTINGS)
        for name, values in _VALUES.items():
            if isinstance(value := settings.get(name), str):
                settings[name] = values.get(value, value)
        description["settings"] = settings
        if description.get("class") == "LMRCClassifier":
            description |= _by_class(settings)
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


def _of_one_layer(description: dict[str, Any]) -> dict[str, Any]:
    """EfficientNet-Lite offered one layer's features before format 4, whatever was asked for."""
    settings = description.get("settings")
    if not isinstance(settings, dict) or "feature_layers" not in settings:
        return description
    if not str(settings.get("backbone")).startswith("efficientnet-lite"):
        return description
    return {**description, "settings": {**settings, "feature_layers": 1}}


def known_settings(settings: Mapping[str, Any], known: Container[str]) -> dict[str, Any]:
    """Leave out parameters of earlier versions that a class does not know.

    Those that were removed; and extensions that are off, which a class derived from LMRC had before
    format 3.
    """
    off = {name for name, usual in _OF_LMRC_PLUS.items() if settings.get(name) == usual}
    left_out = {name for name in off | REMOVED.keys() if name not in known}
    return {name: value for name, value in settings.items() if name not in left_out}


def _by_class(settings: dict[str, Any]) -> dict[str, Any]:
    """Return class and settings of an LMRC that may be an LMRC+ since."""
    if all(settings.get(name, usual) == usual for name, usual in _OF_LMRC_PLUS.items()):
        kept = {name: v for name, v in settings.items() if name not in _OF_LMRC_PLUS}
        return {"class": "LMRCClassifier", "settings": kept}
    return {"class": "LMRCPlusClassifier", "settings": _OF_LMRC | _OF_LMRC_PLUS | settings}


def _renamed(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in values.items()}
