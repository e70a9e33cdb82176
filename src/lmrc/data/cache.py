"""Public data sets, decoded once and kept as memory-mapped arrays.

::

    <cache folder>/decoded/
      cifar100-<fingerprint of its source files>/
        X_train.npy  y_train.npy  X_test.npy  y_test.npy  class_names.json

An entry is written under another name, synced, and renamed when it is whole: a reader never sees
half of one, and of two processes that decode at the same time, one wins and both continue. The
writer holds a lock on the folder, so leftovers of a killed process are recognised and removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from lmrc.cache_folder import CACHE_VARIABLE, cache_folder
from lmrc.data.dataset import Dataset

FORMAT_VERSION = 1  # raise it when the same source is decoded into other arrays

_NAMES = "class_names.json"
_HALF_WRITTEN = ".half-written-"
_OURS = (
    f"{_HALF_WRITTEN}{hashlib.sha256(platform.node().encode()).hexdigest()[:8]}-"  # of this machine
)
_A_DAY = 24 * 3600.0


def cached_dataset(name: str, sources: Iterable[Path], decode: Callable[[Path], None]) -> Dataset:
    """Return a data set from the cache; decode its sources first if they are new or changed.

    Parameters
    ----------
    name : str
        Of the data set.
    sources : iterable of Path
        All files it is decoded from. A change of path, size or time counts as a new source.
    decode : callable
        Given an empty folder, writes ``X_train.npy``, ``y_train.npy``, ``X_test.npy``,
        ``y_test.npy`` into it and, if need be, calls `save_class_names`.

    Returns
    -------
    Dataset
        With memory-mapped, read-only images.
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
        _remove_leftovers(folder)
        if entry.exists():
            damaged = entry.rename(_unused_name(folder))
            shutil.rmtree(damaged, ignore_errors=True)
        _write(entry, decode)
    except OSError as error:
        if error.filename and Path(error.filename) in sources:  # that is not the cache's fault
            raise
        raise OSError(
            f"cannot keep the decoded images of {name} in {folder}: {error}. Make room there, or "
            f"name another folder with the environment variable {CACHE_VARIABLE}."
        ) from error
    return _open(entry, name)


def save_images(path: Path, shape: tuple[int, ...], images: Iterable[NDArray[np.uint8]]) -> None:
    """Write images one after another into a .npy file, for sets that need not fit into memory.

    Parameters
    ----------
    path : Path
        The file.
    shape : tuple of int
        Of the whole array; its first length must be the number of images.
    images : iterable of ndarray
        Each of shape ``shape[1:]``, or several at once.
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


def _unused_name(folder: Path) -> Path:
    return folder / f"{_OURS}{secrets.token_hex(8)}"


def _write(entry: Path, decode: Callable[[Path], None]) -> None:
    with _half_written(entry.parent) as half_written:
        decode(half_written)
        for path in half_written.iterdir():
            _sync(path)
        _sync(half_written)
        try:
            half_written.rename(entry)
        except OSError:
            if not entry.exists():  # else another process was faster, with the same result
                raise
    _sync(entry.parent)


@contextlib.contextmanager
def _half_written(folder: Path) -> Iterator[Path]:
    """Create a folder, hold its lock, and remove it at the end."""
    with contextlib.ExitStack() as held:
        while True:
            path = _unused_name(folder)
            path.mkdir()
            held.enter_context(_lock(path, wait=True))
            if path.exists():  # else a cleanup had the lock first
                break
        try:
            yield path
        finally:  # unless it was renamed
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _lock(folder: Path, *, wait: bool = False) -> Iterator[bool | None]:
    """Hold the lock of a folder, which ends with the process; yield whether it was acquired.

    None where there are no locks: on Windows, and on some network drives.
    """
    try:
        import fcntl
    except ImportError:
        yield None
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            has_lock: bool | None = True
        except BlockingIOError:
            has_lock = False
        except OSError:
            has_lock = None
        yield has_lock
    finally:
        os.close(handle)


def _sync(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that the renaming cannot overtake it."""
    if path.is_file():
        with path.open("r+b") as file:
            os.fsync(file.fileno())
    elif os.name == "posix":  # elsewhere folders cannot be opened
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left: its lock is free.

    Locks may not work across machines: there, only what is a day old is removed.
    """
    for path in folder.glob(f"{_HALF_WRITTEN}*"):
        with contextlib.suppress(OSError), _lock(path) as is_free:
            is_old = time.time() - path.stat().st_mtime > _A_DAY
            if is_free if path.name.startswith(_OURS) and is_free is not None else is_old:
                shutil.rmtree(path, ignore_errors=True)
