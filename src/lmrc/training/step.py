"""One training step, the same everywhere; `graphed` has the fast form of it for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lmrc.training.batches import Batches, MiniBatch

#: The terms of a loss by name: per sample (n,), averaged over the mini-batch, or one scalar.
Losses = Mapping[str, Tensor]


def means(terms: Losses) -> Tensor:
    """Return each term of a loss, averaged over the mini-batch: what is minimised is their sum."""
    return torch.stack([term.mean() for term in terms.values()])


class Step:
    """Improve the network on a mini-batch.

    Nothing in it waits for the device: the loss terms are summed up there.

    Parameters
    ----------
    losses : callable
        Maps a mini-batch to the terms of the loss.
    batches : Batches
    optimiser : torch.optim.Optimizer
    bf16 : bool
        Run the forward pass in bfloat16; weights and losses stay float32.
    """

    def __init__(
        self,
        losses: Callable[[MiniBatch], Losses],
        batches: Batches,
        optimiser: torch.optim.Optimizer,
        *,
        bf16: bool,
    ) -> None:
        self.losses, self.batches, self.optimiser, self.bf16 = losses, batches, optimiser, bf16
        self.names: tuple[str, ...] = ()
        self.sums = torch.zeros(0)

    def __call__(self, batch: MiniBatch) -> None:
        """Take one step."""
        with torch.autocast(self.batches.device.type, torch.bfloat16, enabled=self.bf16):
            terms = self.losses(batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss = means(terms)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        if not self.names:
            self.names, self.sums = tuple(terms), torch.zeros_like(loss.detach())
        self.sums.add_(loss.detach(), alpha=len(batch.y))  # in place: a captured step adds there

    def epoch(self) -> dict[str, float]:
        """Take all steps of an epoch; return the mean of each term of the loss."""
        self.sums.zero_()
        self.steps()
        n = len(self.batches.y)
        return {name: term / n for name, term in zip(self.names, self.sums.tolist(), strict=True)}

    def steps(self) -> None:
        """Take all steps of an epoch."""
        start = 0
        for size in self.batches.sizes:
            self.batches.stage()
            self(self.batches.at(self.positions(start, size)))
            start += size

    def positions(self, start: int, size: int) -> Tensor:
        """Return positions of the epoch, on the device."""
        return torch.arange(start, start + size, device=self.batches.device)
