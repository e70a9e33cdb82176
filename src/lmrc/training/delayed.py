"""Convolutions whose weight gradients are found beside the rest of the backward pass.

Each layer's backward pass waits for the input gradient of the one above; for a weight's gradient
only the optimiser waits. On small images neither fills a large GPU, so the latter go to a stream of
their own. And a weight is cast to bfloat16 together with all others, and not each by itself.

The last blocks, whose gradients come first, hold nearly all weights. So the optimiser can take its
step for them, which only moves memory, while the first blocks still go backward.

These gradients go past autograd, which would add them to others of the same weight, as EWC's
penalty has them, before they are there: `Delayed.join` hands them over. Inputs and gradients must
stay as they are until then, so `Delayed` holds on to them, and compiled code may reuse no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from lmrc.nets.backbones import BasicBlock, ResNet, is_plain
from lmrc.training import convolution
from lmrc.training.convolution import DelayedConv2d, laid_out_as, weight_gradient
from lmrc.training.streams import current, on, open_stream, wait

UPDATE_EARLY = True  # the last blocks, beside the backward pass of the first
CAST_EARLY = True  # them, too, as soon as they are updated
OWN_STREAM = True  # for this; else it goes to that of the gradients
SHARE = 0.9  # of all weights, which the last blocks hold at least

_one_network = Lock()  # at a time, of all threads: `convolution.left_to` is one for all


class Delayed:
    """The weights whose gradients are found beside, while their network is in training."""

    def __init__(self, blocks: list[list[Any]], dtype: torch.dtype) -> None:
        self.weights = [layer.weight for block in blocks for layer in block]
        self.values = [weight.detach() for weight in self.weights]
        is_cast = dtype != torch.float32
        self.used = [value.to(dtype) for value in self.values] if is_cast else self.values
        device = self.values[0].device
        self.stream = open_stream(device, urgency=1)
        self.found: list[tuple[int, Tensor]] = []
        self.held: list[Tensor] = []
        # Lets the optimiser take its step for some weights alone.
        self.update: Callable[[list[nn.Parameter]], None] | None = None
        self.updating = open_stream(device) if OWN_STREAM else self.stream
        first = _first_of_last([sum(x.weight.numel() for x in block) for block in blocks])
        self.first = sum(len(block) for block in blocks[:first])  # place of the last weights
        self.are_alone = False  # the last weights have no other gradients than those found here
        self.are_updated = False  # the last weights, in this step
        self.in_step = False  # gradients are those of the step, and not asked for by its losses

    def begin(self) -> None:
        """Begin a step: cast the weights as they are now."""
        self.found, self.held = [], []
        stop = self.first if CAST_EARLY and self.are_updated else None  # the others are cast
        self.are_updated = False
        if self.used is not self.values:
            torch._foreach_copy_(self.used[:stop], self.values[:stop])

    def find(self, place: int, g: Tensor, x: Tensor, *how: Any) -> None:
        """Find the gradient of the weight at a place, beside what comes next."""
        value = self.values[place]
        if place < self.first:
            self._update_early()
        wait(self.stream, current(x.device))
        with on(self.stream):
            gradient = weight_gradient(g, x, *how).to(value.dtype)
            gradient = laid_out_as(value, gradient)
        self.found.append((place, gradient))
        self.held += [g, x]

    def drop(self) -> None:
        """Forget what was found: gradients that losses asked for on their way are not of a step."""
        self._wait()
        self.found, self.held = [], []
        self.in_step = True

    def join(self) -> None:
        """Give the weights their gradients, once these are there."""
        self._wait()
        places = [place for place, _ in self.found]
        are_alone = self._have_no_gradients()
        if self.are_updated:
            wait(current(self.values[0].device), self.updating)
            is_late = any(place >= self.first for place in places)
            assert not is_late, "a gradient came after the update"
            assert are_alone, "a gradient from elsewhere came after the update"
        self.are_alone = are_alone and len(set(places)) == len(places)
        self.in_step = False
        for place, gradient in self.found:
            weight = self.weights[place]
            if weight.grad is not None:
                gradient = laid_out_as(weight, weight.grad + gradient)
            weight.grad = gradient
        self.found, self.held = [], []

    def _wait(self) -> None:
        if self.found:  # else a capture would not know the stream
            wait(current(self.values[0].device), self.stream)

    def _update_early(self) -> None:
        """Update the last weights, if it is time; nothing reads them in this step any more.

        All their gradients are found by then, and those of their layers' inputs lie behind on the
        current stream. Whether they are the only ones, a step before has shown.
        """
        is_time = sorted(p for p, _ in self.found) == list(range(self.first, len(self.weights)))
        are_alone = self.are_alone and self._have_no_gradients()
        if not (UPDATE_EARLY and self.update and self.in_step and are_alone and is_time):
            return
        early = [(self.weights[place], gradient) for place, gradient in self.found]
        wait(self.updating, self.stream)
        wait(self.updating, current(self.values[0].device))
        with on(self.updating):
            for weight, gradient in early:
                weight.grad = gradient
            self.update([weight for weight, _ in early])
            if CAST_EARLY and self.used is not self.values:
                torch._foreach_copy_(self.used[self.first :], self.values[self.first :])
        for weight, gradient in early:
            weight.grad = None  # so that the step at the end leaves it alone
            self.held.append(gradient)  # which the update reads on another stream
        self.found, self.are_updated = [], True

    def _have_no_gradients(self) -> bool:
        return all(weight.grad is None for weight in self.weights[self.first :])


@contextmanager
def delayed(network: nn.Module, bf16: bool) -> Iterator[Delayed | None]:
    """Let a network's convolutions delay their weight gradients; None where none of them can.

    Only in our own ResNets, where it is known that a layer's weight is used by the layer alone.
    """
    blocks = _blocks(network.get_submodule("trunk.backbone"))
    if not (blocks and _one_network.acquire(blocking=False)):
        yield None
        return
    layers = [layer for block in blocks for layer in block]
    try:
        dtype = torch.bfloat16 if bf16 else torch.float32
        weights = Delayed(blocks, dtype)
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


def _blocks(backbone: nn.Module) -> list[list[Any]]:
    """Return the convolutions of a kind that is known here, by block."""
    modules = backbone.modules() if type(backbone) is ResNet else ()
    blocks = [[m for m in b.modules() if _is_known(m)] for b in modules if type(b) is BasicBlock]
    return [block for block in blocks if block]


def _first_of_last(sizes: list[int]) -> int:
    """Return from which block on they hold a large share of all weights.

    >>> _first_of_last([1, 3, 76, 20]), _first_of_last([1, 1])
    (2, 0)
    """
    return max(i for i in range(len(sizes)) if sum(sizes[i:]) >= SHARE * sum(sizes))


def _is_known(layer: nn.Module) -> bool:
    return is_plain(layer) and layer.weight.requires_grad and layer.bias is None
