"""The manifest of a model folder: which versions it keeps, and the files of each."""

import re
import shlex
from pathlib import Path
from typing import Any

from lmrc.store.files import ModelFileError, as_json, checksum, is_tensor_file, read_json
from lmrc.store.upgrade import MODEL_FORMAT

FORMAT = "lmrc-model"
MANIFEST = "manifest.json"
UNFINISHED = "unfinished.json"  # a task that is being learnt, see `unfinished`

# Limits against forged manifests.
MAX_VERSIONS = 100
MAX_GROUPS = 20

#: A version as the manifest has it: number, time, note, description, files.
Version = dict[str, Any]

_GROUP = re.compile(r"[a-z]{1,30}")


def learn_command(folder: Path) -> str:
    """Return the command to continue with, for messages: paths may have spaces."""
    return f"lmrc learn {shlex.quote(str(folder))}"


def text_of(kept: list[Version]) -> bytes:
    """Return the text of a manifest with these versions."""
    return as_json({"format": FORMAT, "format_version": MODEL_FORMAT, "versions": kept})


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and verify the manifest of a model, but not what its versions describe.

    Raises `ModelFileError` if it is missing, damaged or malformed, or of a newer lmrc.
    """
    path = folder / MANIFEST
    try:
        manifest = read_json(path)
    except FileNotFoundError:
        if (folder / UNFINISHED).exists():
            command = learn_command(folder)
            hint = (
                f"its first task is unfinished, continue it with {command} --resume or --discard it"
            )
        else:
            hint = "there is no such folder" if not folder.exists() else f"it has no {MANIFEST}"
        raise ModelFileError(f"{folder} is not a model: {hint}") from None
    if manifest.get("format") != FORMAT:
        raise ModelFileError(f"{path} is not the manifest of an lmrc model")
    version = manifest.get("format_version")
    if not isinstance(version, int) or version < 1:
        raise ModelFileError(f"{path} has no valid format version, but {version!r}")
    if version > MODEL_FORMAT:
        raise ModelFileError(
            f"{folder} has format {version}, but this lmrc reads up to {MODEL_FORMAT}: upgrade lmrc"
        )
    kept = manifest.get("versions")
    if not isinstance(kept, list) or not kept:
        raise ModelFileError(f"{path} lists no version of the model")
    if len(kept) > MAX_VERSIONS:
        raise ModelFileError(f"{path} lists {len(kept)} versions, over {MAX_VERSIONS}")
    if manifest.get("sha256") != checksum(manifest):
        raise ModelFileError(f"{path} is damaged: its checksum does not match")
    for found in kept:
        _check_version(path, found)
    return manifest


def _check_version(path: Path, version: Any) -> None:
    kinds = {"number": int, "saved": str, "note": dict, "model": dict, "files": dict}
    if not isinstance(version, dict) or not all(
        isinstance(version.get(key), kind) for key, kind in kinds.items()
    ):
        raise ModelFileError(f"{path} lists malformed versions")
    if len(version["saved"]) > 100 or len(version["files"]) > MAX_GROUPS:
        raise ModelFileError(f"{path} lists a version with too long a date or too many files")
    for group, entry in version["files"].items():
        if not _GROUP.fullmatch(group) or not _is_entry(entry):
            raise ModelFileError(f"{path} names the file of {group!r:.50} in a malformed entry")


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and is_tensor_file(entry["name"])
        and isinstance(entry.get("bytes"), int)
    )
