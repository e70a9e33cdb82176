"""Mini-batches on the device, augmented there.

All chance of an epoch (order, crops, flips, turns) is drawn on the CPU from one seed before the
epoch starts, and sent to the device: results do not depend on where or how a step is run.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmrc.data.streamed import Streamed
from lmrc.training.augment import Augmentation
from lmrc.training.pieces import Pieces
from lmrc.training.ranks import ALONE, Ranks
from lmrc.training.rotations import Rotations, check_square
from lmrc.training.staging import Source, Staging, fits
from lmrc.training.streaming import Streaming


@dataclass(frozen=True)
class MiniBatch:
    """What a loss sees: raw inputs, class indices, which classes were known, turns; and counts."""

    x: Tensor  # (n, features) or (n, channels, height, width)
    y: Tensor  # (n,) index into classes_
    known: Tensor | None  # (n,) bool: the class was there before; None if no class at hand was
    turn: Tensor | None = None  # (n,) quarter turns of each image; None: all are as they came
    counts: Tensor | None = None  # (classes,) samples of each in all mini-batches together
    share: Tensor | None = None  # (n,) of each input: a piece of the n-th, the (n − 1)-th, …

    def rows(self) -> dict[str, Tensor]:
        """Return by name what there is one row of for each input."""
        each = {"x": self.x, "y": self.y, "known": self.known, "turn": self.turn}
        each["share"] = self.share
        return {name: part for name, part in each.items() if part is not None}


def split_sizes(n_samples: int, batch_size: int) -> list[int]:
    """Sizes of the mini-batches of an epoch: none is dropped, one of size 1 joins its neighbour.

    >>> split_sizes(10, 4), split_sizes(9, 4), split_sizes(1, 4)
    ([4, 4, 2], [4, 5], [1])
    """
    sizes = [batch_size] * (n_samples // batch_size)
    rest = n_samples % batch_size
    if rest == 1 and sizes:
        sizes[-1] += 1
    elif rest:
        sizes.append(rest)
    return sizes


class Batches:
    """The samples of one class batch (and the pool), served as mini-batches.

    Inputs lie on the device, in the host's memory where they would not leave room on it, or on
    disk where they would not fit there either.

    Parameters
    ----------
    x, y : Tensor
        Inputs and class indices, one row per sample.
    n_known : int
        Number of classes before this class batch: indices below it are known.
    batch_size : int
    augment : str
        One of `augment.AUGMENTATIONS`.
    device : torch.device
    rotations : {"none", "one", "all"}
        Whether images come turned. With "all" a mini-batch holds four inputs for each sample.
    resident : bool, optional
        Whether the inputs lie on the device; by default if they fit well.
    ranks : Ranks, optional
        Which share of each mini-batch this process takes.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        n_known: int,
        batch_size: int,
        augment: str,
        device: torch.device,
        rotations: str = "none",
        resident: bool | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.device, self.ranks = device, ranks
        self.sizes = split_sizes(len(x), batch_size)
        self.y, self.counts = y.to(device), torch.bincount(y, minlength=n_known).to(device)
        known = y < n_known
        self.known = known.to(device) if known.any() else None
        self.augmentation = Augmentation(augment, len(x), tuple(x.shape[2:]), device)
        if rotations != "none":
            check_square(tuple(x.shape[1:]))
        self.rotations = Rotations(rotations, len(x), device)
        self.pieces = Pieces(self.sizes, ranks, device) if augment == "mixed" else None
        self.order = torch.empty(len(x), dtype=torch.long, device=device)
        if isinstance(x, Streamed):
            resident = False
        elif resident is None:
            resident = fits(x, device)
            if not resident:
                warnings.warn(
                    f"the inputs ({x.nbytes / 2**30:.1f} GiB) stay in the host's memory, as they "
                    f"would fill that of {device}: slower, with the same result",
                    stacklevel=2,
                )
        self.x = x.to(device) if resident else x
        self.staging: Source | None = None
        if not resident:
            source: Any = Streaming if isinstance(x, Streamed) else Staging
            self.staging = source(x, max(self.sizes), device)

    @property
    def n_inputs(self) -> int:
        """Inputs of an epoch."""
        return self.rotations.copies * len(self.y)

    def n_values(self, size: int) -> int:
        """Return how many values the inputs of a mini-batch of a size have."""
        return self.rotations.copies * size * math.prod(self.x.shape[1:])

    def draw(self, generator: torch.Generator) -> None:
        """Draw an epoch: the order of the samples, their crops, flips, turns and pieces."""
        order = torch.randperm(len(self.y), generator=generator)
        self.order.copy_(order)  # in place, where a captured step looks for it
        self.augmentation.draw(generator)
        self.rotations.draw(generator)
        if self.pieces:
            self.pieces.draw(generator)
        if self.staging:
            parts = torch.split(order, self.sizes)
            self.staging.begin([rows[self.ranks.share(len(rows))] for rows in parts])

    def shares(self) -> Iterator[tuple[int, Tensor]]:
        """Go through the epoch drawn: samples of each mini-batch, and positions of a rank's share.

        When they come, `at` has them.
        """
        start = 0
        for size in self.sizes:
            share = self.ranks.share(size)
            self.stage()
            yield size, torch.arange(start + share.start, start + share.stop, device=self.device)
            start += size

    def stage(self) -> None:
        """Bring the inputs of the next mini-batch to the device, where they are not there yet."""
        if self.staging:
            self.staging.advance()

    def at(self, positions: Tensor) -> MiniBatch:
        """Return the samples at these positions of the epoch, augmented, turned and mixed."""
        rows, copies = self.order[positions], self.rotations.copies
        x = self.staging.near[: len(rows)] if self.staging else self.x[rows]
        x, turn = self.rotations(self.augmentation(x, positions), positions)
        x, share = self.pieces(x, positions, copies) if self.pieces else (x, None)
        rows = rows.repeat(copies)
        known = None if self.known is None else self.known[rows]
        return MiniBatch(x, self.y[rows], known, turn, self.counts, share)
