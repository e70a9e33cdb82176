"""A convolution that leaves its weight's gradient to others; `delayed` says what for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Takes the place of a weight and what its gradient is found from, as `weight_gradient` does. One
# for all: compiled code knows a weight by its place alone, so that the next network can use it.
left_to: Callable[..., None] | None = None


class DelayedConv2d(nn.Conv2d):
    """What a convolution without bias, groups and dilation is for as long as it is trained."""

    dtype: torch.dtype  # to compute in
    used: Tensor  # the weight, or a copy of it
    place: int  # among all that are delayed

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x."""
        if not (torch.is_grad_enabled() and x.requires_grad):
            return super().forward(x)
        x, weight = x.to(self.dtype), self.used.to(self.dtype)
        how = self.place, self.stride, self.padding
        out: Tensor = _Convolution.apply(x, weight, *how)  # type: ignore[no-untyped-call]
        return out


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, place: int, stride: Any, padding: Any) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.how = place, stride, padding
        return F.conv2d(x, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        if g.is_cuda:  # its convolutions want it so
            g = g.contiguous(memory_format=torch.channels_last)
        gradient = torch.ops.lmrc.convolution_backward(g, x, weight, *ctx.how)
        return gradient, None, None, None, None


@torch.library.custom_op(  # which compiled code calls as it is
    "lmrc::convolution_backward",
    mutates_args=(),
    schema="(Tensor g, Tensor x, Tensor weight, int place, int[] stride, int[] padding) -> Tensor",
)
def _backward(
    g: Tensor, x: Tensor, weight: Tensor, place: int, stride: list[int], padding: list[int]
) -> Tensor:
    assert left_to is not None, "the backward pass of a network whose training is over"
    left_to(place, g, x, weight, stride, padding)
    return laid_out_as(x, _gradients(g, x, weight, stride, padding, of_input=True)[0])


@_backward.register_fake
def _(g: Tensor, x: Tensor, *_how: Any) -> Tensor:
    return torch.empty_like(x)


def weight_gradient(
    g: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]
) -> Tensor:
    """Return the gradient of the weight from that of what was made of x."""
    return _gradients(g, x, weight, stride, padding, of_input=False)[1]


def _gradients(
    g: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], of_input: bool
) -> tuple[Tensor, Tensor]:
    plain = [1, 1], False, [0, 0], 1  # dilation, whether it is transposed, output padding, groups
    wanted = [of_input, not of_input, False]
    found = torch.ops.aten.convolution_backward(g, x, weight, None, stride, padding, *plain, wanted)
    return found[0], found[1]


def laid_out_as(other: Tensor, x: Tensor) -> Tensor:
    """Return x with the strides of another tensor, which compiled code and optimisers rely on."""
    strides = torch.empty_like(other, device="meta").stride()
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
