"""CutMix (Yun et al., ICCV 2019): a rectangle of each image is replaced by its partner's."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lmrc.training.augment import is_covered
from lmrc.training.ranks import Ranks

PROBABILITY = 0.5  # of CutMix in a mini-batch; in the others images stay whole


class CutMix:
    """The rectangles of an epoch, sampled in advance: one position and size per mini-batch.

    The partner of a mini-batch's i-th input is its i-th from the end, so the partners' targets are
    those of the mini-batch, flipped. Each rank takes partners from its own shard.
    """

    def __init__(self, sizes: Sequence[int], ranks: Ranks, device: torch.device) -> None:
        self.sizes = torch.tensor(sizes)
        start = self.sizes.cumsum(0) - self.sizes
        ends = torch.tensor([shard.start + shard.stop - 1 for shard in map(ranks.shard, sizes)])
        both = (2 * start + ends).repeat_interleave(self.sizes)  # position + its partner's
        self.steps = (both - 2 * torch.arange(len(both))).to(device)  # from one to the other
        self.box = torch.empty(len(both), 3, device=device)

    def sample_epoch(self, generator: torch.Generator) -> None:
        """Sample an epoch's rectangles, in place: a captured step reads them there."""
        n = len(self.sizes)
        position, area, coin = (torch.rand(n, k, generator=generator) for k in (2, 1, 1))
        box = torch.cat([position, area.sqrt() * (coin < PROBABILITY)], dim=1)
        self.box.copy_(box.repeat_interleave(self.sizes, dim=0))

    def __call__(self, x: Tensor, positions: Tensor, copies: int) -> tuple[Tensor, Tensor]:
        """Mix the inputs at these positions of the epoch, of whole mini-batches.

        Of `copies` inputs per sample, (copies · n, channels, height, width), all first copies come
        first. Returns the mixed inputs, and the share λ of each that is its own.
        """
        n = len(positions)
        own = torch.arange(n, device=x.device)
        # Past the epoch's last sample, in rows that are not used, there may be no partner.
        partner = (own + self.steps[positions]).clamp(0, n - 1)
        copy = torch.arange(copies, device=x.device).flip(0)
        partners = (n * copy[:, None] + partner).flatten()
        down, across, side = self.box[positions].repeat(copies, 1).T[..., None]
        rows, columns = is_covered(down, x.shape[2], side), is_covered(across, x.shape[3], side)
        box = (rows[:, :, None] & columns[:, None, :])[:, None]
        return torch.where(box, x[partners], x), 1 - box.float().mean(dim=(1, 2, 3))
