"""The files of a model folder: written whole or not at all, and checked when they are read.

Torch is imported where there are tensors: to list versions takes none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, deserialize

if TYPE_CHECKING:
    from torch import Tensor

DRAFT = ".lmrc-"  # how the names of files begin that are not finished, and that of the lock
LOCK = f"{DRAFT}lock"
MAX_JSON = 256 * 2**20  # bytes; our JSON files are text, anything larger is none of them

#: The shape of each tensor in a file, and its size in bytes.
Shapes = dict[str, tuple[tuple[int, ...], int]]

_NAME = re.compile(r"[a-z]+-([0-9a-f]{64})\.safetensors")


class ModelFileError(ValueError):
    """A model folder cannot be read: missing, damaged, or from a newer lmrc."""


def is_tensor_file(name: str) -> bool:
    """Tell whether a file name is one that `write_tensors` gives."""
    return bool(_NAME.fullmatch(name))


def write_tensors(folder: Path, group: str, members: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write named tensors into a file named by its content; return its entry in a manifest."""
    from safetensors.torch import save as tensors_to_bytes

    # Clones: safetensors refuses tensors that share memory or are not contiguous.
    content = tensors_to_bytes({name: _plain(t) for name, t in members.items()})
    digest = hashlib.sha256(content).hexdigest()
    name = f"{group}-{digest}.safetensors"
    if not is_tensor_file(name):  # the group may come from a manifest that someone made up
        raise ModelFileError(f"{group!r:.200} cannot be the name of a file of a model")
    write_atomically(folder / name, content)
    return {"name": name, "sha256": digest, "bytes": len(content)}


def read_tensors(folder: Path, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read and verify what `write_tensors` wrote.

    Raises
    ------
    ModelFileError
        If the file is missing or differs from its entry, or the entry is none.
    """
    content = _verified(folder, entry)
    from safetensors.torch import load as tensors_from_bytes

    with _holding_tensors(folder, entry):
        return dict(tensors_from_bytes(content))


def read_shapes(folder: Path, entry: Mapping[str, Any]) -> Shapes:
    """Read and verify a file as `read_tensors` does, but return shapes alone: takes no torch."""
    content = _verified(folder, entry)
    with _holding_tensors(folder, entry):
        found = deserialize(content)  # type: ignore[no-untyped-call]
        return {name: (tuple(t["shape"]), len(t["data"])) for name, t in found}


@contextlib.contextmanager
def _holding_tensors(folder: Path, entry: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, KeyError) as error:
        path = folder / entry["name"]
        raise ModelFileError(f"{path} does not hold tensors: {error}") from error


def _verified(folder: Path, entry: Mapping[str, Any]) -> bytes:
    """Return the content of a file, which is as its entry says."""
    try:
        name, size, digest = str(entry["name"]), entry["bytes"], entry["sha256"]
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{folder} names a file in no way of ours: {entry!r:.200}") from error
    match = _NAME.fullmatch(name)
    if not match or match[1] != digest:
        raise ModelFileError(f"{folder} names {name!r:.200}, which is no file of a model")
    path = folder / name
    try:
        found = _size(path)
        if found != size:
            raise ModelFileError(f"{path} is damaged: {found} bytes, not {size}")
        content = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise ModelFileError(f"{path} is damaged: its checksum does not match")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with a checksum of itself."""
    sealed = {**content, "sha256": checksum(content)}
    write_atomically(path, json.dumps(sealed, indent=1).encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, its checksum not yet verified; that its file is there is up to you."""
    try:
        if _size(path) > MAX_JSON:
            raise ModelFileError(f"{path} is too large to be a file of ours")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} is damaged: it holds no JSON object")
    return content


def checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON object without the checksum in it."""
    body = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """Write, sync and rename: the file is there whole or not at all."""
    temporary = path.with_name(f"{DRAFT}{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno:
            error.filename = str(path)  # which a full disk does not say, and drafts are no name
        raise
    _sync_folder(path.parent)


def _size(path: Path) -> int:
    """Return the size of a file; what is none (a pipe, say) would be waited for in vain."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError(f"{path} is not a file")
    return status.st_size


def _plain(tensor: Tensor) -> Tensor:
    import torch

    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable (POSIX; elsewhere folders cannot be opened)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
