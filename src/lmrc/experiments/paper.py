"""The numbers that the paper prints, by experiment and data set."""

from __future__ import annotations

import tomllib
from typing import Any

from lmrc.experiments.recipe import RECIPES, Recipe, load_recipe, names_tasks
from lmrc.experiments.runs import title_of

#: What makes a result another one than the paper's, beside the learners' settings.
_PROTOCOL = (
    "tasks",
    "metric",
    "limit",
    "validate",
    "classes",
    "first_classes",
    "blurry",
    "total",
)

#: Settings for which the paper prints a range, or nothing.
_LEFT_OPEN = ("response_weight", "threshold", "penalty_weight", "distillation_weight")


def paper_values(recipe: Recipe) -> dict[str, float]:
    """Return the paper's average incremental accuracies for a recipe, by method as tables show it.

    Empty where the paper prints none for this experiment and data set, and where the recipe is not
    the paper's: fewer images, another network, ….
    """
    usual = load_recipe(recipe.experiment, recipe.dataset)
    if _what_counts(recipe) != _what_counts(usual):
        return {}
    whole = tomllib.loads((RECIPES / "paper.toml").read_text(encoding="utf-8"))
    section = whole.get(recipe.experiment, {}).get(recipe.dataset, {})
    return {
        title_of(recipe, method, int(pool)): value
        for method, by_pool in section.items()
        if isinstance(by_pool, dict)
        for pool, value in by_pool.items()
    }


def _what_counts(recipe: Recipe) -> tuple[Any, ...]:
    settings = {k: v for k, v in recipe.settings.items() if k not in _LEFT_OPEN}
    return settings, names_tasks(recipe.order), *(getattr(recipe, name) for name in _PROTOCOL)
