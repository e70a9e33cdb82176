"""A warning before Label Mapping runs out of room."""

from __future__ import annotations

from lmrc.labels import theory
from lmrc.labels.errors import warn_of_capacity
from lmrc.labels.mapping import LabelMapping

NEARLY_FULL = (4, 5)  # share of the likely capacity at which the user is warned


def warn_if_nearly_full(mapping: LabelMapping, n_new: int, threshold: float, on_full: str) -> None:
    """Warn at the task that passes the mark, and not once the mapping was relaxed.

    Parameters
    ----------
    mapping : LabelMapping
        With the new label vectors.
    n_new : int
        Their number.
    threshold, on_full
        As the classifier has them.
    """
    likely = theory.likely(mapping.dim, mapping.threshold, mapping.max_tries)
    share, of = NEARLY_FULL
    mark = -(-share * likely // of)  # in whole numbers: there may be more than a float holds
    n_vectors = len(mapping)
    if mapping.threshold == threshold and n_vectors - n_new < mark <= n_vectors:
        relax = on_full == "relax"
        end = "the threshold will be raised bit by bit" if relax else "CapacityError is raised"
        warn_of_capacity(
            f"{n_vectors} label vectors of about {likely} that label_dim={mapping.dim} holds "
            f"under threshold={mapping.threshold:g} are in use. Once it is full, {end}; a new "
            "model with a larger label_dim has more room"
        )
