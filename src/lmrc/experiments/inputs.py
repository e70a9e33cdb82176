"""The data set of a recipe, and its tasks."""

from pathlib import Path
from typing import Any

import numpy as np

from lmrc.data.datasets import Dataset, load_dataset
from lmrc.data.stream import ClassStream
from lmrc.experiments.recipe import Recipe, names_tasks


def open_dataset(recipe: Recipe, data_dir: Path | None) -> Dataset:
    """Load the recipe's data set; with a validation split, without its test part."""
    dataset = load_dataset(recipe.dataset, data_dir=data_dir, limit=recipe.limit, size=recipe.size)
    return dataset.validation_split(recipe.validate) if recipe.validate else dataset


def order_of(recipe: Recipe, seed: int) -> Any:
    """Return the order of the classes in a run with a seed, as `ClassStream` takes it."""
    return seed if recipe.order == "per-seed" else recipe.order


def open_stream(recipe: Recipe, seed: int, dataset: Dataset) -> ClassStream:
    """Return the tasks of a run with a seed."""
    order = order_of(recipe, seed)
    blur: dict[str, Any] = {
        "blurry": recipe.blurry or 0.0,
        "disjoint": recipe.disjoint or 0.0,
        "seed": seed,
    }
    if names_tasks(order):
        return ClassStream(dataset, tasks=order, **blur)
    if recipe.classes is None:
        first = recipe.first_classes
        return ClassStream(dataset, recipe.tasks, order, first_classes=first, **blur)
    labels = ClassStream(dataset, tasks=1, order=order).order[: recipe.classes]
    if len(labels) < recipe.classes:
        raise ValueError(
            f"{recipe.experiment} takes {recipe.classes} classes, but {recipe.dataset} has "
            f"{len(labels)}: choose another data set"
        )
    return ClassStream(
        dataset, tasks=[part.tolist() for part in np.array_split(labels, recipe.tasks)]
    )
