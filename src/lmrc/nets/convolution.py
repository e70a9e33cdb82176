"""A convolution whose weight gradient can be computed apart from the backward pass.

`lmrc.training.overlap` does so on a side stream; in all else it is torch's own convolution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DetachedWeight:
    """The weight of a layer as autograd sees it: a constant, with its gradient computed elsewhere.

    `value` is the weight, or a copy in the precision of the computation; `compute` is called in the
    backward pass, with the arguments of `weight_gradient`.
    """

    _by_handle: ClassVar[WeakValueDictionary[int, DetachedWeight]] = WeakValueDictionary()

    def __init__(self, value: Tensor, compute: Callable[..., None]) -> None:
        self.value, self.compute = value, compute
        # Compiled code passes tensors on, but no objects: this one leads back here. Other networks
        # of the same structure have other handles, and can use the same code.
        self.handle = torch.tensor([id(self)], device="cpu")
        self._by_handle[id(self)] = self

    @classmethod
    def of(cls, handle: Tensor) -> DetachedWeight:
        """Return the one with this handle."""
        found = cls._by_handle.get(int(handle.item()))
        if found is None:
            raise RuntimeError("the training that this backward pass belongs to is over")
        return found


class Conv2d(nn.Conv2d):
    """A convolution; its weight may be detached if it has no bias, groups and dilation."""

    value: Tensor | None = None
    handle: Tensor | None = None

    def detach_weight(self, weight: DetachedWeight) -> None:
        """Use this weight in place of the parameter."""
        self.value, self.handle = weight.value, weight.handle

    def attach_weight(self) -> None:
        """Use the parameter again."""
        self.value = self.handle = None

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x."""
        value, handle = self.value, self.handle
        if value is None or handle is None or not (torch.is_grad_enabled() and x.requires_grad):
            return super().forward(x)
        how = self.stride, self.padding
        out: Tensor = _Convolution.apply(x.to(value.dtype), value, handle, *how)  # type: ignore[no-untyped-call]
        return out


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, handle: Tensor, stride: Any, padding: Any
    ) -> Any:
        ctx.save_for_backward(x, weight, handle)
        ctx.how = stride, padding
        return F.conv2d(x, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, handle = ctx.saved_tensors
        if g.is_cuda:  # as its convolutions need it
            g = g.contiguous(memory_format=torch.channels_last)
        gradient = torch.ops.lmrc.convolution_backward(g, x, weight, handle, *ctx.how)
        return gradient, None, None, None, None


@torch.library.custom_op(  # opaque to the compiler
    "lmrc::convolution_backward",
    mutates_args=(),
    schema=(
        "(Tensor g, Tensor x, Tensor weight, Tensor handle, int[] stride, int[] padding) -> Tensor"
    ),
)
def _backward(
    g: Tensor, x: Tensor, weight: Tensor, handle: Tensor, stride: list[int], padding: list[int]
) -> Tensor:
    DetachedWeight.of(handle).compute(g, x, weight, stride, padding)
    return with_strides_of(x, _gradients(g, x, weight, stride, padding, of_input=True)[0])


@_backward.register_fake
def _(g: Tensor, x: Tensor, *_how: Any) -> Tensor:
    return torch.empty_like(x)


def weight_gradient(
    g: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int]
) -> Tensor:
    """Return the gradient of the weight, given that of the output for x."""
    return _gradients(g, x, weight, stride, padding, of_input=False)[1]


def _gradients(
    g: Tensor, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], of_input: bool
) -> tuple[Tensor, Tensor]:
    plain = [1, 1], False, [0, 0], 1  # dilation, transposed, output padding, groups
    wanted = [of_input, not of_input, False]
    found = torch.ops.aten.convolution_backward(g, x, weight, None, stride, padding, *plain, wanted)
    return found[0], found[1]


def with_strides_of(other: Tensor, x: Tensor) -> Tensor:
    """Return x with the strides of another tensor, as compiled code and optimisers expect."""
    strides = torch.empty_like(other, device="meta").stride()
    if x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)
