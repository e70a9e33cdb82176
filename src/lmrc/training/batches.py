"""Mini-batches on the device, augmented there.

All chance of an epoch (order, crops, flips) is drawn on the CPU from one seed before the epoch
starts, and sent to the device: results do not depend on where or how a step is run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

AUGMENTATIONS = ("none", "crop", "crop+flip")
PADDING = 4  # pixels of black around the image, from which the crop is taken


def pick_augmentation(input_shape: tuple[int, ...]) -> str:
    """Say what ``augment="auto"`` stands for: by the shape of the input alone.

    Nothing for vectors and for grey images under 28 pixels, where a shift by 4 is half a digit.
    """
    if len(input_shape) == 1:
        return "none"
    channels, *sides = input_shape
    if channels > 1:
        return "crop+flip"
    return "crop" if min(sides) >= 28 else "none"


@dataclass(frozen=True)
class MiniBatch:
    """What a loss sees: raw inputs, class indices, and which classes were known before."""

    x: Tensor  # (n, features) or (n, channels, height, width)
    y: Tensor  # (n,) index into classes_
    known: Tensor | None  # (n,) bool: the class was there before; None if no class at hand was


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

    Parameters
    ----------
    x, y : Tensor
        Inputs and class indices, one row per sample.
    n_known : int
        Number of classes before this class batch: indices below it are known.
    batch_size : int
    augment : {"none", "crop", "crop+flip"}
    device : torch.device
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
    ) -> None:
        self.x, self.y = x.to(device), y.to(device)
        known = y < n_known
        self.known = known.to(device) if known.any() else None
        self.augment = augment
        self.sizes = split_sizes(len(x), batch_size)
        self.device = device
        n = len(x)
        self.order = torch.empty(n, dtype=torch.long, device=device)
        self.corner = torch.empty(n, 2, dtype=torch.long, device=device)
        self.flip = torch.empty(n, dtype=torch.bool, device=device)

    def draw(self, generator: torch.Generator) -> None:
        """Draw an epoch: the order of the samples, their crops and flips."""
        n = len(self.y)
        # Always the same draws in the same order, used or not; in place, where a captured step
        # looks for them.
        self.order.copy_(torch.randperm(n, generator=generator))
        self.corner.copy_(torch.randint(0, 2 * PADDING + 1, (n, 2), generator=generator))
        self.flip.copy_(torch.rand(n, generator=generator) < 0.5)

    def at(self, positions: Tensor) -> MiniBatch:
        """Return the samples at these positions of the epoch, augmented."""
        rows = self.order[positions]
        x = self.x[rows]
        if self.augment != "none":
            flip = self.flip[positions] & (self.augment == "crop+flip")
            x = crop_and_flip(x, self.corner[positions], flip)
        return MiniBatch(x, self.y[rows], None if self.known is None else self.known[rows])


def crop_and_flip(x: Tensor, corner: Tensor, flip: Tensor) -> Tensor:
    """Crop each image from its padded self and mirror it where asked, in one gather.

    Parameters
    ----------
    x : Tensor of shape (n, channels, height, width)
    corner : Tensor of shape (n, 2)
        Top row and left column of the crop, 0 … 2·PADDING.
    flip : bool Tensor of shape (n,)
    """
    n, _, height, width = x.shape
    padded = F.pad(x, (PADDING,) * 4)
    rows = corner[:, :1] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(n, -1)
    columns = corner[:, 1:] + torch.where(flip[:, None], width - 1 - columns, columns)
    sample = torch.arange(n, device=x.device)[:, None, None]
    # Indexed axes come first: the result is (n, height, width, channels), channels-last in memory.
    return padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
