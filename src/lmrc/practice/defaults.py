"""Settings that are not the defaults, for the reader. Takes no torch: ``lmrc info`` shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lmrc.methods.catalog import METHODS
from lmrc.methods.parameters import defaults

#: By the name of the classifier, those that the commands work with.
DEFAULTS: dict[str, dict[str, Any]] = {
    method.path.rpartition(".")[2]: defaults(method.options)
    for method in METHODS.values()
    if method.options
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
        for name, value in sorted(settings.items())
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
