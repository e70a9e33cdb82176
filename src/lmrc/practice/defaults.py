"""What settings are if no one names them. Takes no torch: ``lmrc info`` compares with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LMRC: dict[str, Any] = {
    "augment": "auto",
    "swa_epochs": 0,
    "backbone": "auto",
    "batch_size": 128,
    "class_weight": None,
    "compile": "auto",
    "deterministic": False,
    "device": "auto",
    "epochs": 70,
    "exemplars": "random",
    "feature_layers": 1,
    "first_epochs": None,
    "first_learning_rate": None,
    "freeze": False,
    "halve_at": (50 / 70, 60 / 70),
    "label_dim": 100,
    "learning_rate": 0.05,
    "max_tries": 10_000,
    "memory_per_class": 0,
    "memory_total": 0,
    "test_time_flip": False,
    "momentum": 0.9,
    "objective": "cosine",
    "on_full": "relax",
    "precision": "auto",
    "predict_with": "wta",
    "random_state": None,
    "exemplar_repeats": 1,
    "response_weight": 1.0,
    "rotations": "none",
    "scale": 16.0,
    "schedule": "halving",
    "statistics": "none",
    "threshold": 0.15,
    "verbose": 0,
    "weight_decay": 5e-4,
    "weights": None,
}
#: By the name of the classifier. A test compares them with its own.
DEFAULTS: dict[str, dict[str, Any]] = {
    "LMRCClassifier": _LMRC,
    "LMRCPlusClassifier": _LMRC
    | {
        "epochs": 60,
        "feature_layers": 2,
        "first_epochs": 100,
        "first_learning_rate": 0.05,
        "learning_rate": 0.02,
        "test_time_flip": True,
        "objective": "both",
        "predict_with": "ensemble",
        "exemplar_repeats": 3,
        "response_weight": 3.0,
        "rotations": "all",
        "schedule": "cosine",
        "statistics": "low-rank",
    },
}


def unusual(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not the defaults of a classifier.

    Without the backbone, which is told anyway, and without what a model does not keep.
    """
    usual = DEFAULTS[method]
    untold = {"backbone", "weights", "device", "verbose"}
    if not settings["random_state"]:  # 0 is the default of the commands
        untold.add("random_state")
    return {
        name: value
        for name, value in settings.items()
        # JSON has no tuples.
        if name not in untold
        and (tuple(value) if isinstance(value, list) else value) != usual[name]
    }


def in_words(settings: Mapping[str, Any]) -> str:
    """Return settings for the reader.

    >>> in_words({"epochs": 1, "freeze": True, "first_epochs": None})
    'epochs 1, freeze True, first_epochs as epochs'
    """
    later = {n: f"as {n.removeprefix('first_')}" for n in settings if n.startswith("first_")}
    told = {n: later.get(n) if v is None else v for n, v in settings.items()}
    return ", ".join(f"{name} {value}" for name, value in told.items())
