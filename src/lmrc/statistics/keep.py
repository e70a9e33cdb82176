"""Statistics from one task to the next."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from lmrc.data.inputs import Inputs
from lmrc.nets.network import Encoder
from lmrc.statistics.classes import ClassStatistics, Summary
from lmrc.statistics.drift import Drift
from lmrc.statistics.gather import gather, passes
from lmrc.training.memory import Memory

MOST_REAL = 128  # features of a class that are handed on for tuning: more would only take memory


class Kept(NamedTuple):
    """What there is after a task."""

    statistics: ClassStatistics  # in the new features
    non_negative: bool  # whether no feature of these images was below 0, as behind a ReLU
    real: dict[int, Tensor]  # by class, some features of its images, (turns, n, width): with a pool


def update_statistics(
    before: ClassStatistics,
    old: Encoder | None,
    new: Encoder,
    batch: Memory,
    pool: Memory,
    *,
    layers: int,
    augment: str,
    rotated: bool,
    generator: torch.Generator,
    tuned: bool,
) -> Kept:
    """Carry statistics to where the features are now, and add those of a task.

    Parameters
    ----------
    before : ClassStatistics
        In the old features.
    old, new : Encoder
        The network before the task, None at the first, and after it.
    batch : Memory
        The task.
    pool : Memory
        Pooled images of earlier tasks: they tell how features moved, too.
    layers, augment, rotated, generator
        As for `gather`.
    tuned : bool
        Whether real features are wanted for tuning: of each class at hand as many as the pool has
        of a class.
    """
    encoders = [new] if old is None else [new, old]
    drift, lowest = Drift(before.means.shape[-1]), 0.0
    found: dict[int, Summary] = {}
    real: dict[int, Tensor] = {}
    n_real = 0
    if tuned and len(pool):
        n_real = min(MOST_REAL, passes(augment) * int(torch.bincount(pool.y).max()))

    def look_at(row: int, x: Inputs) -> Summary:
        nonlocal lowest
        parts = []
        for now, *earlier in gather(
            encoders, x, layers=layers, augment=augment, rotated=rotated, generator=generator
        ):
            for then in earlier:
                drift.add(then.flatten(0, 1), now.flatten(0, 1))
            lowest = min(lowest, float(now.min()))
            parts.append(Summary.of(now, now.shape[1]))
            if n_real:  # where a known class comes again, its pooled images make up the number
                so_far = real.get(row, now[:, :0].float())
                more = now[:, : n_real - so_far.shape[1]].float()
                real[row] = torch.cat([so_far, more], dim=1)
        # An image that was looked at twice is one image, still.
        return reduce(Summary.joined, parts)._replace(n_images=float(len(x)))

    for row in torch.unique(batch.y).tolist():  # in order
        found[row] = look_at(row, batch.of_class(row).x)
    for row in torch.unique(pool.y).tolist():
        look_at(row, pool.of_class(row).x)
    if old is not None:
        before = before.carried(drift.fit())
    for row, summary in found.items():
        before = before.learnt(row, summary)
    return Kept(before, lowest >= 0, real)
