"""A model folder: tensors in safetensors files named by their content, and a manifest.

::

    pets.lmrc/
      manifest.json                        versions, and size and checksum of every file
      weights-<sha256>.safetensors
      labels-<sha256>.safetensors

Nothing is ever pickled, and a file never names code to import. New files are written and synced
first; the last act is the atomic replacement of the manifest, so a reader never sees half a model.
``docs/format.md`` describes it all.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lmrc.store.files import (
    DRAFT,
    LOCK,
    ModelFileError,
    Shapes,
    checksum,
    is_tensor_file,
    read_json,
    read_shapes,
    read_tensors,
    write_json,
    write_tensors,
)
from lmrc.store.lock import claimed, holder

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MANIFEST", "ModelFileError", "read", "write"]

FORMAT = "lmrc-model"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"  # a class batch that is being learnt, see `unfinished`

#: Named groups of named tensors; each group is one file.
TensorGroups = Mapping[str, Mapping[str, "Tensor"]]
#: The description and the tensors of a model.
Model = tuple[dict[str, Any], dict[str, dict[str, "Tensor"]]]
#: A version as the manifest has it: number, time, note, description, files.
Version = dict[str, Any]

Content = TypeVar("Content")
#: What reads a file of a model, by its entry in the manifest.
Reader = Callable[[Path, Mapping[str, Any]], Content]


@contextlib.contextmanager
def writing(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Be the only one to write in a model folder, which is made where it does not exist.

    Raises
    ------
    LockedError
        If another process is at it.
    ModelFileError
        If the folder holds something else.
    """
    folder = Path(folder)
    _refuse_foreign(folder)
    try:
        with claimed(folder / LOCK):
            _remove_leftovers(folder)
            yield folder
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()  # if nothing came of it; a folder with anything in it stays


def write(
    folder: str | os.PathLike[str],
    description: Mapping[str, Any],
    tensors: TensorGroups,
    *,
    keep: int = 1,
    note: Mapping[str, Any] | None = None,
) -> None:
    """Write a model as the folder's newest version, in one atomic step.

    Whoever calls it holds the folder by `writing`.

    Parameters
    ----------
    folder : path
        Made where it does not exist. An existing one must be empty or a model.
    description : mapping
        Plain JSON values.
    tensors : mapping of mappings
        Groups of tensors; group names are lower-case letters.
    keep : int, default=1
        Versions to keep, this one counted in; the data of older ones is gone.
    note : mapping, optional
        What the log says about this version. Plain JSON values.
    """
    folder = Path(folder)
    _refuse_foreign(folder)
    folder.mkdir(parents=True, exist_ok=True)
    before: list[Version] = []
    with contextlib.suppress(ModelFileError):  # what cannot be read is replaced
        before = versions(folder)
    version = {
        "number": before[-1]["number"] + 1 if before else 1,
        "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        "note": dict(note or {}),
        "model": dict(description),
        "files": _write_groups(folder, tensors),
    }
    _replace_manifest(folder, [*before, version][-keep:])


def read(folder: str | os.PathLike[str]) -> Model:
    """Read and verify a model: its description and its tensors.

    Raises
    ------
    ModelFileError
        If anything is missing or differs from what was written.
    """
    return _read_newest(Path(folder), read_tensors)


def outline(folder: Path) -> tuple[dict[str, Any], dict[str, Shapes]]:
    """Read and verify a model as `read` does, but shapes in place of tensors: takes no torch."""
    return _read_newest(folder, read_shapes)


def _read_newest(
    folder: Path, reader: Reader[Content]
) -> tuple[dict[str, Any], dict[str, Content]]:
    while True:
        manifest = _read_manifest(folder)
        try:
            return _read_files(folder, manifest["versions"][-1], reader)
        except ModelFileError:
            # A writer may have replaced the model and removed the files we were about to read.
            if _read_manifest(folder)["sha256"] == manifest["sha256"]:
                raise


def learn_command(folder: Path) -> str:
    """Return the command that a user goes on with, for messages: paths may have spaces."""
    return f"lmrc learn {shlex.quote(str(folder))}"


def holds_model(folder: Path) -> bool:
    """Tell whether there is a model in the folder, be it damaged."""
    return (folder / MANIFEST).exists()


def changing(folder: Path) -> str | None:
    """Say who holds the folder by `writing` now, and since when; None where no one does."""
    return holder(folder / LOCK)


def fingerprint(folder: Path) -> str | None:
    """Return what tells this state of the model from all others; None where there is no model."""
    return str(_read_manifest(folder)["sha256"]) if holds_model(folder) else None


def versions(folder: Path) -> list[Version]:
    """Return the versions that the folder keeps, oldest first."""
    found: list[Version] = _read_manifest(folder)["versions"]
    if not all(map(_is_version, found)):
        raise ModelFileError(f"{folder / MANIFEST} lists versions that are none")
    return found


def _is_version(version: Any) -> bool:
    kinds = {"number": int, "saved": str, "note": dict, "model": dict, "files": dict}
    return (
        isinstance(version, dict)
        and all(isinstance(version.get(key), kind) for key, kind in kinds.items())
        and all(
            isinstance(entry, dict)
            and isinstance(entry.get("name"), str)
            and isinstance(entry.get("bytes"), int)
            for entry in version["files"].values()
        )
    )


def size(folder: Path) -> int:
    """Return how many bytes the newest version takes."""
    return _size_of(versions(folder)[-1:])


def size_of_all(folder: Path) -> int:
    """Return how many bytes all versions take: what they share is there once."""
    return _size_of(versions(folder))


def _size_of(kept: list[Version]) -> int:
    entries = [entry for version in kept for entry in version["files"].values()]
    return sum({str(entry["name"]): int(entry["bytes"]) for entry in entries}.values())


def roll_back(folder: Path) -> None:
    """Go back to the version before the newest, whose data is gone then."""
    kept = versions(folder)
    if len(kept) < 2:
        raise ModelFileError(
            f"{folder} keeps no version before number {kept[-1]['number']}: there is none to go "
            "back to (lmrc learn --keep says how many are kept)"
        )
    _read_version(folder, kept[-2])  # if it is damaged, the newest is all there is: keep it
    _replace_manifest(folder, kept[:-1])


def prune(folder: Path, keep: int) -> int:
    """Remove all but the newest versions; return how many are gone."""
    before = versions(folder)
    _replace_manifest(folder, before[-keep:])
    return max(0, len(before) - keep)


def amend(folder: Path, change: Callable[[Model], Model | None]) -> None:
    """Change every version that is kept, in one atomic step.

    Parameters
    ----------
    folder : Path
        A model, held by `writing`.
    change : callable
        Maps the description and the tensors of a version to what they shall be; None drops it.
        The newest cannot be dropped.
    """
    amended = []
    kept = versions(folder)
    for version in kept:
        try:
            content = _read_version(folder, version)
        except ModelFileError as error:
            if version is kept[-1]:
                raise
            earlier = "an earlier version, which lmrc prune removes, cannot be read"
            raise ModelFileError(f"{earlier}: {error}") from error
        changed = change(content)
        if changed is not None:
            description, tensors = changed
            files = _write_groups(folder, tensors)
            amended.append({**version, "model": description, "files": files})
    if not amended:
        raise ValueError("the newest version of a model cannot be dropped")
    _replace_manifest(folder, amended)


def _write_groups(folder: Path, tensors: TensorGroups) -> dict[str, dict[str, Any]]:
    return {group: write_tensors(folder, group, members) for group, members in tensors.items()}


def _replace_manifest(folder: Path, kept: list[Version]) -> None:
    """Let the folder hold these versions and nothing else of ours."""
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, "versions": kept}
    write_json(folder / MANIFEST, manifest)
    (folder / UNFINISHED).unlink(missing_ok=True)  # it belonged to the manifest before
    _remove_all_but(folder, _file_names(kept))


def _file_names(kept: list[Version]) -> set[str]:
    return {entry["name"] for version in kept for entry in version["files"].values()}


def _remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left: drafts, and files of versions that are no more."""
    try:
        names = _file_names(versions(folder)) if holds_model(folder) else set()
        if (folder / UNFINISHED).exists():
            state = read_json(folder / UNFINISHED)["state"]
            names |= {UNFINISHED, *([state["name"]] if state else [])}
    except (ModelFileError, KeyError, TypeError, AttributeError):
        return  # damaged: who reads it will say so, and nothing is lost before
    _remove_all_but(folder, names)


def _remove_all_but(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if _is_ours(path.name) and path.name not in names | {MANIFEST, LOCK}:
            path.unlink(missing_ok=True)


def _read_version(folder: Path, version: Version) -> Model:
    return _read_files(folder, version, read_tensors)


def _read_files(
    folder: Path, version: Version, reader: Reader[Content]
) -> tuple[dict[str, Any], dict[str, Content]]:
    try:
        entries = dict(version["files"])
        content = {group: reader(folder, entry) for group, entry in entries.items()}
        return dict(version["model"]), content
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{folder / MANIFEST} does not describe a model: {error!r}") from error


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = read_json(path)
    except FileNotFoundError:
        if (folder / UNFINISHED).exists():
            command = learn_command(folder)
            hint = f"its first class batch is not finished, go on with {command} --resume"
        else:
            hint = "there is no such folder" if not folder.exists() else f"it has no {MANIFEST}"
        raise ModelFileError(f"{folder} is not a model: {hint}") from None
    if manifest.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not the manifest of an lmrc model")
    version = manifest.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{path} has no valid format version, but {version!r}")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"{folder} has format {version}, but this lmrc reads up to {FORMAT_VERSION}: "
            "upgrade lmrc"
        )
    if manifest.get("sha256") != checksum(manifest):
        raise ModelFileError(f"{path} is damaged: its checksum does not match")
    if not isinstance(manifest.get("versions"), list) or not manifest["versions"]:
        raise ModelFileError(f"{path} lists no version of the model")
    return manifest


def _refuse_foreign(folder: Path) -> None:
    """Never write into something that is not ours."""
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
