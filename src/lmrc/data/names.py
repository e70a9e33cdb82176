"""Many file names in little memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from lmrc.data.images import walk_images


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
