"""Weights for a backbone, and the normalisation they were trained with, from a safetensors file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from lmrc.nets.network import Encoder

OWN_PREFIX = "encoder.backbone."  # as in the model files of lmrc
OWN_NORMALISATION = ("encoder.mean", "encoder.std")
#: ImageNet's mean and deviation per channel, as for torchvision's weights.
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_MAX_NAMED = 3  # names in a message
_STEM = (
    "Up to 64 pixels a side, a ResNet here has a 3×3 stem; for weights with the usual 7×7 one, "
    "use larger images, such as of 224 pixels."
)


def load_encoder(encoder: Encoder, path: str | os.PathLike[str]) -> None:
    """Load all weights of a backbone, and the normalisation of inputs that they expect, in place.

    From a safetensors file with the backbone's own names: those of torchvision for its ResNets
    (whose classifier ``fc`` is left out), or the ``weights-….safetensors`` of another model
    (``backbone-….safetensors`` if that was frozen). If the file is of a model of lmrc, inputs are
    normalised as there; else colour images as ImageNet's, and other inputs as before.

    Raises `ValueError` if the file cannot be read, or a weight is missing or of another shape: says
    which.
    """
    with _understood(path):
        tensors = load_file(path)
    backbone, normalisation = encoder.backbone, _normalisation(tensors, encoder)
    if any(name.startswith(OWN_PREFIX) for name in tensors):
        own = (name for name in tensors if name.startswith(OWN_PREFIX))
        tensors = {name.removeprefix(OWN_PREFIX): tensors[name] for name in own}
    wanted = backbone.state_dict()
    # A counter of BatchNorm that older files lack and that has no effect here.
    missing = [n for n in wanted if n not in tensors and not n.endswith("num_batches_tracked")]
    odd = [n for n in wanted if n in tensors and tensors[n].shape != wanted[n].shape]
    strange = [n for n in tensors if n not in wanted and not n.startswith("fc.")]
    if missing or odd or strange:
        problems = [
            *(f"{n} is missing" for n in missing[:_MAX_NAMED]),
            *(f"{n} is {_shape(tensors[n])}, not {_shape(wanted[n])}" for n in odd[:_MAX_NAMED]),
            *(f"{n} has no place" for n in strange[:_MAX_NAMED]),
        ]
        more = len(missing) + len(odd) + len(strange) - len(problems)
        problems += [f"and {more} more"] if more else []
        raise ValueError(
            f"the weights in {Path(path)} do not fit the backbone: {', '.join(problems)}."
            + (_stem(tensors[odd[0]], wanted[odd[0]]) if odd == ["conv1.weight"] else "")
        )
    fitting = {n: t for n, t in tensors.items() if n in wanted}
    backbone.load_state_dict(fitting, strict=False)
    encoder.mean, encoder.std = normalisation


def channels_of(path: str | os.PathLike[str]) -> int | None:
    """Return the input channels of weights; None if they have no ``conv1``.

    Raises `ValueError` if the file cannot be read.
    """
    with _understood(path), safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118  # it is not a dict
            if name.removeprefix(OWN_PREFIX) == "conv1.weight":
                return int(file.get_slice(name).get_shape()[1])
    return None


@contextmanager
def _understood(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"{Path(path)} cannot be read as a safetensors file: {error} (docs/tutorial.md shows "
            "how to make one of a .pth file)"
        ) from error


def _normalisation(tensors: dict[str, Tensor], encoder: Encoder) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of the normalisation that the weights of a file expect."""
    own = [tensors[name] for name in OWN_NORMALISATION if name in tensors]
    if len(own) == 2 and all(t.shape == encoder.mean.shape for t in own):
        return own[0], own[1]
    if encoder.mean.shape == (3, 1, 1):
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in IMAGENET)
        return mean, std
    return encoder.mean, encoder.std


def _stem(given: Tensor, wanted: Tensor) -> str:
    """Return why only the first convolution does not fit."""
    if given.shape[1] != wanted.shape[1]:
        return f" They are for images of {given.shape[1]} channel(s), not of {wanted.shape[1]}."
    return f" {_STEM}"


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"
