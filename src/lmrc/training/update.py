"""SGD that casts, too: a weight is read once in a step, and written in both precisions.

As one compiled function. By torch's own SGD, gradients would be made float32 before it, and weights
bfloat16 after it, each for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

Tensors = list[Tensor]


def update(
    optimiser: torch.optim.Optimizer, weights: list[nn.Parameter], gradients: Tensors, used: Tensors
) -> None:
    """Move weights as the optimiser would, an SGD with momentum, and cast them.

    Parameters
    ----------
    optimiser : torch.optim.SGD
        Of these weights. Their momentum is kept in its state.
    weights : list of Parameter
    gradients : list of Tensor
        Of any precision.
    used : list of Tensor
        Where the weights go as they are used, or the weights themselves.
    """
    group = optimiser.param_groups[0]
    states = [optimiser.state[weight] for weight in weights]
    for weight, state in zip(weights, states, strict=True):
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
    momenta = [state["momentum_buffer"] for state in states]
    values, rate = [weight.detach() for weight in weights], torch.as_tensor(group["lr"])
    step = _compiled(rate.is_cuda)
    step(values, gradients, momenta, used, rate, group["momentum"], group["weight_decay"])


def _sgd(
    values: Tensors,
    gradients: Tensors,
    momenta: Tensors,
    used: Tensors,
    rate: Tensor,
    momentum: float,
    decay: float,
) -> None:
    slopes = torch._foreach_add([g.float() for g in gradients], values, alpha=decay)
    torch._foreach_mul_(momenta, momentum)
    torch._foreach_add_(momenta, slopes)
    torch._foreach_sub_(values, torch._foreach_mul(momenta, rate))
    if used[0].dtype != values[0].dtype:
        torch._foreach_copy_(used, values)


@cache
def _compiled(on_gpu: bool) -> Callable[..., Any]:
    return torch.compile(_sgd, dynamic=False, options={"combo_kernels": True} if on_gpu else None)
