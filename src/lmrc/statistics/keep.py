"""Statistics from one class batch to the next."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from lmrc.nets.network import Trunk
from lmrc.statistics.classes import ClassStatistics, Summary
from lmrc.statistics.drift import Drift
from lmrc.statistics.gather import gather
from lmrc.training.memory import Memory


def brought_up_to_date(
    before: ClassStatistics,
    old: Trunk | None,
    new: Trunk,
    batch: Memory,
    pool: Memory,
    *,
    layers: int,
    augment: str,
    rotated: bool,
    generator: torch.Generator,
) -> tuple[ClassStatistics, bool]:
    """Carry statistics to where the features are now, and add those of a class batch.

    Parameters
    ----------
    before : ClassStatistics
        In the old features.
    old, new : Trunk
        The network before the class batch, None at the first, and after it.
    batch : Memory
        The class batch.
    pool : Memory
        Pooled images of earlier class batches: they tell how features moved, too.
    layers, augment, rotated, generator
        As for `gather`.

    Returns
    -------
    statistics : ClassStatistics
        In the new features.
    non_negative : bool
        Whether no feature of these images was below 0, as behind a ReLU.
    """
    trunks = [new] if old is None else [new, old]
    drift, lowest = Drift(before.means.shape[-1]), 0.0
    found: dict[int, Summary] = {}

    def look_at(x: Tensor) -> Summary:
        nonlocal lowest
        parts = []
        for now, *earlier in gather(
            trunks, x, layers=layers, augment=augment, rotated=rotated, generator=generator
        ):
            for then in earlier:
                drift.add(then.flatten(0, 1), now.flatten(0, 1))
            lowest = min(lowest, float(now.min()))
            parts.append(Summary.of(now, now.shape[1]))
        # An image that was looked at twice is one image, still.
        return reduce(Summary.joined, parts)._replace(n_images=float(len(x)))

    for row in torch.unique(batch.y).tolist():  # in order
        found[row] = look_at(batch.of_class(row).x)
    if old is not None:
        if len(pool):
            look_at(pool.x)
        before = before.carried(drift.fit())
    for row, summary in found.items():
        before = before.learnt(row, summary)
    return before, lowest >= 0
