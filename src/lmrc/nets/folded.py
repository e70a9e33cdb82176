"""A ResNet for inference on a GPU: BatchNorm folded into the convolutions, one kernel each.

The old network is run on every mini-batch and does not change: its batch normalisation is a scale
and a shift per channel, which can be folded into the convolution before it. cuDNN then computes
bias, shortcut and ReLU in the same kernel.
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_weights

from lmrc.nets.backbones import BasicBlock, ResNet, is_plain, pad_channels


def fold(backbone: nn.Module, dtype: torch.dtype) -> nn.Module | None:
    """Return what computes the same as a ResNet of ours in evaluation mode; None for others."""
    return FoldedResNet(backbone, dtype) if _is_known(backbone) else None


def _is_known(backbone: nn.Module) -> TypeGuard[ResNet]:
    """Tell whether it is one of our ResNets, not altered by a user."""
    if type(backbone) is not ResNet:
        return False
    levels = [getattr(backbone, f"layer{level}") for level in range(1, 5)]
    convolutions = [m for m in backbone.modules() if isinstance(m, nn.Conv2d)]
    return all(map(is_plain, convolutions)) and all(
        type(level) is nn.Sequential and all(type(block) is BasicBlock for block in level)
        for level in levels
    )


class FoldedResNet(nn.Module):
    """What a `ResNet` computes in evaluation mode; its weights are copies."""

    def __init__(self, resnet: ResNet, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.stem = FoldedConv(resnet.conv1, resnet.bn1, dtype)
        self.maxpool = resnet.maxpool
        blocks = [block for level in range(1, 5) for block in getattr(resnet, f"layer{level}")]
        self.blocks = nn.Sequential(*(FoldedBlock(block, dtype) for block in blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, width)."""
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = self.blocks(self.maxpool(self.stem(x.to(self.dtype))))
        return out.mean(dim=(2, 3))


class FoldedBlock(nn.Module):
    """What a `BasicBlock` computes in evaluation mode."""

    def __init__(self, block: BasicBlock, dtype: torch.dtype) -> None:
        super().__init__()
        self.conv1 = FoldedConv(block.conv1, block.bn1, dtype)
        self.conv2 = FoldedConv(block.conv2, block.bn2, dtype)
        self.shortcut: FoldedConv | None = None
        if isinstance(block.downsample, nn.Sequential):
            conv, bn = block.downsample
            assert isinstance(conv, nn.Conv2d)
            assert isinstance(bn, _BatchNorm)  # or SyncBatchNorm, with several ranks
            self.shortcut = FoldedConv(conv, bn, dtype)
            # Its bias alone would be one more kernel over the whole map.
            self.conv2.bias = self.conv2.bias + self.shortcut.bias
            self.shortcut.bias = None

    def forward(self, x: Tensor) -> Tensor:
        """Residual mapping."""
        kept = x if self.shortcut is None else self.shortcut.linear(x)
        out: Tensor = self.conv2(self.conv1(x), kept)
        return out


class FoldedConv(nn.Module):
    """Convolution, BatchNorm, perhaps a sum, ReLU."""

    weight: Tensor
    bias: Any  # Tensor or None

    def __init__(self, conv: nn.Conv2d, bn: _BatchNorm, dtype: torch.dtype) -> None:
        super().__init__()
        assert bn.running_mean is not None
        assert bn.running_var is not None
        weight, bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
        )
        padded = pad_channels(weight.detach()).to(dtype)
        self.register_buffer("weight", padded.contiguous(memory_format=torch.channels_last))
        self.register_buffer("bias", bias.detach().to(dtype))
        self.stride, self.padding = conv.stride, conv.padding
        self.fused = conv.weight.is_cuda and torch.version.hip is None

    def linear(self, x: Tensor) -> Tensor:
        """Convolution and BatchNorm alone."""
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Return relu(BatchNorm(convolution(x)) + added)."""
        x = pad_channels(x)
        if self.fused:
            where: Any = self.stride, self.padding, (1, 1), 1
            if added is None:
                return torch.cudnn_convolution_relu(x, self.weight, self.bias, *where)
            return torch.cudnn_convolution_add_relu(x, self.weight, added, 1.0, self.bias, *where)
        out = self.linear(x)
        return torch.relu(out if added is None else out + added)
