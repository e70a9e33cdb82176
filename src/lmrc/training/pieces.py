"""Images with a piece of another image in them (CutMix)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lmrc.training.augment import is_covered
from lmrc.training.ranks import Ranks

SHARE = 0.5  # of the mini-batches; in the others images stay whole


class Pieces:
    """The pieces of an epoch's images, drawn ahead: one place and size for each mini-batch.

    The piece comes from the mini-batch's input that is as far from the end as its own is from the
    beginning, so that its class is that of the mini-batch turned round. Of several ranks each takes
    pieces from its own share.

    Parameters
    ----------
    sizes : sequence of int
        Samples of each mini-batch.
    ranks : Ranks
    device : torch.device
    """

    def __init__(self, sizes: Sequence[int], ranks: Ranks, device: torch.device) -> None:
        self.sizes = torch.tensor(sizes)
        start = self.sizes.cumsum(0) - self.sizes
        ends = torch.tensor([share.start + share.stop - 1 for share in map(ranks.share, sizes)])
        both = (2 * start + ends).repeat_interleave(self.sizes)  # a position and its other, added
        self.steps = (both - 2 * torch.arange(len(both))).to(device)  # from the one to the other
        self.piece = torch.empty(len(both), 3, device=device)

    def draw(self, generator: torch.Generator) -> None:
        """Draw an epoch's pieces, in place: there a captured step looks for them."""
        n = len(self.sizes)
        place, area, chance = (torch.rand(n, k, generator=generator) for k in (2, 1, 1))
        piece = torch.cat([place, area.sqrt() * (chance < SHARE)], dim=1)
        self.piece.copy_(piece.repeat_interleave(self.sizes, dim=0))

    def __call__(self, x: Tensor, positions: Tensor, copies: int) -> tuple[Tensor, Tensor]:
        """Put pieces into the inputs at these positions of the epoch, of whole mini-batches.

        Parameters
        ----------
        x : Tensor of shape (copies · n, channels, height, width)
        positions : Tensor of shape (n,)
        copies : int
            Inputs of each sample: all first ones come first.

        Returns
        -------
        x, share : Tensor
            The inputs, and how much of each is the other's.
        """
        n = len(positions)
        near = torch.arange(n, device=x.device)
        # Behind the epoch's last sample, where no mini-batch is learnt, there may be no other.
        other = (near + self.steps[positions]).clamp(0, n - 1)
        turn = torch.arange(copies, device=x.device).flip(0)
        others = (n * turn[:, None] + other).flatten()
        down, across, side = self.piece[positions].repeat(copies, 1).T[..., None]
        rows, columns = is_covered(down, x.shape[2], side), is_covered(across, x.shape[3], side)
        piece = (rows[:, :, None] & columns[:, None, :])[:, None]
        return torch.where(piece, x[others], x), piece.float().mean(dim=(1, 2, 3))
