"""Samples and their classes: those of a task, and the exemplar buffer (Sec. 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lmrc.data.inputs import Inputs, join


@dataclass(frozen=True)
class Memory:
    """Raw samples and their class indices. Immutable: an update returns a new one."""

    x: Inputs
    y: Tensor

    @classmethod
    def empty(cls, like: Inputs) -> Memory:
        """Return a buffer without samples, for inputs of the given kind."""
        return cls(like[:0].clone(), torch.zeros(0, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.y)

    @cached_property
    def classes(self) -> frozenset[int]:
        """Class indices that have samples."""
        return frozenset(self.y.tolist())

    def joined(self, x: Inputs, y: Tensor) -> Memory:
        """Return these samples with those of the buffer after them."""
        return Memory(join(x, self.x), torch.cat([y, self.y]))

    def without(self, index: int) -> Memory:
        """Return a buffer without a class; the classes after it move up by one."""
        kept = self.y != index
        y = self.y[kept]
        return Memory(self.x[kept], y - (y > index).long())

    def of_class(self, index: int) -> Memory:
        """Return the samples of a class; those on disk stay there."""
        return self.at(torch.nonzero(self.y == index).flatten())

    def at(self, rows: Tensor) -> Memory:
        """Return the samples at these positions; those on disk stay there."""
        return Memory(self.x.index_select(0, rows), self.y[rows])

    def split(self, n: int) -> tuple[Memory, Memory]:
        """Return the first n samples and the others; those on disk stay there."""
        parts = self.x.narrow(0, 0, n), self.x.narrow(0, n, len(self) - n)
        return Memory(parts[0], self.y[:n]), Memory(parts[1], self.y[n:])

    def at_most(self, per_class: int) -> Memory:
        """Return a buffer with the first ``per_class`` samples of each class."""
        kept = _first_of_each(self.y, per_class)
        return Memory(self.x[kept], self.y[kept])

    def updated(self, x: Inputs, y: Tensor, per_class: int, ranked: Tensor) -> Memory:
        """Return a buffer that also holds the classes of y, at most ``per_class`` samples of each.

        Samples in the buffer stay (up to ``per_class``): a class is filled up, never sampled anew,
        with those of its samples whose positions come first in ``ranked``.
        """
        held = self.at_most(per_class)
        room = per_class - torch.bincount(held.y, minlength=int(y.max()) + 1 if len(y) else 0)
        chosen = ranked[_first_of_each(y[ranked], room)]
        return Memory(join(held.x, x[chosen]), torch.cat([held.y, y[chosen]]))


def _first_of_each(y: Tensor, room: Tensor | int) -> Tensor:
    """Return positions of the first samples of each class, ``room`` (one for all or each) many."""
    by_class = torch.argsort(y, stable=True)
    sorted_y = y[by_class]
    # Rank of a sample within its class: its position less the position where its class begins.
    rank = torch.arange(len(y)) - torch.searchsorted(sorted_y, sorted_y)
    limit = room[sorted_y] if isinstance(room, Tensor) else room
    return by_class[rank < limit].sort().values
