"""The numbers that the paper prints, by experiment and data set."""

import tomllib
from typing import Any

from lmrc.experiments.recipe import RECIPES, Recipe, load_recipe, names_tasks
from lmrc.experiments.runs import title_of

#: Settings of the protocol that must be the paper's, beside the learners' settings.
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

#: Settings for which the paper prints a range, or none.
_LEFT_OPEN = ("response_weight", "threshold", "penalty_weight", "distillation_weight")


def paper_values(recipe: Recipe) -> dict[str, float]:
    """Return the paper's average incremental accuracies for a recipe, by method as tables show it.

    Empty where the paper prints none for this experiment and data set, and where the recipe differs
    from the paper's: fewer images, another network, ….
    """
    papers = load_recipe(recipe.experiment, recipe.dataset)
    if _compared(recipe) != _compared(papers):
        return {}
    whole = tomllib.loads((RECIPES / "paper.toml").read_text(encoding="utf-8"))
    section = whole.get(recipe.experiment, {}).get(recipe.dataset, {})
    return {
        title_of(recipe, method, int(memory)): value
        for method, by_memory in section.items()
        if isinstance(by_memory, dict)
        for memory, value in by_memory.items()
    }


def _compared(recipe: Recipe) -> tuple[Any, ...]:
    settings = {k: v for k, v in recipe.settings.items() if k not in _LEFT_OPEN}
    return settings, names_tasks(recipe.order), *(getattr(recipe, name) for name in _PROTOCOL)
