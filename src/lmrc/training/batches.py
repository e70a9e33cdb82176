"""Mini-batches on the device, augmented there.

All chance of an epoch (order, crops, flips, rotations) is drawn on the CPU from one seed before the
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

from lmrc.data.inputs import Inputs
from lmrc.training.augment import Augmentation
from lmrc.training.buffers import DeviceBuffer, LoaderBuffer, PinnedDoubleBuffer, fits
from lmrc.training.cutmix import CutMix
from lmrc.training.ranks import ALONE, Ranks
from lmrc.training.rotations import N_ROTATIONS, Rotations, check_square


@dataclass(frozen=True)
class MiniBatch:
    """What a loss sees of the data.

    Attributes
    ----------
    x : Tensor of shape (n, features) or (n, channels, height, width)
        Raw inputs, augmented.
    y : Tensor of shape (n,)
        Index of the class in ``classes_``.
    counts : Tensor of shape (classes,)
        Samples of each class in an epoch: zero for earlier classes without exemplars.
    n_known : int
        Classes of earlier tasks: indices below it.
    reviews : bool
        Whether an epoch holds samples of them: exemplars, or known classes that came again.
    rotation : Tensor of shape (n,) or None
        Quarter rotations of each image; None where images are not rotated.
    lam : Tensor of shape (n,) or None
        With CutMix, the share λ of each image that is its own; the rest is its partner's, the i-th
        from the end of the mini-batch for the i-th.
    features, old_features : Tensor or None
        What the encoder, and the old network's, made of x; for methods with ``needs_features``.
    old_outputs : Any
        What the old network made of x, where it was computed ahead.
    """

    x: Tensor
    y: Tensor
    counts: Tensor
    n_known: int = 0
    reviews: bool = False
    rotation: Tensor | None = None
    lam: Tensor | None = None
    features: Tensor | None = None
    old_features: Tensor | None = None
    old_outputs: Any = None

    @property
    def n_rotations(self) -> int:
        """Targets of each class: one for each rotation of its images."""
        return 1 if self.rotation is None else N_ROTATIONS

    @property
    def targets(self) -> Tensor:
        """The targets, (n, classes · rotations): one-hot, or with CutMix λ of one and 1 − λ."""
        n, r = len(self.y), self.n_rotations
        column = self.y if self.rotation is None else self.y * r + self.rotation
        one_hot = torch.zeros(n, len(self.counts) * r, device=self.y.device)
        one_hot = one_hot.scatter(1, column[:, None], 1.0)
        return one_hot if self.lam is None else one_hot.flip(0).lerp(one_hot, self.lam[:, None])

    def rows(self) -> dict[str, Tensor]:
        """Return by name what there is one row of for each input."""
        names = ("x", "y", "rotation", "lam", "old_features", "old_outputs")
        return {n: part for n in names if isinstance(part := getattr(self, n), Tensor)}


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
    """The samples of one task (and the pool), served as mini-batches.

    Inputs lie on the device, in the host's memory where they would not leave room on it, or on
    disk where they would not fit there either.

    Parameters
    ----------
    x : Inputs
    y : Tensor of shape (n,)
        Class indices.
    n_known : int
        Number of classes before this task: indices below it are known.
    batch_size : int
    augment : str
        One of `augment.AUGMENTATIONS`.
    device : torch.device
    rotations : {"none", "one", "all"}
        Whether images come rotated. With "all" a mini-batch holds four inputs for each sample.
    resident : bool, optional
        Whether the inputs lie on the device; by default if they fit well.
    ranks : Ranks, optional
        Which share of each mini-batch this process takes.
    """

    def __init__(
        self,
        x: Inputs,
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
        self.n_known, self.reviews = n_known, bool((y < n_known).any())
        self.augmentation = Augmentation(augment, len(x), tuple(x.shape[2:]), device)
        if rotations != "none":
            check_square(tuple(x.shape[1:]))
        self.rotations = Rotations(rotations, len(x), device)
        self.cutmix = CutMix(self.sizes, ranks, device) if augment == "cutmix" else None
        self.order = torch.empty(len(x), dtype=torch.long, device=device)
        self.buffer: DeviceBuffer | None = None
        if not isinstance(x, Tensor):
            self.buffer = LoaderBuffer(x, max(self.sizes), device)
        elif resident or (resident is None and fits(x, device)):
            x = x.to(device)
        else:
            if resident is None:
                warnings.warn(
                    f"the inputs ({x.nbytes / 2**30:.1f} GiB) stay in host memory, as they would "
                    f"fill that of {device}: slower, with the same result",
                    stacklevel=2,
                )
            self.buffer = PinnedDoubleBuffer(x, max(self.sizes), device)
        self.x = x

    @property
    def n_inputs(self) -> int:
        """Inputs of an epoch."""
        return self.rotations.copies * len(self.y)

    def n_values(self, size: int) -> int:
        """Return how many values the inputs of a mini-batch of a size have."""
        return self.rotations.copies * size * math.prod(self.x.shape[1:])

    def draw(self, generator: torch.Generator) -> None:
        """Sample an epoch: order of the samples, augmentation, rotations, CutMix."""
        order = torch.randperm(len(self.y), generator=generator)
        self.order.copy_(order)  # in place, where a captured step looks for it
        self.augmentation.draw(generator)
        self.rotations.draw(generator)
        if self.cutmix:
            self.cutmix.draw(generator)
        if self.buffer:
            parts = torch.split(order, self.sizes)
            self.buffer.start_epoch([rows[self.ranks.share(len(rows))] for rows in parts])

    def shares(self) -> Iterator[tuple[int, Tensor]]:
        """Go through the epoch drawn: samples of each mini-batch, and positions of a rank's share.

        When they come, `at` has them.
        """
        start = 0
        for size in self.sizes:
            share = self.ranks.share(size)
            self.load_next()
            yield size, torch.arange(start + share.start, start + share.stop, device=self.device)
            start += size

    def load_next(self) -> None:
        """Load the inputs of the next mini-batch, unless all inputs are on the device."""
        if self.buffer:
            self.buffer.load_next()

    def at(self, positions: Tensor) -> MiniBatch:
        """Return the samples at these positions of the epoch, augmented."""
        rows, copies = self.order[positions], self.rotations.copies
        x = self.buffer.data[: len(rows)] if self.buffer else self.x[rows]
        x, rotation = self.rotations(self.augmentation(x, positions), positions)
        x, lam = self.cutmix(x, positions, copies) if self.cutmix else (x, None)
        return self.batch(x=x, y=self.y[rows.repeat(copies)], rotation=rotation, lam=lam)

    def batch(self, **rows: Any) -> MiniBatch:
        """Return a mini-batch of these rows, with what is the same for all of them."""
        return MiniBatch(**rows, counts=self.counts, n_known=self.n_known, reviews=self.reviews)
