"""EfficientNet-Lite (Tan & Le, 2019): EfficientNet without squeeze-and-excitation, with ReLU6.

Parameters are named as in the published state dicts. Convolutions pad as TensorFlow's "same", with
which the weights were trained: a stride of 2 over an even side pads at the right and bottom alone.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

WIDTH = 1280  # features
_STEM = 32  # channels, in all variants
_EPS = 1e-3
#: Convolutions, and the BatchNorm that follows each.
_FOLDED = (
    ("_conv_stem", "_bn0"),
    ("_expand_conv", "_bn0"),
    ("_depthwise_conv", "_bn1"),
    ("_project_conv", "_bn2"),
    ("_conv_head", "_bn1"),
)
_MOMENTUM = 0.01  # of BatchNorm: TensorFlow's 0.99
_BEFORE = 0.1  # scale of the last two blocks' features; see results/search/layers.py

#: Repeats, kernel, stride, expansion and output channels of each stage, before scaling.
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


#: By variant, the factors of all channels and of all repeats.
VARIANTS = {
    "efficientnet-lite0": (1.0, 1.0),
    "efficientnet-lite1": (1.0, 1.1),
    "efficientnet-lite2": (1.1, 1.2),
}


class SameConv2d(nn.Conv2d):
    """A convolution without bias, padded so that its output has ceil(side / stride) pixels."""

    def __init__(
        self, n_in: int, n_out: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(n_in, n_out, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pad, more at the right and bottom if it is odd, and convolve."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        rows, columns = (_padding(int(side), kernel, stride) for side in x.shape[2:])
        if rows == columns and rows % 2 == 0:  # as much on all sides: the convolution can do it
            return F.conv2d(x, self.weight, self.bias, self.stride, rows // 2, 1, self.groups)
        around = [part for n in (columns, rows) for part in (n // 2, n - n // 2)]
        return F.conv2d(F.pad(x, around), self.weight, self.bias, self.stride, 0, 1, self.groups)


def _relu6(x: Tensor) -> Tensor:
    return F.relu6(x, inplace=not torch.is_grad_enabled())


def _padding(side: int, kernel: int, stride: int) -> int:
    """Return how many pixels to add to a side, at both ends together."""
    return max(0, (math.ceil(side / stride) - 1) * stride + kernel - side)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=_EPS, momentum=_MOMENTUM)


class Block(nn.Module):
    """Inverted residual (Sandler et al., 2018): expand, convolve each channel, project."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner, self.n_out = n_in * expansion, n_out
        self.expands, self.has_shortcut = expansion != 1, stride == 1 and n_in == n_out
        if self.expands:
            self._expand_conv = SameConv2d(n_in, inner, 1)
            self._bn0 = _norm(inner)
        self._depthwise_conv = SameConv2d(inner, inner, kernel, stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv = SameConv2d(inner, n_out, 1)
        self._bn2 = _norm(n_out)

    def forward(self, x: Tensor) -> Tensor:
        """Return the feature maps after the block."""
        inner = _relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        inner = _relu6(self._bn1(self._depthwise_conv(inner)))
        out: Tensor = self._bn2(self._project_conv(inner))
        return out + x if self.has_shortcut else out


class EfficientNetLite(nn.Module):
    """EfficientNet-Lite without its classifier: 1,280 features.

    Parameters
    ----------
    variant : str
        A name in `VARIANTS`.
    """

    width = WIDTH

    def __init__(self, variant: str) -> None:
        super().__init__()
        wider, deeper = VARIANTS[variant]
        self._conv_stem = SameConv2d(3, _STEM, 3, 2)
        self._bn0 = _norm(_STEM)
        blocks: list[Block] = []
        n_in = _STEM
        for number, (repeats, kernel, stride, expansion, channels) in enumerate(_STAGES):
            n_out = _multiple_of_8(channels * wider)
            if 0 < number < len(_STAGES) - 1:  # the first and the last stage are not repeated
                repeats = math.ceil(repeats * deeper)
            for i in range(repeats):
                blocks.append(Block(n_in, n_out, kernel, stride if i == 0 else 1, expansion))
                n_in = n_out
        self._blocks = nn.Sequential(*blocks)
        self.width_before = sum(block.n_out for block in blocks[-2:])  # see `last_two`
        self._conv_head = SameConv2d(n_in, WIDTH, 1)
        self._bn1 = _norm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, 1280)."""
        return self._last(self._blocks(self._stem(x)))

    def last_two(self, x: Tensor) -> Tensor:
        """Return the features of the last two blocks, times 0.1, then those of `forward`."""
        before = self._blocks[:-1](self._stem(x))
        maps = before, self._blocks[-1](before)
        parts = [_BEFORE * part.mean(dim=(2, 3)) for part in maps]
        return torch.cat([*parts, self._last(maps[1])], dim=1)

    def _stem(self, x: Tensor) -> Tensor:
        return _relu6(self._bn0(self._conv_stem(x)))

    def _last(self, maps: Tensor) -> Tensor:
        return _relu6(self._bn1(self._conv_head(maps))).mean(dim=(2, 3))

    def folded(self) -> EfficientNetLite:
        """Return a copy for inference: BatchNorm folded into the convolutions, channels last.

        It takes half the time on a CPU.
        """
        net = copy.deepcopy(self).eval()
        for module in net.modules():
            for conv, norm in _FOLDED:
                if conv in module._modules:
                    fused = fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm))
                    setattr(module, conv, fused)
                    setattr(module, norm, nn.Identity())
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _multiple_of_8(channels: float) -> int:
    """Round to the next multiple of 8, but not down by more than a tenth."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded
