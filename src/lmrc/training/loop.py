"""The only optimisation loop: SGD over the epochs of one class batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lmrc.training.batches import Batches, MiniBatch

#: The terms of a loss by name: per sample (n,), averaged over the mini-batch, or one scalar.
Losses = Mapping[str, Tensor]
EpochRecord = dict[str, float]


class TrainingError(ArithmeticError):
    """Training went astray (the loss is no longer a number)."""


@dataclass(frozen=True)
class Optimisation:
    """How a class batch is trained; a fresh optimiser for each."""

    epochs: int
    learning_rate: float
    halve_at: Sequence[float]
    momentum: float
    weight_decay: float

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch: halved at each milestone.

        Milestones are epochs (ints) or fractions of them (floats).

        >>> plan = Optimisation(70, 0.08, (50 / 70, 60), 0.9, 5e-4)
        >>> [plan.rate(epoch) for epoch in (0, 49, 50, 60)]
        [0.08, 0.08, 0.04, 0.02]
        """
        milestones = (
            at if isinstance(at, int) else round(at * self.epochs) for at in self.halve_at
        )
        return self.learning_rate * 0.5 ** sum(epoch >= milestone for milestone in milestones)


def total(terms: Losses) -> Tensor:
    """Sum the terms of a loss, each averaged over the mini-batch."""
    return torch.stack([term.mean() for term in terms.values()]).sum()


def train(
    network: nn.Module,
    losses: Callable[[MiniBatch], Losses],
    batches: Batches,
    optimisation: Optimisation,
    *,
    seed: Callable[[int], int],
    bf16: bool = False,
) -> Iterator[EpochRecord]:
    """Train a network in place; yield the mean loss terms after each epoch.

    Parameters
    ----------
    network : nn.Module
        Trained in place; in training mode while an epoch runs.
    losses : callable
        Maps a mini-batch to the terms of the loss.
    batches : Batches
    optimisation : Optimisation
    seed : callable
        Maps an epoch to the seed of all its chance: order, augmentation, dropout.
    bf16 : bool
        Run the forward pass in bfloat16; weights and losses stay float32.
    """
    weights = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(
        weights,
        lr=optimisation.learning_rate,
        momentum=optimisation.momentum,
        weight_decay=optimisation.weight_decay,
    )
    generator = torch.Generator()
    devices = [batches.device] if batches.device.type == "cuda" else []
    for epoch in range(optimisation.epochs):
        rate = optimisation.rate(epoch)
        for group in optimiser.param_groups:
            group["lr"] = rate
        sums: dict[str, Tensor] = {}
        network.train()
        # Dropout and the like draw from torch's global generators: lend them this epoch's seed.
        with torch.enable_grad(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed(epoch))
            for batch in batches.epoch(generator.manual_seed(seed(epoch))):
                with torch.autocast(batches.device.type, torch.bfloat16, enabled=bf16):
                    terms = losses(batch)
                optimiser.zero_grad(set_to_none=True)
                total(terms).backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                for name, term in terms.items():  # stays on the device: no step waits for it
                    sums[name] = sums.get(name, 0) + term.detach().mean() * len(batch.y)
        means = {name: float(term) / len(batches.y) for name, term in sums.items()}
        if not math.isfinite(sum(means.values())):
            raise TrainingError(
                f"the loss is no longer a number in epoch {epoch + 1} ({means}): "
                f"lower learning_rate (now {optimisation.learning_rate:g})"
            )
        yield {"epoch": epoch, "learning_rate": rate, **means, "loss": sum(means.values())}
    optimiser.zero_grad(set_to_none=True)
