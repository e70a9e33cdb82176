"""Settings that differ from the defaults. Needs no torch, for ``lmrc info``."""

from collections.abc import Mapping
from typing import Any

from lmrc.methods.catalog import METHODS
from lmrc.methods.parameters import defaults

#: Default parameters by class name, for the classifiers of ``lmrc learn``.
DEFAULTS: dict[str, dict[str, Any]] = {
    method.path.rpartition(".")[2]: defaults(method.options)
    for method in METHODS.values()
    if method.options
}


def non_default(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the defaults of a classifier.

    Left out are the backbone, which is printed anyway, settings that a model does not store, and
    the seed, which `lmrc forget` replaces.
    """
    usual = DEFAULTS[method]
    left_out = {"backbone", "weights", "device", "verbose", "random_state"}
    return {
        name: value
        for name, value in sorted(settings.items())
        # JSON has no tuples.
        if name not in left_out
        and (tuple(value) if isinstance(value, list) else value) != usual[name]
    }


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as text.

    >>> format_settings({"epochs": 1, "freeze": True, "first_epochs": None})
    'epochs 1, freeze True, first_epochs as epochs'
    """
    later = {n: f"as {n.removeprefix('first_')}" for n in settings if n.startswith("first_")}
    values = {n: later.get(n) if v is None else v for n, v in settings.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items())
