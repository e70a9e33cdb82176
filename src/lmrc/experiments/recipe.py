"""Recipes: the settings of an experiment on a data set, with the paper's values."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

RECIPES = resources.files("lmrc.experiments") / "recipes"


@dataclass(frozen=True)
class Recipe:
    """What an experiment runs: every seed with every method and every pool size.

    Attributes
    ----------
    experiment, dataset : str
    title, question : str
        For the report.
    methods : list of str
        Short names, or dotted paths.
    seeds : int
        Seeds 0, 1, ….
    order : "natural", "per-seed" or int
        Order of the classes: their own, shuffled by the run's seed, or by one seed for all.
    memory : list of int
        Pool sizes per class.
    batches : int
        Class batches.
    metric : {"accuracy", "top5"}
        What the paper reports on this data set.
    settings : dict
        Parameters of the learners; each takes those that it has.
    limit : int or None
        Images per class, all where None.
    """

    experiment: str
    dataset: str
    title: str
    question: str
    methods: list[str]
    seeds: int
    order: str | int
    memory: list[int]
    batches: int
    metric: str
    settings: dict[str, Any]
    limit: int | None = None


def load_recipe(experiment: str, dataset: str, **changes: Any) -> Recipe:
    """Read the recipe of an experiment on a data set.

    Parameters
    ----------
    experiment : str
        "incremental", "rehearsal", ….
    dataset : str
        As for `lmrc.load_dataset`.
    **changes
        Values that replace the recipe's; those that are None do not. What is no field of a
        `Recipe` is a parameter of the learners.
    """
    merged = _merge(_read(experiment), dataset)
    for name, value in changes.items():
        if value is None:
            continue
        if name in Recipe.__dataclass_fields__:
            merged[name] = value
        else:
            merged["settings"][name] = value
    return Recipe(experiment=experiment, dataset=dataset, **merged)


def _read(experiment: str) -> dict[str, Any]:
    file = RECIPES / f"{experiment}.toml"
    if not file.is_file():
        names = sorted(entry.name.removesuffix(".toml") for entry in RECIPES.iterdir())
        raise ValueError(f"the experiment {experiment!r} is not known: use one of {names}")
    recipe = tomllib.loads(file.read_text(encoding="utf-8"))
    if base := recipe.pop("extends", None):
        recipe = _overlay(_read(base), recipe)
    return recipe


def _merge(recipe: dict[str, Any], dataset: str) -> dict[str, Any]:
    """Put the data set's section over the default's, and both over the experiment's values."""
    sections = {name: value for name, value in recipe.items() if isinstance(value, dict)}
    common = {name: value for name, value in recipe.items() if name not in sections}
    merged = _overlay(common, sections["default"])
    return _overlay(merged, sections.get(dataset, {}))


def _overlay(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for name, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = _overlay(result[name], value) if both else value
    return result
