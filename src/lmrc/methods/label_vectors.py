"""Label vectors of new classes (Algorithm 1): one for each, or one for each of their turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lmrc.labels import theory
from lmrc.labels.errors import warn_of_capacity
from lmrc.labels.mapping import LabelMapping

NEARLY_FULL = (4, 5)  # share of the likely capacity at which the user is warned


@dataclass(frozen=True)
class LabelVectors:
    """Draws label vectors; parameters are those of `LMRCClassifier`.

    Both ways return the vectors and the threshold that is in force from now on: higher than the
    one asked for where a full mapping was relaxed.
    """

    dim: int
    threshold: float
    max_tries: int
    on_full: Literal["relax", "raise"]
    seed: int

    def beside(self, known: Tensor | None, n_new: int, in_force: float) -> tuple[Tensor, float]:
        """Draw one vector for each new class, far from those of all classes: (n_new, dim)."""
        mapping = LabelMapping(
            self.dim,
            max(self.threshold, in_force),
            self.max_tries,
            self.seed,
            vectors=None if known is None else known.cpu().numpy(),
        )
        vectors = mapping.extend(n_new, on_full=self.on_full)
        self._warn_if_nearly_full(mapping, n_new)
        return torch.from_numpy(vectors), mapping.threshold

    def for_turns(self, n_new: int, turns: int, in_force: float) -> tuple[Tensor, float]:
        """Draw a vector for each new class and turn, far apart in the head: (n_new, turns, dim).

        Four for each of all classes would not fit where there is room for one of each. And a head
        is only ever asked for its own, so those of other heads may be near.
        """
        mapping = LabelMapping(self.dim, self.threshold, self.max_tries, self.seed)
        vectors = mapping.extend(turns * n_new, on_full=self.on_full)
        shaped = torch.from_numpy(vectors).view(n_new, turns, self.dim)
        return shaped, max(mapping.threshold, in_force)

    def _warn_if_nearly_full(self, mapping: LabelMapping, n_new: int) -> None:
        """Warn at the task that passes the mark, and not once the mapping was relaxed."""
        likely = theory.likely(self.dim, mapping.threshold, self.max_tries)
        share, of = NEARLY_FULL
        mark = -(-share * likely // of)  # in whole numbers: there may be more than a float holds
        n_vectors = len(mapping)
        if mapping.threshold == self.threshold and n_vectors - n_new < mark <= n_vectors:
            relax = self.on_full == "relax"
            end = "the threshold will be raised bit by bit" if relax else "CapacityError is raised"
            warn_of_capacity(
                f"{n_vectors} label vectors of about {likely} that label_dim={self.dim} holds "
                f"under threshold={mapping.threshold:g} are in use. Once it is full, {end}; a new "
                "model with a larger label_dim has more room"
            )
