"""Stochastic weight averaging (SWA) over the last epochs.

Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization", UAI 2018
(arXiv:1803.05407).
"""

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lmrc.training.batches import Batches

AVERAGE = "average"  # key in the optimiser's state, which checkpoints save


def update_average(optimiser: torch.optim.Optimizer, n_before: int) -> None:
    """Add the current weights to the mean over ``n_before`` earlier epochs."""
    for group in optimiser.param_groups:
        for p in group["params"]:
            state = optimiser.state[p]
            if n_before == 0:
                state[AVERAGE] = p.detach().clone()
            else:
                state[AVERAGE].lerp_(p.detach(), 1 / (n_before + 1))


def load_average(optimiser: torch.optim.Optimizer) -> None:
    """Replace the weights by their mean."""
    with torch.no_grad():
        for group in optimiser.param_groups:
            for p in group["params"]:
                p.copy_(optimiser.state[p][AVERAGE])


def update_bn(network: nn.Module, batches: Batches, *, bf16: bool = False) -> None:
    """Recompute BatchNorm's statistics for averaged weights, over the sampled epoch.

    They are the plain mean over all mini-batches. With several ranks, each shard is normalised by
    itself, as in training, and the mean is over all shards, weighted by their samples. As in
    training, this differs from a single process: variances are those within a shard.
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
        for size, positions in batches.shards():
            shard = ranks.has_shard(size) * len(positions) / size
            weight += shard
            for layer in layers:
                layer.momentum = shard / weight if weight else 0.0
            network(batches.at(positions).x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
        for statistic in (layer.running_mean, layer.running_var):
            if ranks.is_distributed and statistic is not None:
                distributed.all_reduce(statistic.mul_(weight / len(batches.sizes)))
