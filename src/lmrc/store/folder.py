"""A model folder: tensors in safetensors files named by their content, and a manifest.

::

    pets.lmrc/
      manifest.json                        description, and size and checksum of every file
      weights-<sha256>.safetensors
      labels-<sha256>.safetensors

Nothing is ever pickled, and a file never names code to import. New files are written and synced
first; the last act is the atomic replacement of the manifest, so a reader never sees half a model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

FORMAT = "lmrc-model"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST = 256 * 2**20  # a manifest is text; anything larger is not one

#: Named groups of named tensors; each group is one file.
TensorGroups = Mapping[str, Mapping[str, Tensor]]

_FILE_NAME = re.compile(r"[a-z]+-([0-9a-f]{64})\.safetensors")


class ModelFileError(ValueError):
    """A model folder cannot be read: missing, damaged, or from a newer lmrc."""


def write(
    folder: str | os.PathLike[str], description: Mapping[str, Any], tensors: TensorGroups
) -> None:
    """Write a model; what was in the folder before is replaced, in one atomic step.

    Parameters
    ----------
    folder : path
        Made where it does not exist. An existing one must be empty or a model.
    description : mapping
        Plain JSON values.
    tensors : mapping of mappings
        Groups of tensors; group names are lower-case letters.
    """
    folder = Path(folder)
    _refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Any]] = {}
    for group, members in tensors.items():
        # Clones: safetensors refuses tensors that share memory or are not contiguous.
        content = tensors_to_bytes({name: _plain(t) for name, t in members.items()})
        digest = hashlib.sha256(content).hexdigest()
        name = f"{group}-{digest}.safetensors"
        _write_atomically(folder / name, content)
        files[group] = {"name": name, "sha256": digest, "bytes": len(content)}
    version = {
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": dict(description),
        "files": files,
    }
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "versions": [version]}
    manifest["sha256"] = _checksum(manifest)
    _write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    _remove_unnamed(folder, {entry["name"] for entry in files.values()})


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """Read and verify a model: its description and its tensors.

    Raises
    ------
    ModelFileError
        If anything is missing or differs from what was written.
    """
    folder = Path(folder)
    version = _read_manifest(folder)["versions"][-1]
    try:
        entries = dict(version["files"])
        tensors = {group: _read_group(folder, entry) for group, entry in entries.items()}
        return dict(version["model"]), tensors
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{folder / MANIFEST} does not describe a model: {error!r}") from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST:
            raise ModelFileError(f"{path} is too large to be a manifest")
        manifest = json.loads(path.read_bytes())
    except FileNotFoundError:
        hint = "there is no such folder" if not folder.exists() else f"it has no {MANIFEST}"
        raise ModelFileError(f"{folder} is not a model: {hint}") from None
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path} cannot be read: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not the manifest of an lmrc model")
    version = manifest.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{path} has no valid format version, but {version!r}")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{folder} has format {version}, but this lmrc reads up to {FORMAT_VERSION}: "
            "upgrade lmrc"
        )
    if manifest.get("sha256") != _checksum(manifest):
        raise ModelFileError(f"{path} is damaged: its checksum does not match")
    if not isinstance(manifest.get("versions"), list) or not manifest["versions"]:
        raise ModelFileError(f"{path} lists no version of the model")
    return manifest


def _read_group(folder: Path, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    name, size = entry["name"], entry["bytes"]
    match = _FILE_NAME.fullmatch(name)
    if not match or match[1] != entry["sha256"]:
        raise ModelFileError(f"{folder / MANIFEST} names {name!r}, which is no file of a model")
    path = folder / name
    try:
        if path.stat().st_size != size:
            raise ModelFileError(f"{path} is damaged: {path.stat().st_size} bytes, not {size}")
        content = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != match[1]:
        raise ModelFileError(f"{path} is damaged: its checksum does not match")
    try:
        return dict(tensors_from_bytes(content))
    except (SafetensorError, KeyError) as error:
        raise ModelFileError(f"{path} does not hold tensors: {error}") from error


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _checksum(manifest: Mapping[str, Any]) -> str:
    body = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _refuse_foreign(folder: Path) -> None:
    """Never write into something that is not ours."""
    if folder.exists() and not folder.is_dir():
        raise ModelFileError(f"{folder} is a file: a model is a folder, choose another name")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        unknown = [p.name for p in folder.iterdir() if not _is_ours(p.name)]
        if unknown:
            raise ModelFileError(
                f"{folder} holds other files ({unknown[0]}, …) and no model: choose another folder"
            )


def _is_ours(name: str) -> bool:
    return name == MANIFEST or bool(_FILE_NAME.fullmatch(name)) or name.startswith(".lmrc-")


def _write_atomically(path: Path, content: bytes) -> None:
    """Write, sync and rename: the file is there whole or not at all."""
    temporary = path.with_name(f".lmrc-{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable (POSIX; elsewhere folders cannot be opened)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_unnamed(folder: Path, names: set[str]) -> None:
    """Remove what no version refers to: files of earlier saves, leftovers of a crash."""
    for path in folder.iterdir():
        if _is_ours(path.name) and path.name not in names | {MANIFEST}:
            path.unlink(missing_ok=True)
