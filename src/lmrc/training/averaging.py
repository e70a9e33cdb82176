"""Weights averaged over the last epochs: a wider minimum than the last step's."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lmrc.training.batches import Batches

AVERAGE = "average"  # beside the momentum in the optimiser's state, so that checkpoints keep it


def add_to_average(optimiser: torch.optim.Optimizer, n_before: int) -> None:
    """Take the weights as they are into the mean of those of ``n_before`` epochs before."""
    for group in optimiser.param_groups:
        for p in group["params"]:
            state = optimiser.state[p]
            if n_before == 0:
                state[AVERAGE] = p.detach().clone()
            else:
                state[AVERAGE].lerp_(p.detach(), 1 / (n_before + 1))


def take_average(optimiser: torch.optim.Optimizer) -> None:
    """Put the mean in the place of the weights."""
    with torch.no_grad():
        for group in optimiser.param_groups:
            for p in group["params"]:
                p.copy_(optimiser.state[p][AVERAGE])


def update_bn(network: nn.Module, batches: Batches, *, bf16: bool = False) -> None:
    """Take BatchNorm's statistics anew, over the epoch drawn: the old are of other weights.

    They are the plain mean over all mini-batches. Each of several ranks looks at its shares, which
    are normalised each for itself, as in training; the mean is then over all shares, by their
    samples. What one process finds that way differs as in training: in the variances, which are
    those within a share, and in all that lies behind a layer normalised by them.
    """
    network.train()
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.training]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
    ranks, weight = batches.ranks, 0.0
    autocast = torch.autocast(batches.device.type, torch.bfloat16, enabled=bf16)
    with torch.no_grad(), autocast:
        for size, positions in batches.shares():
            share = ranks.counts(size) * len(positions) / size
            weight += share
            for layer in layers:
                layer.momentum = share / weight if weight else 0.0
            network(batches.at(positions).x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        for statistic in (layer.running_mean, layer.running_var):
            if ranks.is_distributed and statistic is not None:
                distributed.all_reduce(statistic.mul_(weight / len(batches.sizes)))
