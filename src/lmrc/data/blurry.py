"""Which training samples belong to which task, in streams whose classes recur or mix."""

from collections.abc import Sequence

import numpy as np

from lmrc.data.dataset import Array


def assign_samples(
    y: Array, tasks: Sequence[Array], blurry: float, disjoint: float, seed: int
) -> list[Array] | None:
    """Return the rows of each task; None if each class is in one task only.

    `y` are the labels of the training samples, `tasks` the classes of each task; a class may be in
    several. The rest is as `lmrc.ClassStream` takes it.

    >>> y = np.repeat([0, 1], 10)
    >>> for rows in assign_samples(y, [np.array([0]), np.array([1])], 0.2, 0.0, seed=0):
    ...     print(np.bincount(y[rows]))
    [8 2]
    [2 8]
    """
    _check_share("blurry", blurry)
    _check_share("disjoint", disjoint)
    if disjoint and not blurry:
        raise ValueError("disjoint has an effect on blurry streams only: set blurry, too")
    classes = np.unique(np.concatenate(tasks))
    if not blurry and len(classes) == sum(map(len, tasks)):
        return None
    rng = np.random.default_rng(seed)
    pure = set(rng.permutation(classes)[: round(disjoint * len(classes))].tolist())
    rows: list[list[Array]] = [[] for _ in tasks]
    for label in classes.tolist():
        own = [i for i, of_task in enumerate(tasks) if (of_task == label).any()]
        others = rng.permutation([i for i in range(len(tasks)) if i not in own])
        samples = rng.permutation(np.flatnonzero(y == label))
        n_minor = 0 if label in pure or not len(others) else round(blurry * len(samples))
        if len(samples) - n_minor < len(own):
            raise ValueError(
                f"class {label!r} has {len(samples)} training samples, too few for {len(own)} "
                f"tasks with blurry={blurry:g}; add some, or choose another stream."
            )
        _distribute(samples[n_minor:], own, rows)
        if n_minor:
            _distribute(samples[:n_minor], others.tolist(), rows)
    return [np.sort(np.concatenate(parts)) for parts in rows]


def _distribute(samples: Array, tasks: list[int], rows: list[list[Array]]) -> None:
    """Split samples over tasks, as equally as possible."""
    for task, part in zip(tasks, np.array_split(samples, len(tasks)), strict=True):
        rows[task].append(part)


def _check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(f"{name} must be a share from 0 to below 1, as 0.1 is, got {share!r}.")
