"""What a full mapping reports: an error with advice, or a warning."""

import inspect
import warnings
from typing import Any

from lmrc.labels import theory


class CapacityWarning(UserWarning):
    """A mapping is full, or nearly: its threshold was raised, or will have to be."""


class CapacityError(ValueError):
    """A mapping is full: Algorithm 1 gave up before it found all requested vectors.

    Attributes
    ----------
    found, requested : int
        New vectors found, and requested.
    size : int
        Vectors in the mapping, before and after: nothing was added.
    dim, threshold, max_tries
        The mapping's parameters.
    holds : int
        About how many vectors such a mapping holds.
    advised_threshold : float or None
        A threshold at which all ``size + requested`` fit; None if there is none below 1.
    advised_dim : int or None
        A dimension in which they fit at the old threshold; None for a mapping that already has
        vectors, as their dimension is fixed.
    """

    def __init__(
        self, found: int, requested: int, size: int, dim: int, threshold: float, max_tries: int
    ) -> None:
        self.found, self.requested, self.size = found, requested, size
        self.dim, self.threshold, self.max_tries = dim, threshold, max_tries
        self.holds = theory.likely(dim, threshold, max_tries)
        self.advised_threshold = theory.threshold_for(
            size + requested, dim, max_tries, above=threshold
        )
        self.advised_dim = (
            theory.dim_for(requested, threshold, max_tries, above=dim) if size == 0 else None
        )
        super().__init__(self._message())

    def _message(self) -> str:
        added = f" to add to the {self.size} it has" if self.size else ""
        remedies = []
        if self.advised_threshold is not None:
            remedies.append(f"raise the threshold to {self.advised_threshold:g}")
        if self.advised_dim is not None:
            longer = f"make the vectors longer, dim={self.advised_dim} (label_dim in a classifier)"
            remedies.append(longer)
        if not remedies:
            remedies.append("request fewer vectors: no threshold below 1 would hold so many")
        return (
            f"found only {self.found} of the {self.requested} label vectors requested{added}, so "
            f"nothing was added: a mapping with dim={self.dim}, threshold={self.threshold:g} and "
            f"max_tries={self.max_tries} holds about {self.holds}. "
            f"To almost surely hold {self.size + self.requested}, {' or '.join(remedies)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        parameters = (self.dim, self.threshold, self.max_tries)
        return type(self), (self.found, self.requested, self.size, *parameters)


def warn_of_capacity(message: str) -> None:
    """Warn at the user's own line, however deep in this package the mapping was called."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "lmrc":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CapacityWarning, stacklevel=level)
