"""Mini-batches on the device, augmented there.

Everything random in an epoch (order, crops, flips, rotations) is sampled on the CPU from one seed
before the epoch starts, and sent to the device: results do not depend on where a step runs.
"""

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
from lmrc.training.ranks import SINGLE_PROCESS, Ranks
from lmrc.training.rotations import N_ROTATIONS, Rotations, check_square


@dataclass(frozen=True)
class MiniBatch:
    """The data of one training step.

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
        Number of 90° rotations of each image; None where images are not rotated.
    lam : Tensor of shape (n,) or None
        With CutMix, the share λ of each image that is its own. The rest is its partner's: for the
        i-th image, the i-th from the end of the mini-batch.
    features, old_features : Tensor or None
        Features of x by the encoder and by the old one; for methods with ``needs_features``.
    old_outputs : Any
        Outputs of the old network for x, if computed in advance.
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
        """Targets per class: one for each rotation of its images."""
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
        """Return the tensors that have one row per input, by name."""
        names = ("x", "y", "rotation", "lam", "old_features", "old_outputs")
        return {n: part for n in names if isinstance(part := getattr(self, n), Tensor)}


def split_sizes(n_samples: int, batch_size: int) -> list[int]:
    """Return the sizes of an epoch's mini-batches: none is dropped, a last one of 1 is merged.

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
    """The samples of one task (and the exemplars), as mini-batches.

    Inputs lie on the device, in host memory if they would fill the device, or on disk if they do
    not fit there either.

    Parameters
    ----------
    x : Inputs
    y : Tensor of shape (n,)
        Class indices.
    n_known : int
        Number of classes before this task: lower indices are known classes.
    batch_size : int
    augment : str
        As the classifiers' parameter, but for "auto".
    device : torch.device
    rotations : {"none", "one", "all"}
        Whether images are rotated. With "all" a mini-batch holds four inputs per sample.
    resident : bool, optional
        Whether the inputs lie on the device; by default if they fit.
    ranks : Ranks, optional
        Which shard of each mini-batch this process computes.
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
        ranks: Ranks = SINGLE_PROCESS,
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
        """Inputs in an epoch."""
        return self.rotations.copies * len(self.y)

    def n_values(self, size: int) -> int:
        """Return how many values the inputs of a mini-batch have."""
        return self.rotations.copies * size * math.prod(self.x.shape[1:])

    def sample_epoch(self, generator: torch.Generator) -> None:
        """Sample an epoch: order of the samples, augmentation, rotations, CutMix."""
        order = torch.randperm(len(self.y), generator=generator)
        self.order.copy_(order)  # in place: a captured step reads it there
        self.augmentation.sample_epoch(generator)
        self.rotations.sample_epoch(generator)
        if self.cutmix:
            self.cutmix.sample_epoch(generator)
        if self.buffer:
            parts = torch.split(order, self.sizes)
            self.buffer.start_epoch([rows[self.ranks.shard(len(rows))] for rows in parts])

    def shards(self) -> Iterator[tuple[int, Tensor]]:
        """Iterate over the sampled epoch: size of each mini-batch, and positions of a rank's shard.

        Their inputs are loaded, for `at`.
        """
        start = 0
        for size in self.sizes:
            shard = self.ranks.shard(size)
            self.load_next()
            yield size, torch.arange(start + shard.start, start + shard.stop, device=self.device)
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
        """Return a mini-batch of these rows."""
        return MiniBatch(**rows, counts=self.counts, n_known=self.n_known, reviews=self.reviews)
