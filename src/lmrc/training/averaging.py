"""Weights averaged over the last epochs: a wider minimum than the last step's."""

from __future__ import annotations

import torch
from torch import nn
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


def renew_batch_norm(network: nn.Module, batches: Batches, *, bf16: bool = False) -> None:
    """Take BatchNorm's statistics anew, over the epoch drawn: the old are of other weights."""
    network.train()
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.training]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the plain mean over all mini-batches
    positions = torch.arange(len(batches.y), device=batches.device)
    autocast = torch.autocast(batches.device.type, torch.bfloat16, enabled=bf16)
    with torch.no_grad(), autocast:
        for part in torch.split(positions, batches.sizes):
            batches.stage()
            network(batches.at(part).x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
