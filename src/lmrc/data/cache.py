"""Public data sets, decoded once and kept as memory-mapped arrays.

::

    <cache folder>/decoded/
      cifar100-<fingerprint of its source files>/
        X_train.npy  y_train.npy  X_test.npy  y_test.npy  class_names.json

An entry is written under another name and renamed when it is whole: a reader never sees half of
one. The writer holds a lock, so that no other process decodes the same, and what a killed one has
left is recognised and removed.
"""

import hashlib
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lmrc.cache_folder import CACHE_VARIABLE, cache_folder
from lmrc.data.dataset import Dataset
from lmrc.lock import locked

FORMAT_VERSION = 1  # raise it when the same source is decoded into other arrays

_NAMES = "class_names.json"
_HALF_WRITTEN = ".half-written-"
_OURS = f"{_HALF_WRITTEN}{hashlib.sha256(platform.node().encode()).hexdigest()[:8]}-"
_A_DAY = 24 * 3600.0


def cached_dataset(name: str, sources: Iterable[Path], decode: Callable[[Path], None]) -> Dataset:
    """Return a data set from the cache; decode its sources first if they are new or changed.

    A change of a source's path, size or time counts. `decode` writes ``X_train.npy``,
    ``y_train.npy``, ``X_test.npy``, ``y_test.npy`` into an empty folder and, if need be, calls
    `save_class_names`. Images are memory-mapped.
    """
    sources = list(sources)
    folder = cache_folder() / "decoded"
    entry = folder / f"{name}-{_fingerprint(sources)}"
    try:
        return _open(entry, name)
    except (OSError, ValueError, EOFError):
        pass  # missing; or damaged, and then decoded again
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("ab") as file, locked(file) as is_locked:
            if is_locked:
                _remove_leftovers(folder)
            return _decoded(entry, name, decode)
    except OSError as error:
        if error.filename and Path(error.filename) in sources:  # that is not the cache's fault
            raise
        raise OSError(
            f"cannot keep the decoded images of {name} in {folder}: {error}. Make room there, or "
            f"name another folder with the environment variable {CACHE_VARIABLE}."
        ) from error


def _decoded(entry: Path, name: str, decode: Callable[[Path], None]) -> Dataset:
    try:
        return _open(entry, name)  # another process has decoded it in the meantime
    except (OSError, ValueError, EOFError):
        shutil.rmtree(entry, ignore_errors=True)
    half_written = entry.with_name(f"{_OURS}{secrets.token_hex(8)}")
    half_written.mkdir()
    try:
        decode(half_written)
        for path in half_written.iterdir():
            with path.open("r+b") as file:
                os.fsync(file.fileno())
        try:
            half_written.rename(entry)
        except OSError:
            if not entry.exists():  # else one that no lock held back was faster, with the same
                raise
    finally:  # unless it was renamed
        shutil.rmtree(half_written, ignore_errors=True)
    return _open(entry, name)


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left; of other machines, which locks may not reach, old ones."""
    for left in folder.glob(f"{_HALF_WRITTEN}*"):
        with suppress(OSError):
            if left.name.startswith(_OURS) or time.time() - left.stat().st_mtime > _A_DAY:
                shutil.rmtree(left, ignore_errors=True)


def save_images(path: Path, shape: tuple[int, ...], images: Iterable[NDArray[np.uint8]]) -> None:
    """Write images into a .npy file, some at a time, for sets that need not fit into memory.

    `shape` is that of the whole array.
    """
    with path.open("wb") as file:  # not memory-mapped: a full disk would kill the process
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(file, header)
        for image in images:
            file.write(image.tobytes())


def save_class_names(folder: Path, names: Mapping[Any, str]) -> None:
    """Write what classes are called; the labels may be ints or strings."""
    (folder / _NAMES).write_text(json.dumps(list(names.items())), encoding="utf-8")


def _open(entry: Path, name: str) -> Dataset:
    X_train, X_test = (
        np.load(entry / f"X_{part}.npy", mmap_mode="r") for part in ("train", "test")
    )
    y_train, y_test = (np.load(entry / f"y_{part}.npy") for part in ("train", "test"))
    names = entry / _NAMES
    class_names = dict(json.loads(names.read_text(encoding="utf-8"))) if names.exists() else {}
    return Dataset(name, X_train, y_train, X_test, y_test, class_names)


def _fingerprint(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256(f"lmrc {FORMAT_VERSION}".encode())
    for path in sorted((path.absolute() for path in sources), key=lambda path: path.parts):
        status = path.stat()
        digest.update(f"\0{path}\0{status.st_size}\0{status.st_mtime_ns}".encode())
    return digest.hexdigest()[:32]
