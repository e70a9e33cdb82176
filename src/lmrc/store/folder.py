"""A model folder: tensors in safetensors files named by their content, and a manifest.

::

    pets.lmrc/
      manifest.json                        versions, and size and checksum of every file
      weights-<sha256>.safetensors
      backbone-<sha256>.safetensors
      labels-<sha256>.safetensors

Nothing is ever pickled, and a file never names code to import. New files are written and synced
first; the last act is the atomic replacement of the manifest, so a reader never sees half a model.
``docs/format.md`` describes it all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lmrc.lock import claimed, explain, holder
from lmrc.store.files import (
    DRAFT,
    LOCK,
    ModelFileError,
    Shapes,
    fits,
    is_tensor_file,
    read_json,
    read_shapes,
    read_tensors,
    write_atomically,
    write_tensors,
)
from lmrc.store.manifest import (
    MANIFEST,
    MAX_VERSIONS,
    UNFINISHED,
    Version,
    learn_command,
    read_manifest,
    text_of,
)
from lmrc.store.upgrade import upgraded

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MANIFEST", "ModelFileError", "Version", "learn_command", "read", "write"]

#: Named groups of named tensors; each group is one file.
TensorGroups = Mapping[str, Mapping[str, "Tensor"]]
#: The description and the tensors of a model.
Model = tuple[dict[str, Any], dict[str, dict[str, "Tensor"]]]
#: Builds a model from a description and tensors; raises ModelFileError if it cannot.
Check = Callable[[dict[str, Any], dict[str, dict[str, "Tensor"]]], object]

Content = TypeVar("Content")
#: Reads a file of a model, by its entry in the manifest.
Reader = Callable[[Path, Mapping[str, Any]], Content]


@contextlib.contextmanager
def writing(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Lock a model folder for writing; it is created if it does not exist.

    Raises `LockedError` if another process holds the lock, `ModelFileError` if the folder holds
    something else.
    """
    folder = Path(folder)
    refuse_foreign(folder)
    try:
        with claimed(folder / LOCK):
            _remove(folder, lambda name: name.startswith(DRAFT) and name != LOCK)
            yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # if it is empty


def write(
    folder: str | os.PathLike[str],
    description: Mapping[str, Any],
    tensors: TensorGroups,
    *,
    keep: int = 1,
    note: Mapping[str, Any] | None = None,
) -> None:
    """Write a model as the folder's newest version, in one atomic step.

    The caller holds the lock, by `writing`. An existing folder must be empty or a model.
    Description and note, for the log, are plain JSON values; names of groups of tensors are
    lower-case letters. `keep` versions are kept, this one included; fewer if the manifest would be
    too large to be read again.
    """
    folder = Path(folder)
    refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    before: list[Version] = []
    with contextlib.suppress(ModelFileError):  # an unreadable model is replaced
        before = versions(folder)
    with _new_files(folder):
        version = {
            "number": before[-1]["number"] + 1 if before else 1,
            "saved": datetime.now(UTC).isoformat(timespec="seconds"),
            "note": dict(note or {}),
            "model": dict(description),
            "files": _write_groups(folder, tensors),
        }
        _replace_manifest(folder, [*before, version][-min(keep, MAX_VERSIONS) :])


def read(folder: str | os.PathLike[str]) -> Model:
    """Read and verify a model: its description and its tensors.

    Raises `ModelFileError` if anything is missing or differs from what was written.
    """
    return _read_newest(Path(folder), read_tensors)


def outline(folder: Path) -> tuple[dict[str, Any], dict[str, Shapes]]:
    """Read and verify a model as `read` does, but shapes in place of tensors: takes no torch."""
    return _read_newest(folder, read_shapes)


def _read_newest(
    folder: Path, reader: Reader[Content]
) -> tuple[dict[str, Any], dict[str, Content]]:
    while True:
        manifest = read_manifest(folder)
        try:
            return _read_files(folder, manifest["versions"][-1], reader)
        except ModelFileError:
            # A writer may have replaced the model and removed the files we were about to read.
            if read_manifest(folder)["sha256"] == manifest["sha256"]:
                raise


def holds_model(folder: Path) -> bool:
    """Tell whether the folder holds a model, damaged or not."""
    return (folder / MANIFEST).exists()


def changing(folder: Path) -> str | None:
    """Return who holds the lock of `writing`, and since when; None if no one does."""
    return holder(folder / LOCK)


def explain_change(folder: Path, why: str) -> None:
    """Tell others that find the model locked by this process what it waits for."""
    explain(folder / LOCK, why)


def fingerprint(folder: Path) -> str | None:
    """Return a fingerprint of the model's current state; None if there is no model."""
    return str(read_manifest(folder)["sha256"]) if holds_model(folder) else None


def versions(folder: Path) -> list[Version]:
    """Return the versions that the folder keeps, oldest first."""
    found: list[Version] = read_manifest(folder)["versions"]
    return found


def size_of(kept: list[Version]) -> int:
    """Return how many bytes versions take; shared files count once."""
    entries = [entry for version in kept for entry in version["files"].values()]
    return sum({str(entry["name"]): int(entry["bytes"]) for entry in entries}.values())


def roll_back(folder: Path, check: Check) -> None:
    """Delete the newest version, if `check` accepts the one before it."""
    kept = versions(folder)
    if len(kept) < 2:
        raise ModelFileError(
            f"{folder} keeps no version before number {kept[-1]['number']}: there is none to go "
            "back to (lmrc learn --keep says how many are kept)"
        )
    check(*_read_files(folder, kept[-2], read_tensors))  # if it is broken, the newest stays
    _replace_manifest(folder, kept[:-1], frees_room=True)


def prune(folder: Path, keep: int, check: Check) -> int:
    """Delete all but the newest versions, if `check` accepts these; return how many."""
    before = versions(folder)
    kept = before[-keep:]
    for version in kept:
        _checked(folder, version, kept[-1], check)
    _replace_manifest(folder, kept, frees_room=True)
    return len(before) - len(kept)


def amend(folder: Path, change: Callable[[Model], Model | None]) -> None:
    """Change all versions in one atomic step; the caller holds the lock, by `writing`.

    `change` maps the description and tensors of a version to new ones; None deletes the version.
    The newest cannot be deleted.
    """
    amended, kept = [], versions(folder)
    with _new_files(folder):
        for version in kept:
            changed = _checked(folder, version, kept[-1], lambda *content: change(content))
            if changed is not None:
                description, tensors = changed
                files = _write_groups(folder, tensors)
                amended.append({**version, "model": description, "files": files})
        if not amended:
            raise ValueError("the newest version of a model cannot be dropped")
        _replace_manifest(folder, amended)


def remove_leftovers(folder: Path) -> None:
    """Remove files of a killed process: those that no version names.

    The caller has loaded the newest version: a forged manifest may name none of its files.
    """
    try:
        names = _file_names(versions(folder)) if holds_model(folder) else set()
        if (folder / UNFINISHED).exists():
            state = read_json(folder / UNFINISHED)["state"]
            names |= {UNFINISHED, *([state["name"]] if state else [])}
    except (ModelFileError, KeyError, TypeError, AttributeError):
        return  # damaged: reading it raises the error; nothing is deleted before
    _remove_all_but(folder, names)


def _checked(folder: Path, version: Version, newest: Version, check: Callable[..., Any]) -> Any:
    """Read a version and return the result of `check`."""
    try:
        return check(*_read_files(folder, version, read_tensors))
    except ModelFileError as error:
        if version is newest:
            raise
        earlier = "an earlier version, which lmrc prune removes, cannot be read"
        raise ModelFileError(f"{earlier}: {error}") from error


@contextlib.contextmanager
def _new_files(folder: Path) -> Iterator[None]:
    """Delete the tensors that were written if an error follows."""
    before = {path.name for path in folder.iterdir()}
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError, ModelFileError):
            # The manifest may have been replaced before something failed.
            kept = before | (_file_names(versions(folder)) if holds_model(folder) else set())
            _remove(folder, lambda name: is_tensor_file(name) and name not in kept)
        raise


def _write_groups(folder: Path, tensors: TensorGroups) -> dict[str, dict[str, Any]]:
    return {group: write_tensors(folder, group, members) for group, members in tensors.items()}


def _replace_manifest(folder: Path, kept: list[Version], *, frees_room: bool = False) -> None:
    """Make the folder hold these versions and no other file of lmrc.

    With ``frees_room``, files are deleted first if the disk has no room for the new manifest.
    """
    text = text_of(kept)
    while len(kept) > 1 and not fits(text):
        kept = kept[1:]
        text = text_of(kept)
    if not fits(text):
        raise ModelFileError(f"{folder} cannot be written: its description is too large")
    names = _file_names(kept)

    def make_room() -> None:
        _remove(folder, lambda name: is_tensor_file(name) and name not in names)

    write_atomically(folder / MANIFEST, text, make_room if frees_room else None)
    (folder / UNFINISHED).unlink(missing_ok=True)  # it belonged to the old manifest
    _remove_all_but(folder, names)


def _file_names(kept: list[Version]) -> set[str]:
    return {entry["name"] for version in kept for entry in version["files"].values()}


def _remove_all_but(folder: Path, names: set[str]) -> None:
    _remove(folder, lambda name: _is_ours(name) and name not in names | {MANIFEST, LOCK})


def _remove(folder: Path, unwanted: Callable[[str], bool]) -> None:
    for path in folder.iterdir():
        if unwanted(path.name):
            path.unlink(missing_ok=True)


def _read_files(
    folder: Path, version: Version, reader: Reader[Content]
) -> tuple[dict[str, Any], dict[str, Content]]:
    try:
        entries = dict(version["files"])
        content = {group: reader(folder, entry) for group, entry in entries.items()}
        return upgraded(dict(version["model"]), content)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{folder / MANIFEST} does not describe a model: {error!r}") from error


def refuse_foreign(folder: Path) -> None:
    """Refuse to write into a folder of something else."""
    if folder.exists() and not folder.is_dir():
        raise ModelFileError(f"{folder} is a file: a model is a folder, choose another name")
    if folder.is_dir() and any(folder.iterdir()) and not holds_model(folder):
        unknown = [p.name for p in folder.iterdir() if not _is_ours(p.name)]
        if unknown:
            raise ModelFileError(
                f"{folder} holds other files ({unknown[0]}, …) and no model: choose another folder"
            )


def _is_ours(name: str) -> bool:
    return name in (MANIFEST, UNFINISHED) or is_tensor_file(name) or name.startswith(DRAFT)
