"""The checkpoint of a task in training: the request, and the state of training.

It is ``unfinished.json`` in the model's folder, which names a file with the tensors of the state.
It is valid only for the manifest that the task started from: the manifest with the finished task
invalidates it, wherever a crash happens.
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

_OF_STATE = ("records", "seconds", "members", "epochs", "adaptation")  # useless without tensors
#: What `write` stores: plain values, and tensors.
Checkpoint = tuple[dict[str, Any], dict[str, "Tensor"]]


def write(folder: Path, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a checkpoint in place of the last one, into a folder that is locked by `writing`.

    The content is plain JSON values; tensors are empty before the first epoch has ended.
    """
    state = files.write_tensors(folder, GROUP, tensors) if tensors else None
    head = {"format_version": FORMAT_VERSION, "model": fingerprint(folder), "state": state}
    files.write_json(folder / UNFINISHED, {**head, "content": dict(content)})
    _remove_states(folder, but=state["name"] if state else None)


def read(folder: Path) -> Checkpoint | None:
    """Return the checkpoint of an unfinished task; None if there is none.

    Raises `ModelFileError` if it is damaged, or of another version of lmrc.
    """
    if (found := _read_json(folder)) is None:
        return None
    content, state = found
    return content, files.read_tensors(folder, state) if state else {}


def _read_json(folder: Path) -> tuple[dict[str, Any], Any] | None:
    """Return the plain values, and the entry of the file with the tensors."""
    path = folder / UNFINISHED
    try:
        found = files.read_json(path)
    except FileNotFoundError:
        return None
    if found.get("format_version") != FORMAT_VERSION:
        raise ModelFileError(
            f"{path} is from another version of lmrc: resume with that, or delete it with --discard"
        )
    if found.get("sha256") != files.checksum(found):
        raise ModelFileError(f"{path} is damaged: delete it with --discard and learn again")
    if found.get("model") != fingerprint(folder):
        return None  # the task is finished, and a crash came before this file was deleted
    content, state = found.get("content"), found.get("state")
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} holds no checkpoint: delete it with --discard")
    return content, state


def is_there(folder: Path) -> bool:
    """Tell whether a task is unfinished; a damaged checkpoint counts as one."""
    try:
        return _read_json(folder) is not None
    except ModelFileError:
        return True


def has_progress(folder: Path) -> bool:
    """Tell whether there is a checkpoint that holds more than the request, or a damaged one."""
    try:
        found = _read_json(folder)
    except ModelFileError:
        return True
    return found is not None and found[1] is not None


def refuse(folder: Path) -> None:
    """Refuse to change a model while a task is unfinished: its checkpoint would be lost."""
    if has_progress(folder):
        command = learn_command(folder)
        raise ModelFileError(
            f"a task of {folder} is unfinished: continue it with {command} --resume, or discard "
            "it with --discard"
        )


def drop_state(folder: Path) -> None:
    """Delete the tensors to free disk space: the task restarts with its first epoch."""
    try:
        content = files.read_json(folder / UNFINISHED)["content"]
        write(folder, {k: v for k, v in content.items() if k not in _OF_STATE}, {})
    except (OSError, ModelFileError, KeyError, AttributeError):  # not even room for that
        discard(folder)


def discard(folder: Path) -> None:
    """Delete the checkpoint of the unfinished task."""
    (folder / UNFINISHED).unlink(missing_ok=True)
    _remove_states(folder)


def _remove_states(folder: Path, but: str | None = None) -> None:
    for path in folder.glob(f"{GROUP}-*"):
        if files.is_tensor_file(path.name) and path.name != but:
            path.unlink(missing_ok=True)
