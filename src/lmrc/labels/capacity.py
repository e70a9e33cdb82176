"""How many label vectors fit: in theory, and measured by running Algorithm 1."""

from typing import Any

from lmrc.labels.mapping import LabelMapping
from lmrc.labels.theory import LAWS, dim_for, expected, likely, threshold_for

__all__ = ["LAWS", "dim_for", "expected", "likely", "measured", "threshold_for"]


def measured(
    dim: int,
    threshold: float,
    max_tries: int = 10_000,
    limit: int | None = None,
    random_state: Any = None,
) -> int:
    """Count the label vectors that Algorithm 1 finds before it gives up.

    Parameters
    ----------
    dim, threshold, max_tries, random_state
        As for :class:`~lmrc.labels.mapping.LabelMapping`.
    limit : int, optional
        Stop at this many: set it where :func:`expected` is too large to wait for.

    Examples
    --------
    >>> 30 < measured(dim=50, threshold=0.15, random_state=0) < 50
    True
    >>> measured(dim=100, threshold=0.5, limit=200, random_state=0)
    200
    """
    mapping = LabelMapping(dim, threshold, max_tries, random_state)
    mapping._fill(limit)
    return len(mapping)
