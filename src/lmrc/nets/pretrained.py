"""Weights for a backbone, from a safetensors file."""

from __future__ import annotations

import os
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

OWN_PREFIX = "trunk.backbone."  # as in the model files of lmrc
_NAMED = 3  # so many names does a message give
_STEM = (
    "Up to 64 pixels a side, a ResNet here has a 3×3 stem; for weights with the usual 7×7 one, "
    "use larger images, such as of 224 pixels."
)


def load_backbone(backbone: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load the weights of a backbone, all of them.

    Parameters
    ----------
    backbone : nn.Module
        Changed in place.
    path : path
        A safetensors file with the backbone's own names: those of torchvision for its ResNets
        (whose classifier ``fc`` is left out), or the ``weights-….safetensors`` of another model.

    Raises
    ------
    ValueError
        If the file is none, or a weight is missing in it or of another shape: says which.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{Path(path)} cannot be read as a safetensors file: {error}") from error
    if any(name.startswith(OWN_PREFIX) for name in tensors):
        own = (name for name in tensors if name.startswith(OWN_PREFIX))
        tensors = {name.removeprefix(OWN_PREFIX): tensors[name] for name in own}
    wanted = backbone.state_dict()
    # A counter of BatchNorm's that older files lack and that decides nothing here.
    missing = [n for n in wanted if n not in tensors and not n.endswith("num_batches_tracked")]
    odd = [n for n in wanted if n in tensors and tensors[n].shape != wanted[n].shape]
    strange = [n for n in tensors if n not in wanted and not n.startswith("fc.")]
    if missing or odd or strange:
        problems = [
            *(f"{n} is missing" for n in missing[:_NAMED]),
            *(f"{n} is {_shape(tensors[n])}, not {_shape(wanted[n])}" for n in odd[:_NAMED]),
            *(f"{n} has no place" for n in strange[:_NAMED]),
        ]
        more = len(missing) + len(odd) + len(strange) - len(problems)
        problems += [f"and {more} more"] if more else []
        raise ValueError(
            f"the weights in {Path(path)} do not fit the backbone: {', '.join(problems)}."
            + (f" {_STEM}" if odd == ["conv1.weight"] else "")
        )
    fitting = {n: t for n, t in tensors.items() if n in wanted}
    backbone.load_state_dict(fitting, strict=False)


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a scalar"
