"""One training step, the same everywhere; `graphed` has the fast form of it for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lmrc.training.batches import Batches, MiniBatch

#: The terms of a loss by name: per sample (n,), averaged over the mini-batch, or one scalar.
Losses = Mapping[str, Tensor]


def means(terms: Losses, mean: Callable[[Tensor], Tensor] = torch.mean) -> Tensor:
    """Return each term of a loss, averaged over the mini-batch: what is minimised is their sum."""
    return torch.stack([mean(term) for term in terms.values()])


def check(terms: Losses, n: int) -> None:
    """Refuse what would be averaged as it was not meant, or not be understood."""
    if not isinstance(terms, Mapping):
        raise TypeError(f"losses returned a {type(terms).__name__}: return a dict of its terms")
    for name, term in terms.items():
        if term.ndim and term.shape != (n,):
            raise ValueError(
                f"losses: the term {name!r} has the shape {tuple(term.shape)}: return one value "
                f"for each of the {n} inputs, or a scalar"
            )


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
        self.rate: float | None = None
        self.drawn: int | None = None  # the seed of an epoch that is drawn and not yet learnt
        self.size = 0  # samples of the mini-batch at hand, over all ranks

    def __call__(self, batch: MiniBatch) -> None:
        """Take one step."""
        with torch.autocast(self.batches.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.terms(batch)
        self.optimiser.zero_grad(set_to_none=True)
        self.backward(loss)
        self.update()
        if not len(self.sums):
            self.sums = torch.zeros_like(loss.detach())
        # In place: a captured step adds there.
        self.sums.add_(loss.detach(), alpha=self.count(batch))

    def terms(self, batch: MiniBatch) -> Tensor:
        """Return each term of the loss, averaged over the mini-batch."""
        terms = self.losses(batch)
        check(terms, len(batch.y))
        self.names = tuple(terms)
        return means(terms, self.mean)

    def backward(self, loss: Tensor) -> None:
        """Find the gradients of the sum of a loss's terms."""
        loss.backward(torch.ones_like(loss))  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Move the weights along their gradients."""
        self.optimiser.step()

    def mean(self, term: Tensor) -> Tensor:
        """Return the mean of a term over the mini-batch."""
        return term.mean()

    def count(self, batch: MiniBatch) -> int:
        """Return the number of inputs in the mini-batch."""
        return len(batch.y)

    def draw(self, seed: int) -> None:
        """Draw the epoch that comes next, unless that has been done ahead."""
        if self.drawn != seed:
            self.batches.draw(torch.Generator().manual_seed(seed))
            self.drawn = seed

    def epoch(self, rates: Sequence[float], coming: int | None = None) -> dict[str, float]:
        """Take all steps of an epoch.

        Parameters
        ----------
        rates : sequence of float
            Learning rate of each step.
        coming : int, optional
            Seed of the epoch after this one, if there is one.

        Returns
        -------
        dict
            The mean of each term of the loss.
        """
        self.drawn = None
        self.sums.zero_()
        self.steps(rates)
        if coming is not None:
            self.look_ahead(coming)
        n = self.batches.n_inputs
        return {name: term / n for name, term in zip(self.names, self.sums.tolist(), strict=True)}

    def steps(self, rates: Sequence[float]) -> None:
        """Take all steps of an epoch."""
        for rate, (size, positions) in zip(rates, self.batches.shares(), strict=True):
            self.set_rate(rate)
            self.size = size
            self(self.batches.at(positions))

    def look_ahead(self, seed: int) -> None:
        """Begin with the epoch after this one, while the device still has steps to take."""

    def end(self) -> None:
        """Let go of what steps alone need: the last one has been taken."""

    def set_rate(self, rate: float) -> None:
        """Give the optimiser the learning rate of the next step."""
        if rate == self.rate:
            return
        self.rate = rate
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)  # in place: a captured step reads it there
            else:
                group["lr"] = rate

    def positions(self, start: int, size: int) -> Tensor:
        """Return positions of the epoch, on the device."""
        return torch.arange(start, start + size, device=self.batches.device)
