"""A network: raw input → normalised → backbone → features → head."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from lmrc.nets.backbones import Factory, InputShape, build, refuse_vectors
from lmrc.nets.folded import fold
from lmrc.nets.loading import is_pretrained, load_pretrained, rebuild
from lmrc.nets.resize import COLOURS, Resize

MAX_INPUT = 2**24  # values of one input: a model file with more is forged
LARGE_INPUT = 2**18  # 3 × 295 × 295: from here on, a forward pass takes some hundred megabytes


class Encoder(nn.Module):
    """Normalisation with fixed statistics, then the backbone: shared by all heads.

    Takes raw inputs, uint8 0…255 or float, so a model file is self-contained. A pre-trained
    backbone has images resized to its own size.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, backbone: nn.Module, mean: Tensor, std: Tensor, resize: Resize | None = None
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.resize = resize
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.is_frozen = False

    def freeze(self, frozen: bool) -> None:
        """Exclude the backbone from training, BatchNorm statistics included; or include it."""
        self.is_frozen = frozen
        self.backbone.requires_grad_(not frozen)

    def train(self, mode: bool = True) -> Self:
        """Set training mode; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.is_frozen:
            self.backbone.eval()
        return self

    def normalise(self, x: Tensor) -> Tensor:
        """Scale uint8 to 0…1, resize if need be, then standardise each channel or feature."""
        scaled = x.to(self.mean.dtype) / 255 if x.dtype == torch.uint8 else x
        if self.resize is not None:
            scaled = self.resize(scaled)
        return (scaled - self.mean) / self.std

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, width)."""
        features: Tensor = self.backbone(self.normalise(x))
        # Any convolutional module is welcome: average feature maps over space.
        return features.flatten(2).mean(2) if features.ndim > 2 else features

    def n_values(self, input_shape: InputShape) -> int:
        """Return how many values the backbone is given for an input of this shape."""
        return math.prod(input_shape if self.resize is None else (COLOURS, *self.resize.size))

    @property
    def saved(self) -> dict[str, Any] | None:
        """What `build_encoder` needs to build a pre-trained backbone again: plain values."""
        if self.resize is None:
            return None
        return {"size": list(self.resize.size), **getattr(self.backbone, "saved", {})}

    def features(self, x: Tensor, layers: int = 1) -> Tensor:
        """Return the features of the last one or two layers, those of `forward` as the last ones.

        Of the last only, if the backbone has no ``last_two``.
        """
        if self.width_before(layers):
            both: Tensor = self.backbone.last_two(self.normalise(x))  # type: ignore[operator]
            return both
        last: Tensor = self(x)
        return last

    def width_before(self, layers: int) -> int:
        """Return how many `features` precede those of the last layer."""
        offered = layers == 2 and hasattr(self.backbone, "last_two")
        return int(getattr(self.backbone, "width_before", 0)) if offered else 0


class Network(nn.Module):
    """An encoder and the head of a method on top of it."""

    encoder: Encoder
    head: Any  # each method has its own type
    snapshots: nn.ModuleList  # encoders of earlier tasks, where they predict, too

    def __init__(
        self, encoder: Encoder, head: nn.Module, snapshots: Iterable[Encoder] = ()
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.snapshots = nn.ModuleList(snapshots)

    def forward(self, x: Tensor) -> Any:
        """Return the outputs of the head."""
        return self.head(self.encoder(x))


class Frozen(Network):
    """The network before a task, in evaluation mode; it shares the network's weights.

    Parameters
    ----------
    network : Network
    bf16 : bool
        Whether it runs in bfloat16.
    """

    def __init__(self, network: Network, bf16: bool = False) -> None:
        super().__init__(network.encoder, network.head)
        self.eval()
        dtype = torch.bfloat16 if bf16 else torch.float32
        on_gpu = network.encoder.mean.is_cuda
        folded = fold(network.encoder.backbone, dtype) if on_gpu else None
        # In a tuple, it is not a submodule: its weights are copies of the backbone's.
        self._folded = (folded,) if folded else ()

    def features(self, x: Tensor) -> Tensor:
        """Return the features of x."""
        if self._folded:
            (backbone,) = self._folded
            folded: Tensor = backbone(self.encoder.normalise(x))
            return folded
        features: Tensor = self.encoder(x)
        return features

    def forward(self, x: Tensor) -> Any:
        """Return the outputs for x."""
        return self.head(self.features(x))


def on_device(device: torch.device, network: Network) -> Network:
    """Return the network on a device: itself, or a copy if it is on another."""
    here = network.encoder.mean.device
    return network if here == device else copy.deepcopy(network).to(device)


def check_input_shape(shape: InputShape) -> None:
    """Reject inputs that are neither vectors nor images, or too large."""
    if len(shape) not in (1, 3) or not all(type(side) is int and side > 0 for side in shape):
        raise ValueError(f"inputs cannot be of shape {shape}")
    if math.prod(shape) > MAX_INPUT:
        raise ValueError(
            f"inputs of shape {shape} have over {MAX_INPUT:,} values: bring them to a smaller size"
        )


def build_encoder(
    backbone: str | nn.Module | Factory,
    input_shape: InputShape,
    mean: Tensor | None = None,
    std: Tensor | None = None,
    saved: Mapping[str, Any] | None = None,
) -> tuple[Encoder, int]:
    """Build an encoder; return it and the width of its features.

    Parameters
    ----------
    backbone : str, nn.Module or callable
        As in `build`; a pre-trained one comes with its weights.
    input_shape : tuple of int
        (features,) or (channels, height, width).
    mean, std : Tensor, optional
        Of the inputs. A pre-trained backbone has its own.
    saved : mapping, optional
        `Encoder.saved` of a pre-trained backbone: it is built without its weights, and normalises
        as given.
    """
    check_input_shape(input_shape)
    if not is_pretrained(backbone):
        assert mean is not None
        assert std is not None
        encoder = Encoder(build(backbone, input_shape).cpu(), mean, std)
        return encoder, _probed_width(encoder, backbone, input_shape)
    refuse_vectors(backbone, input_shape)
    if saved is None:
        found = load_pretrained(backbone)
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (found.form.mean, found.form.std))
    else:
        found = rebuild(backbone, saved)
    assert mean is not None
    assert std is not None
    return Encoder(found.module, mean, std, Resize(input_shape, found.form.size)), found.width


def _probed_width(
    encoder: Encoder, backbone: str | nn.Module | Factory, input_shape: InputShape
) -> int:
    """Return the width of the features, found by a forward pass.

    For large inputs of our own backbones on the meta device, without memory. It imports torch's
    compiler, which takes a second or more.
    """
    on_meta = isinstance(backbone, str) and math.prod(input_shape) > LARGE_INPUT
    was_training, device = encoder.training, "meta" if on_meta else "cpu"
    shape = f"(batch, {', '.join(map(str, input_shape))})"
    try:
        with torch.no_grad():
            tried, x = encoder.eval(), torch.zeros(2, *input_shape, device=device)
            if on_meta:
                tried = copy.deepcopy(encoder).to(device)
            features = tried(x)
            both = tried.features(x, 2) if tried.width_before(2) else features
    except (RuntimeError, AttributeError, TypeError, IndexError) as error:
        raise ValueError(
            f"the backbone does not map inputs of shape {shape} to features of shape "
            f"(batch, width): {error}"
        ) from error
    encoder.train(was_training)
    if features.ndim != 2 or len(features) != 2:
        raise ValueError(
            f"the backbone must map {shape} to features of shape (batch, width), but a batch of 2 "
            f"gave {tuple(features.shape)}"
        )
    width, before = int(features.shape[1]), encoder.width_before(2)
    if both.shape != (2, before + width):  # now, not after training, when statistics are computed
        raise ValueError(
            f"the backbone's last_two must return {before} features (width_before) and then its "
            f"own {width}, but a batch of 2 gave {tuple(both.shape)}"
        )
    return width
