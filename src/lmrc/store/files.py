"""The files of a model folder: written whole or not at all, and checked when they are read.

Torch is imported where there are tensors: to list versions takes none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from safetensors import SafetensorError, deserialize

from lmrc.text import shorten

if TYPE_CHECKING:
    from torch import Tensor

DRAFT = ".lmrc-"  # prefix of unfinished files, and of the lock
LOCK = f"{DRAFT}lock"
# Limits of a JSON file, checked before parsing: a small file may take much memory and time.
MAX_BYTES = 16 * 2**20
MAX_VALUES = 500_000
MAX_DEPTH = 20
MAX_MESSAGE = 400  # characters of an error, which may quote a forged file

#: The shape of each tensor in a file, and its size in bytes.
Shapes = dict[str, tuple[tuple[int, ...], int]]

_NAME = re.compile(r"[a-z]+-([0-9a-f]{64})\.safetensors")
_BINARY = getattr(os, "O_BINARY", 0)  # Windows would change line ends


class ModelFileError(ValueError):
    """A model folder cannot be read: missing, damaged, or from a newer lmrc."""

    def __init__(self, message: str) -> None:
        super().__init__(shorten(" ".join(message.split()), MAX_MESSAGE))


def is_full(error: OSError) -> bool:
    """Tell whether the disk had no room for a file."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


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
    if not is_tensor_file(name):  # the group may come from a forged manifest
        raise ModelFileError(f"{group!r:.200} cannot be the name of a file of a model")
    if not _holds(folder / name, content):
        write_atomically(folder / name, content)
    return {"name": name, "sha256": digest, "bytes": len(content)}


def _holds(path: Path, content: bytes) -> bool:
    """Tell whether a file is there with this content: an earlier version may share it."""
    try:
        with _regular_file(path) as (file, size):
            return size == len(content) and file.read() == content
    except (OSError, ModelFileError):
        return False


def read_tensors(folder: Path, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read and verify what `write_tensors` wrote.

    Raises `ModelFileError` if the file is missing or differs from its entry, or the entry is none.
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
        raise ModelFileError(f"{folder} has a malformed file entry: {entry!r:.200}") from error
    match = _NAME.fullmatch(name)
    if not match or match[1] != digest:
        raise ModelFileError(f"{folder} names {name!r:.200}, which is no file of a model")
    path = folder / name
    try:
        with _regular_file(path) as (file, found):
            if found != size:
                raise ModelFileError(f"{path} is damaged: {found} bytes, not {size}")
            content = file.read(found)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise ModelFileError(f"{path} is damaged: its checksum does not match")
    return content


def as_json(content: dict[str, Any]) -> bytes:
    """Return a JSON object with a checksum of itself, as the text of a file."""
    sealed = {**content, "sha256": checksum(content)}
    return json.dumps(sealed).encode()  # an indent would take ten times as long


def fits(text: bytes) -> bool:
    """Tell whether a JSON text is within the limits, without parsing it."""
    n_values = text.count(b",") + text.count(b"[") + text.count(b"{")  # or a few more, in strings
    return len(text) <= MAX_BYTES and n_values <= MAX_VALUES


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object with a checksum of itself."""
    write_atomically(path, as_json(content))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; the checksum is not verified. FileNotFoundError if there is no file."""
    try:
        with _regular_file(path) as (file, _):
            text = file.read(MAX_BYTES + 1)
        if not fits(text):
            raise ModelFileError(f"{path} is too large to be a file of lmrc's")
        content = json.loads(text)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} is damaged: it holds no JSON object")
    if _is_deep(content):
        raise ModelFileError(f"{path} is nested too deep to be a file of lmrc's")
    return content


def _is_deep(content: Any) -> bool:
    level = [content]
    for _ in range(MAX_DEPTH):
        parts = [value.values() if isinstance(value, dict) else value for value in level]
        level = [value for part in parts for value in part if isinstance(value, (dict, list))]
        if not level:
            return False
    return True


def checksum(content: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON object without the checksum in it."""
    body = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def write_atomically(
    path: Path, content: bytes, make_room: Callable[[], None] | None = None
) -> None:
    """Write, sync and rename: the file is there whole or not at all.

    `make_room` is called once when the disk is full, before writing continues.
    """
    temporary = path.with_name(f"{DRAFT}{secrets.token_hex(8)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)
        try:
            rest = memoryview(content)
            while len(rest):
                try:
                    rest = rest[os.write(handle, rest) :]
                except OSError as error:
                    if make_room is None or not is_full(error):
                        raise
                    make_room()
                    make_room = None
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno:
            error.filename = str(path)  # a full disk gives none, and users do not know the draft's
        raise
    _sync_folder(path.parent)


@contextlib.contextmanager
def _regular_file(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """Open a regular file to read; yield it and its size. A pipe is rejected, without blocking."""

    def open_it(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    with open(path, "rb", opener=open_it) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path} is not a file")
        yield file, status.st_size


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
