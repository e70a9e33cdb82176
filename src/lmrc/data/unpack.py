"""Compressed files of a data set, read with a limit on their unpacked size.

A few megabytes of gzip can hold gigabytes of zeros: unpacked bytes are counted, and the sizes in a
header are checked before memory is allocated.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

#: Errors of damaged or forged archives, apart from OSError and ValueError.
UNPACKING_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)

#: Highest ratio of unpacked to compressed size, for files above this many unpacked bytes.
MAX_RATIO, MIN_LIMIT = 20, 2**27

_TAR_BLOCK = 512  # bytes
_CHUNK = 2**20
_GZIP = b"\x1f\x8b"


class Unpacked:
    """A file to read from its beginning to its end, unpacked if it is gzip.

    Parameters
    ----------
    path : Path
        A file, and neither a pipe nor a device.
    max_bytes : int
        Limit of its unpacked size; lower for a small file.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        if not path.is_file():
            raise ValueError("it is not a file")
        self._left = self.max_bytes = min(
            max_bytes, max(MIN_LIMIT, MAX_RATIO * path.stat().st_size)
        )
        with path.open("rb") as file:
            is_packed = file.read(2) == _GZIP
        opened = gzip.GzipFile if is_packed else io.FileIO
        self._file = io.BufferedReader(opened(path))

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def read(self, n: int) -> NDArray[np.uint8]:
        """Return the next n bytes; raise an EOFError if there are fewer."""
        self._take(n)
        content = np.empty(n, np.uint8)  # memory is committed as it is filled
        done = 0
        while done < n:
            found = self._file.readinto(content[done : done + _CHUNK].data)
            if not found:
                raise EOFError("it ends too early")
            done += found
        return content

    def skip(self, n: int) -> None:
        """Skip n bytes."""
        self._take(n)
        while n > 0 and (found := len(self._file.read(min(n, _CHUNK)))):
            n -= found

    def ends(self) -> bool:
        """Tell whether the file ends here."""
        return not self._file.read(1)

    def _take(self, n: int) -> None:
        self._left -= n
        if n < 0 or self._left < 0:
            raise ValueError(f"it unpacks to more than {self.max_bytes:,} bytes")


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a file of at most ``max_bytes``."""
    if not path.is_file() or path.stat().st_size > max_bytes:
        raise ValueError(f"it is not a file of {max_bytes:,} bytes at most")
    return path.read_bytes()


def read_tar(path: Path, names: Collection[str], max_bytes: int) -> dict[str, bytes]:
    """Return the content of the files of these names in a tar, compressed by gzip or not.

    Links, other names and extended headers (PAX, GNU) are skipped: the names are short enough for
    plain headers.

    Parameters
    ----------
    path : Path
        The archive.
    names : collection of str
        All must be there.
    max_bytes : int
        Limit of the unpacked size of the whole archive.
    """
    found: dict[str, bytes] = {}
    with Unpacked(path, max_bytes) as file:
        while len(found) < len(names):
            block = file.read(_TAR_BLOCK).tobytes()
            if not any(block):
                break
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            name, padding = member.name.removeprefix("./"), -member.size % _TAR_BLOCK
            if name in names and member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                found[name] = file.read(member.size).tobytes()
                file.skip(padding)
            else:
                file.skip(max(member.size, 0) + padding)
    if missing := sorted(set(names) - found.keys()):
        raise ValueError(f"it has no {' and no '.join(missing)}")
    return found
