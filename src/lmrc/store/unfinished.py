"""A task in training: the request, and the state after the last checkpoint.

It is ``unfinished.json`` in the model's folder, which names a file with the tensors of the state.
It belongs to the state of the model that it started from: the manifest that ends the task makes it
void, wherever a crash happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmrc.store import files
from lmrc.store.files import ModelFileError
from lmrc.store.folder import fingerprint
from lmrc.store.manifest import UNFINISHED, learn_command

if TYPE_CHECKING:
    from torch import Tensor

GROUP = "training"
FORMAT_VERSION = 2

#: What `write` stores: plain values, and tensors.
Kept = tuple[dict[str, Any], dict[str, "Tensor"]]


def write(folder: Path, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Store what an interrupted task needs to resume, replacing what was stored before.

    Parameters
    ----------
    folder : Path
        Of the model, locked by `writing`.
    content : mapping
        Plain JSON values.
    tensors : mapping
        None before the first epoch has ended.
    """
    state = files.write_tensors(folder, GROUP, tensors) if tensors else None
    head = {"format_version": FORMAT_VERSION, "model": fingerprint(folder), "state": state}
    files.write_json(folder / UNFINISHED, {**head, "content": dict(content)})
    _remove_states(folder, but=state["name"] if state else None)


def read(folder: Path) -> Kept | None:
    """Return what `write` stored; None if nothing is unfinished.

    Raises
    ------
    ModelFileError
        If it is damaged, or of a newer lmrc.
    """
    if (kept := _read_record(folder)) is None:
        return None
    content, state = kept
    return content, files.read_tensors(folder, state) if state else {}


def _read_record(folder: Path) -> tuple[dict[str, Any], Any] | None:
    """Return the request, and the entry of the state's file."""
    path = folder / UNFINISHED
    try:
        kept = files.read_json(path)
    except FileNotFoundError:
        return None
    if kept.get("format_version") != FORMAT_VERSION:
        raise ModelFileError(f"{path} is of another lmrc: go on with that, or --discard it")
    if kept.get("sha256") != files.checksum(kept):
        raise ModelFileError(f"{path} is damaged: --discard it and learn the task anew")
    if kept.get("model") != fingerprint(folder):
        return None  # the task has ended, and a crash kept this file from being deleted
    content, state = kept.get("content"), kept.get("state")
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} does not say what is unfinished: --discard it")
    return content, state


def is_there(folder: Path) -> bool:
    """Tell whether a task is unfinished; a damaged record counts as one."""
    try:
        return _read_record(folder) is not None
    except ModelFileError:
        return True


def refuse(folder: Path) -> None:
    """Refuse to change a model while a task is unfinished, as it would be lost."""
    if is_there(folder):
        command = learn_command(folder)
        raise ModelFileError(
            f"a task of {folder} is unfinished: go on with it ({command} --resume) or drop "
            f"it ({command} --discard) first"
        )


def drop_state(folder: Path) -> None:
    """Delete the state to free room: the unfinished task restarts with its first epoch."""
    try:
        content = files.read_json(folder / UNFINISHED)["content"]
        write(folder, {k: v for k, v in content.items() if k not in ("records", "seconds")}, {})
    except (OSError, ModelFileError, KeyError, AttributeError):  # no room even for that
        discard(folder)


def discard(folder: Path) -> None:
    """Delete the unfinished task."""
    (folder / UNFINISHED).unlink(missing_ok=True)
    _remove_states(folder)


def _remove_states(folder: Path, but: str | None = None) -> None:
    for path in folder.glob(f"{GROUP}-*"):
        if files.is_tensor_file(path.name) and path.name != but:
            path.unlink(missing_ok=True)
