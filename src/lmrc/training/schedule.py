"""Learning-rate schedules over the epochs of a task."""

from __future__ import annotations

import math
from collections.abc import Sequence

WARM_UP = 1  # epochs of warm-up in the cosine schedule,
MAX_WARM_UP = 0.2  # but at most this share of all


def halving(at: float, epochs: int, milestones: Sequence[float]) -> float:
    """Return the factor of the rate after ``at`` epochs: halved at each milestone.

    Milestones are epochs (ints) or fractions of them (floats).

    >>> [halving(at, 70, (50 / 70, 60)) for at in (0, 49.5, 50, 60)]
    [1.0, 1.0, 0.5, 0.25]
    """
    passed = (m if isinstance(m, int) else round(m * epochs) for m in milestones)
    factor: float = 0.5 ** sum(at >= milestone for milestone in passed)
    return factor


def cosine(at: float, epochs: int) -> float:
    """Return the factor of the rate after ``at`` epochs: linear warm-up, then a cosine to 0.

    >>> [round(cosine(at, 11), 3) for at in (0, 0.5, 1, 6, 11)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    warm_up = min(WARM_UP, MAX_WARM_UP * epochs)
    if at < warm_up:
        return at / warm_up
    return 0.5 + 0.5 * math.cos(math.pi * (at - warm_up) / (epochs - warm_up))
