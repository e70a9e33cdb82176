"""Backbones: from a normalised input to a feature vector.

A backbone is any ``nn.Module`` that maps a batch of inputs to features of shape (batch, width);
a module that returns feature maps has them averaged over space. One that has a method ``last_two``
and a number ``width_before`` also offers the features of the layer before, placed first.
"""

import copy
import inspect
from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmrc.nets.auto import OF_VECTORS, pick
from lmrc.nets.ecosystem import PACKAGES, split_name
from lmrc.nets.packaged import PACKAGED, packaged

#: (features,) for vectors, (channels, height, width) for images.
InputShape = tuple[int, ...]
Factory = Callable[..., nn.Module]

SMALL_IMAGE = 64  # up to here a ResNet keeps the full resolution in its stem


def mlp(input_shape: InputShape) -> nn.Module:
    """Two hidden layers of 256: for vectors, and for images seen as vectors."""
    n_inputs = int(torch.Size(input_shape).numel())
    return nn.Sequential(
        nn.Flatten(), nn.Linear(n_inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
    )


def identity(input_shape: InputShape) -> nn.Module:
    """Take the inputs themselves for features: for vectors that are features already."""
    return nn.Flatten()


class Homogeneous(nn.Flatten):
    """The inputs themselves and a constant, for vectors that are features already.

    Statistics are of features at unit length. The constant, as long as standardised inputs usually
    are, preserves differences in length, and gives random projections a bias.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, inputs + 1)."""
        flat = super().forward(x)
        return F.pad(flat, (0, 1), value=flat.shape[1] ** 0.5)


def cnn(input_shape: InputShape) -> nn.Module:
    """Two 3×3 convolutions (32, 64) with 2×2 max-pooling and a hidden layer of 128.

    The network of the paper's softmax-suppression probe. Maps over 8×8 are averaged down first.
    """
    channels, height, width = input_shape
    rows, columns = (min(8, -(-side // 4)) for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AdaptiveAvgPool2d((rows, columns)),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, 128),
        nn.ReLU(),
    )


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al., 2016)."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Residual mapping."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        return torch.relu(out + shortcut)


class ResNet(nn.Module):
    """ResNet with 8 · channels features (He et al., 2016).

    Up to 64 pixels it has a 3×3 stem without pooling, above the usual one. Parameters are named as
    torchvision's, so that its weights load.
    """

    def __init__(
        self, input_shape: InputShape, depths: tuple[int, int, int, int], channels: int = 64
    ) -> None:
        super().__init__()
        n_colours, *sides = input_shape
        small = max(sides) <= SMALL_IMAGE
        self.conv1 = (
            nn.Conv2d(n_colours, channels, 3, 1, 1, bias=False)
            if small
            else nn.Conv2d(n_colours, channels, 7, 2, 3, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(channels)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.width_before = 4 * channels  # features of the layer before the last: see `last_two`
        n_in = channels
        for level, depth in enumerate(depths):
            n_out, stride = channels * 2**level, 1 if level == 0 else 2
            blocks = [BasicBlock(n_in, n_out, stride)]
            blocks += [BasicBlock(n_out, n_out, 1) for _ in range(depth - 1)]
            setattr(self, f"layer{level + 1}", nn.Sequential(*blocks))
            n_in = n_out
        for module in self.modules():
            # On "meta", where only shapes matter, torch would import its compiler for it.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, 8 · channels)."""
        return self._level(4, self._level_3(x)).mean(dim=(2, 3))

    def last_two(self, x: Tensor) -> Tensor:
        """Return the features of the last two layers, (batch, 4 · channels + 8 · channels)."""
        before = self._level_3(x)
        maps = before, self._level(4, before)
        return torch.cat([part.mean(dim=(2, 3)) for part in maps], dim=1)

    def _level_3(self, x: Tensor) -> Tensor:
        x = self.maxpool(torch.relu(self.bn1(self._stem(x))))
        for level in range(1, 4):
            x = self._level(level, x)
        return x

    def _level(self, level: int, x: Tensor) -> Tensor:
        out: Tensor = getattr(self, f"layer{level}")(x)
        return out

    def _stem(self, x: Tensor) -> Tensor:
        conv = self.conv1
        x, weight = pad_channels(x), pad_channels(conv.weight)
        return F.conv2d(x, weight, conv.bias, conv.stride, conv.padding)


def is_plain(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Tell whether it is a convolution without groups and dilation, with zero padding."""
    return (
        type(module) is nn.Conv2d
        and (module.groups, module.dilation, module.padding_mode) == (1, (1, 1), "zeros")
        and not isinstance(module.padding, str)
    )


def pad_channels(x: Tensor) -> Tensor:
    """On a GPU, pad channels with zeros to a multiple of eight, as tensor cores need."""
    missing = -x.shape[1] % 8
    return F.pad(x, (0, 0, 0, 0, 0, missing)) if x.is_cuda and missing else x


BACKBONES: dict[str, Callable[[InputShape], nn.Module]] = {
    "identity": identity,
    "homogeneous": lambda shape: Homogeneous(),
    "mlp": mlp,
    "cnn": cnn,
    "resnet18": lambda shape: ResNet(shape, (2, 2, 2, 2)),
    "resnet34": lambda shape: ResNet(shape, (3, 4, 6, 3)),
    # 1,024 features, four times the parameters and the work of ResNet-18:
    "resnet18-wide": lambda shape: ResNet(shape, (2, 2, 2, 2), channels=128),
}


def check_name(name: str) -> None:
    """Reject an unknown name."""
    known = ["auto", *BACKBONES, *PACKAGED]
    if name not in known and not packaged(name) and not split_name(name):
        names = ", ".join([*known, *(f"{prefix}:NAME" for prefix in PACKAGES)])
        raise ValueError(f"backbone={name!r} is not known: use one of {names}, or an nn.Module")


def refuse_vectors(name: str, input_shape: InputShape) -> None:
    """Refuse inputs that are not images."""
    if len(input_shape) == 1:
        raise ValueError(
            f"backbone={name!r} takes images, but the input is vectors of {input_shape[0]} "
            "features: use backbone='mlp', or reshape the input to (n, height, width)"
        )


def build(backbone: str | nn.Module | Factory, input_shape: InputShape) -> nn.Module:
    """Build a new backbone for inputs of shape (features,) or (channels, height, width).

    By "auto", a name in `BACKBONES`, a module (a copy is returned), or a factory: a function or
    class that returns a module. A factory with a parameter called ``input_shape`` is given it.
    """
    if isinstance(backbone, nn.Module):
        return copy.deepcopy(backbone)
    if isinstance(backbone, str):
        check_name(backbone)
        name = pick(input_shape) if backbone == "auto" else backbone
        if name not in (*OF_VECTORS, "mlp"):
            refuse_vectors(name, input_shape)
        return BACKBONES[name](input_shape)
    if not callable(backbone):
        raise ValueError(
            f"backbone={backbone!r} is neither a name, nor an nn.Module, nor a factory of one"
        )
    module: Any = (
        backbone(input_shape=input_shape)
        if "input_shape" in inspect.signature(backbone).parameters
        else backbone()
    )
    if not isinstance(module, nn.Module):
        raise TypeError(f"the backbone factory returned {type(module).__name__}, not an nn.Module")
    return copy.deepcopy(module)  # it may return one that is used elsewhere
