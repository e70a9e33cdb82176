"""A network: raw input → normalised → backbone → features → head."""

from __future__ import annotations

import copy
import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from lmrc.nets.backbones import Factory, InputShape, build
from lmrc.nets.folded import fold

LARGEST_INPUT = 2**24  # values of one input: a model file that asks for more is forged
LARGE_INPUT = 2**18  # 3 × 295 × 295: from here on, a pass takes some hundred megabytes


class Encoder(nn.Module):
    """All that heads share: normalisation with fixed statistics, then the backbone.

    Takes raw inputs, uint8 0…255 or float, so that a model file needs nothing beside it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.is_frozen = False

    def freeze(self, frozen: bool) -> None:
        """Leave the backbone out of the training, its BatchNorm statistics too; or let it in."""
        self.is_frozen = frozen
        self.backbone.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.is_frozen:
            self.backbone.eval()
        return self

    def normalise(self, x: Tensor) -> Tensor:
        """Scale uint8 to 0…1, then standardise each channel or feature."""
        scaled = x.to(self.mean.dtype) / 255 if x.dtype == torch.uint8 else x
        return (scaled - self.mean) / self.std

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, width)."""
        features: Tensor = self.backbone(self.normalise(x))
        # Convolutional modules of any origin are welcome: average what is left of space.
        return features.flatten(2).mean(2) if features.ndim > 2 else features

    def features(self, x: Tensor, layers: int = 1) -> Tensor:
        """Return the features of the last one or two layers, those of `forward` as the last ones.

        A backbone that does not offer two gives those of one.
        """
        if self.width_before(layers):
            both: Tensor = self.backbone.last_two(self.normalise(x))  # type: ignore[operator]
            return both
        last: Tensor = self(x)
        return last

    def width_before(self, layers: int) -> int:
        """Return how many `features` come before those of the last layer."""
        offered = layers == 2 and hasattr(self.backbone, "last_two")
        return int(getattr(self.backbone, "width_before", 0)) if offered else 0


class Network(nn.Module):
    """An encoder and the head of a method on top of it."""

    encoder: Encoder
    head: Any  # each method has its own kind

    def __init__(self, encoder: Encoder, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, x: Tensor) -> Any:
        """Return what the head makes of the features."""
        return self.head(self.encoder(x))


class Frozen(Network):
    """A network as it was before a task, in evaluation mode; it shares the network's weights.

    Parameters
    ----------
    network : Network
    bf16 : bool
        Whether it runs in bfloat16; on a GPU a ResNet is folded for that.
    """

    def __init__(self, network: Network, bf16: bool = False) -> None:
        super().__init__(network.encoder, network.head)
        self.eval()
        dtype = torch.bfloat16 if bf16 else torch.float32
        on_gpu = network.encoder.mean.is_cuda
        folded = fold(network.encoder.backbone, dtype) if on_gpu else None
        # In a tuple, it is no part of the module: its weights are the backbone's once more.
        self._folded = (folded,) if folded else ()

    def features(self, x: Tensor) -> Tensor:
        """Return what the encoder makes of x."""
        if self._folded:
            (backbone,) = self._folded
            folded: Tensor = backbone(self.encoder.normalise(x))
            return folded
        features: Tensor = self.encoder(x)
        return features

    def forward(self, x: Tensor) -> Any:
        """Return what the network makes of x."""
        return self.head(self.features(x))


def on_device(device: torch.device, network: Network) -> Network:
    """Return the network on a device; a copy where it is on another, so that it stays there."""
    here = network.encoder.mean.device
    return network if here == device else copy.deepcopy(network).to(device)


def check_input_shape(shape: InputShape) -> None:
    """Refuse inputs that are neither vectors nor images, or larger than any network takes."""
    if len(shape) not in (1, 3) or not all(type(side) is int and side > 0 for side in shape):
        raise ValueError(f"inputs cannot be of shape {shape}")
    if math.prod(shape) > LARGEST_INPUT:
        raise ValueError(
            f"inputs of shape {shape} have over {LARGEST_INPUT:,} values: bring them to a smaller "
            "size"
        )


def build_encoder(
    backbone: str | nn.Module | Factory, input_shape: InputShape, mean: Tensor, std: Tensor
) -> tuple[Encoder, int]:
    """Make an encoder and find the width of its features by a dry pass.

    For backbones of ours and large inputs without memory, on the meta device: which imports torch's
    compiler, a second of work or more.
    """
    check_input_shape(input_shape)
    encoder = Encoder(build(backbone, input_shape).cpu(), mean, std)
    without_memory = isinstance(backbone, str) and math.prod(input_shape) > LARGE_INPUT
    was_training, place = encoder.training, "meta" if without_memory else "cpu"
    try:
        with torch.no_grad():
            tried, x = encoder.eval(), torch.zeros(2, *input_shape, device=place)
            if without_memory:
                tried = copy.deepcopy(encoder).to(place)
            features = tried(x)
            both = tried.features(x, 2) if tried.width_before(2) else features
    except (RuntimeError, AttributeError, TypeError, IndexError) as error:
        raise ValueError(
            f"the backbone does not map inputs of shape (batch, "
            f"{', '.join(map(str, input_shape))}) to features of shape (batch, width): {error}"
        ) from error
    encoder.train(was_training)
    if features.ndim != 2 or len(features) != 2:
        shape = tuple(features.shape)
        raise ValueError(
            f"the backbone must map (batch, {', '.join(map(str, input_shape))}) to features of "
            f"shape (batch, width), but a batch of 2 gave {shape}"
        )
    width = features.shape[1]
    # Else it would show when statistics are made, and all the training would be lost.
    if both.shape != (2, encoder.width_before(2) + width):
        raise ValueError(
            f"the backbone's last_two must return {encoder.width_before(2)} features "
            "(width_before) "
            f"and then its own {width}, but a batch of 2 gave {tuple(both.shape)}"
        )
    return encoder, width
