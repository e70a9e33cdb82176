"""Convolutions whose weight gradients are found beside the rest of the backward pass.

Each layer's backward pass waits for the input gradient of the one above; for a weight's gradient
only the optimiser waits. On small images neither fills a large GPU, so the latter go to a stream of
their own. And a weight is cast to bfloat16 together with all others, and not each by itself: in
compiled code by what moves it, see `update`.

These gradients go past autograd, which would add them to others of the same weight, as EWC's
penalty has them, before they are there: `Delayed.join` does that. Inputs and gradients must
stay as they are until then, so `Delayed` holds on to them, and compiled code may reuse no memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from lmrc.nets.backbones import BasicBlock, ResNet, is_plain
from lmrc.training import convolution
from lmrc.training.convolution import DelayedConv2d, laid_out_as, weight_gradient
from lmrc.training.streams import current, on, open_stream, wait
from lmrc.training.update import update

_one_network = Lock()  # at a time, of all threads: `convolution.left_to` is one for all


class Delayed:
    """The weights whose gradients are found beside, while their network is in training.

    Parameters
    ----------
    layers : list of Conv2d
    dtype : torch.dtype
        In which the weights are used.
    compiled : bool
        Whether they are moved by compiled code, and not by the optimiser itself.
    """

    def __init__(self, layers: list[nn.Conv2d], dtype: torch.dtype, compiled: bool) -> None:
        self.compiled = compiled
        self.weights = [layer.weight for layer in layers]
        self.values = [weight.detach() for weight in self.weights]
        is_cast = dtype != torch.float32
        self.used = [value.to(dtype) for value in self.values] if is_cast else self.values
        self.stream = open_stream(self.values[0].device, urgency=1)
        self.found: list[tuple[int, Tensor]] = []
        self.held: list[Tensor] = []
        self.ready: dict[int, Tensor] = {}  # gradients of weights that compiled code moves
        self.is_current = False  # whether the copies are those of the weights as they are

    def begin(self) -> None:
        """Begin a step: cast the weights as they are now, unless the last step has."""
        self.found, self.held, self.ready = [], [], {}  # of a capture that failed, too
        if self.used is not self.values and not self.is_current:
            torch._foreach_copy_(self.used, self.values)
            self.is_current = self.compiled

    def find(self, place: int, g: Tensor, x: Tensor, *how: Any) -> None:
        """Find the gradient of the weight at a place, beside what comes next."""
        value = self.values[place]
        wait(self.stream, current(x.device))
        with on(self.stream):
            gradient = weight_gradient(g, x, *how)
            gradient = gradient if self.compiled else gradient.to(value.dtype)
            gradient = laid_out_as(value, gradient)
        self.found.append((place, gradient))
        self.held += [g, x]

    def drop(self) -> None:
        """Forget what was found: gradients that losses asked for on their way are not of a step."""
        self._wait()
        self.found, self.held = [], []

    def join(self) -> None:
        """Give the weights their gradients, once these are there."""
        self._wait()
        for place, gradient in self.found:
            weight = self.weights[place]
            for other in (weight.grad, self.ready.pop(place, None)):
                gradient = gradient if other is None else laid_out_as(weight, other + gradient)
            weight.grad = None if self.compiled else gradient
            if self.compiled:
                self.ready[place] = gradient
        self.found, self.held = [], []

    def update(self, optimiser: torch.optim.Optimizer) -> None:
        """Move the weights that the optimiser has no gradient of."""
        if self.ready:
            places, gradients = zip(*sorted(self.ready.items()), strict=True)
            weights = [self.weights[place] for place in places]
            update(optimiser, weights, list(gradients), [self.used[place] for place in places])
            self.ready = {}

    def _wait(self) -> None:
        if self.found:  # else a capture would not know the stream
            wait(current(self.values[0].device), self.stream)


@contextmanager
def delayed(network: nn.Module, bf16: bool, compiled: bool = False) -> Iterator[Delayed | None]:
    """Let a network's convolutions delay their weight gradients; None where none of them can.

    Only in our own ResNets, where it is known that a layer's weight is used by the layer alone.
    """
    layers = _layers(network.get_submodule("encoder.backbone"))
    if not (layers and _one_network.acquire(blocking=False)):
        yield None
        return
    try:
        dtype = torch.bfloat16 if bf16 else torch.float32
        weights = Delayed(layers, dtype, compiled)
        convolution.left_to = weights.find
        for place, layer in enumerate(layers):
            layer.__class__ = DelayedConv2d
            vars(layer).update(dtype=dtype, used=weights.used[place], place=place)
        yield weights
    finally:
        convolution.left_to = None
        for layer in layers:
            layer.__class__ = nn.Conv2d
            for name in ("dtype", "used", "place"):
                vars(layer).pop(name, None)
        _one_network.release()


def _layers(backbone: nn.Module) -> list[Any]:
    """Return the convolutions of a kind that is known here."""
    blocks = backbone.modules() if type(backbone) is ResNet else ()
    return [m for b in blocks if type(b) is BasicBlock for m in b.modules() if _is_known(m)]


def _is_known(layer: nn.Module) -> bool:
    return is_plain(layer) and layer.weight.requires_grad and layer.bias is None
