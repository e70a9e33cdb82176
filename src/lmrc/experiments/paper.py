"""The numbers that the paper prints, by experiment and data set."""

from __future__ import annotations

import tomllib

from lmrc.experiments.recipe import RECIPES, Recipe
from lmrc.experiments.runs import Run


def paper_values(recipe: Recipe) -> dict[str, float]:
    """Return the paper's average incremental accuracies for a recipe, by method as tables show it.

    Empty where the paper prints none for this experiment and data set, or in another metric.
    """
    whole = tomllib.loads((RECIPES / "paper.toml").read_text(encoding="utf-8"))
    section = whole.get(recipe.experiment, {}).get(recipe.dataset, {})
    if section.get("metric") != recipe.metric:
        return {}
    return {
        Run(method, 0, int(pool)).title: value
        for method, by_pool in section.items()
        if isinstance(by_pool, dict)
        for pool, value in by_pool.items()
    }
