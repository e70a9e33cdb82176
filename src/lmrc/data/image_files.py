"""Images that do not fit into memory: they stay on disk and are decoded when needed."""

from __future__ import annotations

import bisect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, islice
from multiprocessing import get_all_start_methods
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, get_worker_info

from lmrc.data.images import (
    ImageFile,
    Mode,
    Pixels,
    Size,
    UnreadableImageError,
    read_image,
    walk_images,
)

MEMORY_SHARE = 0.5  # of the available memory that decoded images may take
AT_ONCE = 1024  # images from which on worker processes decode them
MAX_WORKERS, MAX_DECODERS = 8, 32  # processes: beside training, and before it
BATCH = 64  # images that a worker hands over at once
#: Whether worker processes are forks; else they import the user's script once more, which may not
#: expect it.
FORKS = get_all_start_methods()[0] == "fork"

T = TypeVar("T")


def n_processes() -> int:
    """Return how many processes of one command share this machine, each with the data set."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # as torchrun says it


def available_memory() -> float:
    """Return how many bytes the system and the container still allow this process."""
    left = [1024 * size for size in _sizes("/proc/meminfo", "MemAvailable:")]
    container = "/sys/fs/cgroup/memory"
    for limit in _sizes(f"{container}.max"):
        freed = sum(_sizes(f"{container}.stat", "active_file", "inactive_file"))  # if need be
        left.append(max(0, limit + freed - sum(_sizes(f"{container}.current"))))
    return min(left, default=float("inf")) / n_processes()


def _sizes(path: str, *names: str) -> list[int]:
    """Return the numbers in a file of the system: those with these names, or that of the file."""
    try:
        lines = [line.split() for line in Path(path).read_text().splitlines()]
    except OSError:  # not every system has it
        return []
    if names:
        lines = [line[1:] for line in lines if line[0] in names]
    return [int(line[0]) for line in lines if line[0].isdecimal()]


def n_workers(max_workers: int = MAX_WORKERS) -> int:
    """Return how many processes decode images for this one."""
    return max(1, min(max_workers, n_cores() // n_processes()))


def n_cores() -> int:
    """Return how many cores this process may use: in a container, fewer than there are."""
    if hasattr(os, "sched_getaffinity"):  # not every system can tell
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_workers(read: Callable[[int], T], n: int) -> Iterator[T]:
    """Yield ``read(0)`` … ``read(n - 1)`` in order; many are read by worker processes.

    Not by threads: most of the work for a small JPEG holds Python's global lock. `read` can be
    pickled, and returns errors instead of raising them.
    """
    if n < AT_ONCE or get_worker_info() is not None:  # a worker starts no others
        yield from map(read, range(n))
        return
    loader: DataLoader[Any] = DataLoader(
        range(n),  # type: ignore[arg-type]  # any sequence will do
        batch_size=BATCH,
        num_workers=n_workers(MAX_DECODERS),
        collate_fn=partial(_read_all, read),
        generator=torch.Generator(),  # the user's is not touched
    )
    for items in loader:
        yield from items


def _read_all(read: Callable[[int], T], rows: list[int]) -> list[T]:
    return [read(row) for row in rows]


def progress(items: Iterable[T], title: str, total: int) -> Iterator[T]:
    """Pass items on; on a terminal, and nowhere else, show how many have passed."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, title, total=total, console=Console(stderr=True), transient=True)


def read_or_error(path: ImageFile, size: Size, mode: Mode) -> Pixels | UnreadableImageError:
    """Decode an image; return the error if that fails."""
    try:
        return read_image(path, size, mode)
    except UnreadableImageError as error:
        return error


class ImageFiles:
    """Image files, in several lists, as an array of pixels of one size, decoded when they are read.

    ``X[rows]`` is such an array again; ``np.asarray(X[rows])`` has the pixels.
    """

    dtype = np.dtype(np.uint8)

    def __init__(
        self, parts: Sequence[Sequence[ImageFile]], size: tuple[int, int], mode: Mode
    ) -> None:
        self.parts, self.size, self.mode = list(parts), size, mode
        self.ends = list(accumulate(len(part) for part in self.parts))
        self.rows: NDArray[np.int64] = np.arange(self.ends[-1] if self.ends else 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """As for an array."""
        return (len(self.rows), *self.size, *((3,) if self.mode == "RGB" else ()))

    @property
    def ndim(self) -> int:
        """As for an array."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that all pixels would take."""
        return int(np.prod(self.shape))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any) -> ImageFiles:
        part = object.__new__(ImageFiles)
        part.__dict__ = {**self.__dict__, "rows": self.rows[rows]}
        return part

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        pixels, done = np.empty(self.shape, dtype=np.uint8), 0
        for part in self.chunks(AT_ONCE):
            pixels[done : done + len(part)] = part
            done += len(part)
        return pixels.astype(dtype or np.uint8, copy=False)

    def chunks(self, n: int) -> Iterator[NDArray[np.uint8]]:
        """Iterate over the pixels, n images at a time, with one set of workers."""
        images = self._decoded()
        while part := list(islice(images, n)):
            for image in part:
                if isinstance(image, UnreadableImageError):
                    raise image
            yield np.stack(part)  # type: ignore[arg-type]  # errors were raised

    def path(self, i: int) -> ImageFile:
        """Return the path of an image."""
        row = int(self.rows[i])
        part = bisect.bisect_right(self.ends, row)
        return self.parts[part][row - self.ends[part]]

    def read(self, i: int) -> Pixels | UnreadableImageError:
        """Decode one image; return the error if that fails."""
        return read_or_error(self.path(i), self.size, self.mode)

    def readable(self, skipped: list[UnreadableImageError]) -> NDArray[np.bool_]:
        """Decode each image once; return which are readable, and add the errors to `skipped`."""
        good = np.ones(len(self), dtype=bool)
        for i, image in enumerate(progress(self._decoded(), "checking images", len(self))):
            if isinstance(image, UnreadableImageError):
                good[i] = False
                skipped.append(image)
        return good

    def _decoded(self) -> Iterator[Pixels | UnreadableImageError]:
        """Decode all images in order."""
        return in_workers(self.read, len(self))


class Names(Sequence[Path]):
    """Image files under a folder, as a sequence of paths, stored as two arrays.

    A `Path` takes some hundred bytes more than its name, and each worker process would soon have
    its own copy of a list of them. `names` are relative to the folder; by default those that
    `walk_images` finds, in its order.
    """

    def __init__(self, folder: str | os.PathLike[str], names: Iterable[str] | None = None) -> None:
        self.folder = os.fspath(folder)
        text, ends = bytearray(), []
        for name in walk_images(folder) if names is None else names:
            text += os.fsencode(name)
            ends.append(len(text))
        self._text = bytes(text)
        self._ends = np.array([0, *ends])
        self._rows: NDArray[np.int64] = np.arange(len(ends))

    def take(self, rows: Any) -> Names:
        """Return the names at these positions: a slice, indices or a mask."""
        part = object.__new__(Names)
        part.__dict__ = {**self.__dict__, "_rows": self._rows[rows]}
        return part

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> Names: ...
    def __getitem__(self, index: int | slice) -> Path | Names:
        if isinstance(index, slice):
            return self.take(index)
        row = self._rows[index]
        name = self._text[self._ends[row] : self._ends[row + 1]]
        return Path(self.folder, os.fsdecode(name))

    def __iter__(self) -> Iterator[Path]:
        return (self[i] for i in range(len(self)))
