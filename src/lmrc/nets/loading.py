"""Pre-trained backbones, by name: their network, weights, input size and normalisation."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn

from lmrc.nets import ecosystem
from lmrc.nets.ecosystem import Form, split_name
from lmrc.nets.efficientnet import EfficientNetLite
from lmrc.nets.packaged import MEAN, STD, packaged, read_weights, weights_file
from lmrc.nets.resize import COLOURS
from lmrc.nets.side_by_side import SideBySide

MAX_SIDE = 2048  # pixels: a model file with more is forged


class Pretrained(NamedTuple):
    """A pre-trained backbone, the number of its features, and what it expects of images."""

    module: nn.Module
    width: int
    form: Form


def is_pretrained(backbone: object) -> TypeGuard[str]:
    """Tell whether it is the name of a backbone that comes with weights."""
    return packaged(backbone) is not None or split_name(backbone) is not None


def own_size(backbone: object) -> tuple[int, int] | None:
    """Return the height and width of a pre-trained backbone's inputs; None for others."""
    if other := split_name(backbone):
        return ecosystem.expected_form(*other).size
    found = packaged(backbone)
    return (found[1], found[1]) if found else None


def check_available(backbone: object) -> None:
    """Refuse a pre-trained backbone whose package is missing, before images are read."""
    if other := split_name(backbone):
        ecosystem.check_installed(other[0])
    if found := packaged(backbone):
        weights_file(found[0])


def load_pretrained(name: str) -> Pretrained:
    """Return a backbone with its pre-trained weights."""
    if other := split_name(name):
        form = ecosystem.expected_form(*other)
        return Pretrained(*ecosystem.load(*other), form)
    variant, side = packaged(name) or ("", 0)
    with torch.device("meta"):  # without the time and the random numbers of initial weights
        network = EfficientNetLite(variant)
    network.load_state_dict(read_weights(variant), assign=True)
    form = Form((side, side), (MEAN,) * COLOURS, (STD,) * COLOURS)
    return Pretrained(network, network.width, form)


def rebuild(name: str, saved: Mapping[str, Any]) -> Pretrained:
    """Return the backbone of a model file without its weights; the file has its normalisation."""
    form = Form(_checked_size(saved["size"]), (), ())
    network, width = _without_weights(name, saved)
    if saved.get("side_by_side") is not True:
        return Pretrained(network, width, form)
    pretrained, _ = _without_weights(name, saved)
    return Pretrained(SideBySide(network, pretrained), 2 * width, form)


def _without_weights(name: str, saved: Mapping[str, Any]) -> tuple[nn.Module, int]:
    if other := split_name(name):
        return ecosystem.rebuild(*other, saved)
    variant, _ = packaged(name) or ("", 0)
    return EfficientNetLite(variant), EfficientNetLite.width


def _checked_size(size: Any) -> tuple[int, int]:
    if (
        type(size) is not list
        or len(size) != 2
        or not all(type(side) is int and 0 < side <= MAX_SIDE for side in size)
    ):
        raise ValueError(f"its backbone's input size is no height and width: {size!r:.50}")
    return size[0], size[1]
