"""Weight gradients of convolutions, overlapped with the rest of the backward pass.

A layer's backward pass waits for the input gradient of the layer above; only the optimiser waits
for a weight's gradient. On small images neither fills a large GPU, so weight gradients are computed
on a side stream. All weights are cast to bfloat16 at once, at the start of a step.

These gradients bypass autograd, which could add them to others of the same weight, as for EWC's
penalty, before they are ready: `OverlappedGradients.join` does that. Until then inputs and
gradients must not be overwritten: they are held here, and compiled code may not reuse memory.
Losses that call autograd themselves would miss these gradients: `watched` finds them out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lmrc.nets.backbones import BasicBlock, ResNet, is_plain
from lmrc.nets.convolution import Conv2d, DetachedWeight, weight_gradient, with_strides_of
from lmrc.training.streams import current, on, open_stream, wait


class OverlappedGradients:
    """The weights whose gradients are computed on a side stream while their network is trained."""

    def __init__(self, layers: list[Conv2d], dtype: torch.dtype) -> None:
        self.weights = [layer.weight for layer in layers]
        self.values = [weight.detach() for weight in self.weights]
        is_cast = dtype != torch.float32
        self.used = [value.to(dtype) for value in self.values] if is_cast else self.values
        self.stream = open_stream(self.values[0].device, urgency=1)
        self.computed: list[tuple[int, Tensor]] = []
        self.held: list[Tensor] = []
        self.detached = [
            DetachedWeight(used, partial(self._compute, place))
            for place, used in enumerate(self.used)
        ]
        self.layers = layers
        self.enable()

    def enable(self) -> None:
        """Overlap the gradients of all layers."""
        for layer, weight in zip(self.layers, self.detached, strict=True):
            layer.detach_weight(weight)

    def disable(self) -> None:
        """Leave all gradients to autograd."""
        for layer in self.layers:
            layer.attach_weight()

    @contextmanager
    def watched(self) -> Iterator[list[None]]:
        """Leave a step's gradients to autograd; list the backward passes through the layers."""
        passes: list[None] = []

        def watch(module: nn.Module, inputs: Any, out: Tensor) -> None:
            if out.requires_grad:
                out.register_hook(lambda _: passes.append(None))  # type: ignore[no-untyped-call]

        self.disable()
        hooks = [layer.register_forward_hook(watch) for layer in self.layers]
        try:
            yield passes
        finally:
            for hook in hooks:
                hook.remove()
            self.enable()

    def begin(self) -> None:
        """Begin a step: cast the weights."""
        self.computed, self.held = [], []  # of a capture that failed, too
        if self.used is not self.values:
            torch._foreach_copy_(self.used, self.values)

    def discard(self) -> None:
        """Drop the gradients so far: those that the losses computed themselves are not a step's."""
        self._wait()
        self.computed, self.held = [], []

    def join(self) -> None:
        """Wait for the gradients, and add them to those of autograd."""
        self._wait()
        for place, gradient in self.computed:
            weight = self.weights[place]
            if weight.grad is not None:
                gradient = with_strides_of(weight, weight.grad + gradient)
            weight.grad = gradient
        self.computed, self.held = [], []

    def _compute(self, place: int, g: Tensor, x: Tensor, *how: Any) -> None:
        """Compute the gradient of a weight on the side stream."""
        value = self.values[place]
        wait(self.stream, current(x.device))
        with on(self.stream):
            gradient = weight_gradient(g, x, *how).to(value.dtype)
            gradient = with_strides_of(value, gradient)
        self.computed.append((place, gradient))
        self.held += [g, x]

    def _wait(self) -> None:
        if self.computed:  # else a capture would not know the stream
            wait(current(self.values[0].device), self.stream)


@contextmanager
def overlapped(network: nn.Module, bf16: bool) -> Iterator[OverlappedGradients | None]:
    """Overlap the weight gradients of a network's convolutions; None if it has no suitable ones.

    Only in our own ResNets, where a layer's weight is known to be used by the layer alone.
    """
    layers = _layers(network.get_submodule("encoder.backbone"))
    if not layers:
        yield None
        return
    overlap = OverlappedGradients(layers, torch.bfloat16 if bf16 else torch.float32)
    try:
        yield overlap
    finally:
        overlap.disable()
        overlap.detached.clear()  # each refers back to it


def _layers(backbone: nn.Module) -> list[Conv2d]:
    blocks = backbone.modules() if type(backbone) is ResNet else ()
    modules = [m for block in blocks if type(block) is BasicBlock for m in block.modules()]
    return [m for m in modules if type(m) is Conv2d and _is_suitable(m)]


def _is_suitable(layer: Conv2d) -> bool:
    return is_plain(layer) and layer.weight.requires_grad and layer.bias is None
