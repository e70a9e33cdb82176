"""Images that do not fit into memory: they stay files, and are decoded when they are needed."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lmrc.data.images import Mode, Pixels, UnreadableImageError, read_image
from lmrc.data.progress import progress

SHARE = 0.5  # of the memory at hand that decoded images may take
AT_ONCE = 1024  # images from which on worker processes decode them
MOST_WORKERS = 8

T = TypeVar("T")


def memory_at_hand() -> float:
    """Return how many bytes a program may still take, by the system and by its container."""
    found = []
    for path, start in (("/proc/meminfo", "MemAvailable:"), ("/sys/fs/cgroup/memory.max", "")):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            number = line.removeprefix(start).split()[0]
            if line.startswith(start) and number.isdecimal():
                found.append(int(number) * (1024 if start else 1))
    return min(found, default=float("inf"))


def n_workers(most: int = MOST_WORKERS) -> int:
    """Return how many processes decode images for this one."""
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes that have workers, too
    # Those that this process may use; not every system can tell.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(most, (cores or 1) // beside))


def in_workers(read: Callable[[int], T], n: int, most: int = MOST_WORKERS) -> Iterator[T]:
    """Yield ``read(0)`` … ``read(n - 1)`` in order; of many, from worker processes.

    Not from threads: of a small JPEG, most of the work holds Python's global lock.

    Parameters
    ----------
    read : callable
        Can be pickled, and raises nothing: errors are to be returned.
    n : int
    most : int, default=8
        Processes, where the machine has as many cores.
    """
    if n < AT_ONCE or get_worker_info() is not None:  # a worker has none of its own
        yield from map(read, range(n))
        return
    loader = DataLoader(
        _Read(read, n),
        batch_size=AT_ONCE // 16,
        num_workers=n_workers(most),
        collate_fn=list,
        generator=torch.Generator(),  # its own: the user's is left alone
    )
    for items in loader:
        yield from items


class _Read(Dataset[Any]):
    """A `Dataset` of what a function returns for 0 … n − 1."""

    def __init__(self, read: Callable[[int], Any], n: int) -> None:
        self.read, self.n = read, n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> Any:
        return self.read(i)


class ImageFiles:
    """Image files as an array of pixels, of which a part is decoded where it is asked for.

    ``X[rows]`` is such an array again; ``np.asarray(X[rows])`` has the pixels.

    Parameters
    ----------
    parts : sequence of sequence of Path
        The files, one part after another.
    size : (height, width)
        To which images are brought.
    mode : {"RGB", "L"}
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, parts: Sequence[Sequence[Path]], size: tuple[int, int], mode: Mode) -> None:
        self.parts, self.size, self.mode = list(parts), size, mode
        self.ends = list(accumulate(len(part) for part in self.parts))
        self.rows: NDArray[np.int64] = np.arange(self.ends[-1] if self.ends else 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of an array."""
        return (len(self.rows), *self.size, *((3,) if self.mode == "RGB" else ()))

    @property
    def ndim(self) -> int:
        """As of an array."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """What the pixels would take."""
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
        """Go through the pixels, n images at a time, with one set of workers for all."""
        images = self._decoded()
        while part := list(islice(images, n)):
            for image in part:
                if isinstance(image, UnreadableImageError):
                    raise image
            yield np.stack(part)  # type: ignore[arg-type]  # what is no image was raised

    def path(self, i: int) -> Path:
        """Return where an image is."""
        row = int(self.rows[i])
        part = bisect.bisect_right(self.ends, row)
        return self.parts[part][row - self.ends[part]]

    def read(self, i: int) -> Pixels | UnreadableImageError:
        """Decode one image; where that cannot be done, return why."""
        try:
            return read_image(self.path(i), self.size, self.mode)
        except UnreadableImageError as error:
            return error

    def readable(self, skipped: list[UnreadableImageError]) -> NDArray[np.bool_]:
        """Decode each image once; say which could be, and add to `skipped` why others could not."""
        good = np.ones(len(self), dtype=bool)
        for i, image in enumerate(progress(self._decoded(), "checking images", len(self))):
            if isinstance(image, UnreadableImageError):
                good[i] = False
                skipped.append(image)
        return good

    def _decoded(self) -> Iterator[Pixels | UnreadableImageError]:
        """Decode all images in order."""
        return in_workers(self.read, len(self))


class Streamed:
    """Inputs on disk in the place of a tensor (n, channels, height, width): indexing decodes.

    Parameters
    ----------
    files : ImageFiles
    pool : Tensor, optional
        Samples in memory that come after them.
    """

    dtype = torch.uint8

    def __init__(self, files: ImageFiles, pool: Tensor | None = None) -> None:
        self.files = files
        height, width = files.size
        sample = (3 if files.mode == "RGB" else 1, height, width)
        self.pool = torch.empty((0, *sample), dtype=self.dtype) if pool is None else pool
        self.shape = torch.Size((len(files) + len(self.pool), *sample))
        self.ndim = 4

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        """As of a tensor."""
        return self.shape.numel()

    def joined(self, pool: Tensor) -> Streamed:
        """Return these inputs with some in memory after them."""
        if pool.dtype != self.dtype:
            raise ValueError(
                f"images on disk are bytes, and those in the pool {pool.dtype}: images in files "
                "that do not fit into memory cannot join a pool of floats"
            )
        return Streamed(self.files, torch.cat([self.pool, pool]))

    def taken(self, chosen: Tensor) -> Streamed | Tensor:
        """Return the inputs at which a mask holds, on disk still; a tensor where none is there."""
        on_disk, in_pool = torch.split(chosen, [len(self.files), len(self.pool)])
        pool = self.pool[in_pool]
        return Streamed(self.files[on_disk.numpy()], pool) if on_disk.any() else pool

    def split_at(self, n: int) -> tuple[Streamed | Tensor, Streamed | Tensor]:
        """Return the first n inputs and the others, as `taken` does."""
        first = torch.arange(len(self)) < n
        return self.taken(first), self.taken(~first)

    def chunks(self, n: int) -> Iterator[Tensor]:
        """Go through all inputs, n at a time at most."""
        for pixels in self.files.chunks(n):
            yield _as_inputs(pixels)
        if len(self.pool):
            yield from torch.split(self.pool, n)

    def __getitem__(self, rows: Any) -> Tensor:
        wanted = np.arange(len(self))[np.asarray(rows) if isinstance(rows, Tensor) else rows]
        on_disk = wanted < len(self.files)
        out = torch.empty((len(wanted), *self.shape[1:]), dtype=self.dtype)
        out[torch.from_numpy(on_disk)] = _as_inputs(np.asarray(self.files[wanted[on_disk]]))
        out[torch.from_numpy(~on_disk)] = self.pool[wanted[~on_disk] - len(self.files)]
        return out


def _as_inputs(pixels: NDArray[np.uint8]) -> Tensor:
    images = torch.from_numpy(pixels)
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
