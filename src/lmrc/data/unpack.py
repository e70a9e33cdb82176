"""Files of a data set, unpacked while they are read, and no further than they may honestly go.

A few megabytes of gzip hold gigabytes of zeros. So what is unpacked is counted, and what a file
says of its size is checked before memory is taken for it.
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

#: What reading a damaged or a forged archive raises, beside OSError and ValueError.
UNPACKING_ERRORS = (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError)

#: So many times its own size a packed file of images may unpack to, and so many bytes always.
RATIO, ALWAYS = 20, 2**27

_BLOCK = 512  # bytes, of which a tar is made
_CHUNK = 2**20
_GZIP = b"\x1f\x8b"


class Unpacked:
    """A file to read from its beginning to its end, unpacked if it is gzip.

    Parameters
    ----------
    path : Path
        A file, and neither a pipe nor a device.
    most : int
        Bytes that may come of it at most; of a small file, fewer.
    """

    def __init__(self, path: Path, most: int) -> None:
        if not path.is_file():
            raise ValueError("it is not a file")
        self._left = self.most = min(most, max(ALWAYS, RATIO * path.stat().st_size))
        with path.open("rb") as file:
            is_packed = file.read(2) == _GZIP
        opened = gzip.GzipFile if is_packed else io.FileIO
        self._file = io.BufferedReader(opened(path))

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def read(self, n: int) -> NDArray[np.uint8]:
        """Return the next n bytes; an EOFError where it ends before."""
        self._take(n)
        content = np.empty(n, np.uint8)  # takes memory as it is filled
        done = 0
        while done < n:
            found = self._file.readinto(content[done : done + _CHUNK].data)
            if not found:
                raise EOFError("it ends too early")
            done += found
        return content

    def skip(self, n: int) -> None:
        """Read on without keeping what comes."""
        self._take(n)
        while n > 0 and (found := len(self._file.read(min(n, _CHUNK)))):
            n -= found

    def ends(self) -> bool:
        """Tell whether nothing more is there."""
        return not self._file.read(1)

    def _take(self, n: int) -> None:
        self._left -= n
        if n < 0 or self._left < 0:
            raise ValueError(f"it unpacks to more than {self.most:,} bytes")


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a file of no more bytes than `most`."""
    if not path.is_file() or path.stat().st_size > most:
        raise ValueError(f"it is not a file of {most:,} bytes at most")
    return path.read_bytes()


def read_tar(path: Path, names: Collection[str], most: int) -> dict[str, bytes]:
    """Return the content of the files of these names in a tar, compressed by gzip or not.

    Links and all that is called otherwise is passed over, extended headers (PAX, GNU), too: the
    names that are looked for are short, and stand in the plain ones.

    Parameters
    ----------
    path : Path
        The archive.
    names : collection of str
        All must be there.
    most : int
        Bytes that may come of the whole archive.
    """
    found: dict[str, bytes] = {}
    with Unpacked(path, most) as file:
        while len(found) < len(names):
            block = file.read(_BLOCK).tobytes()
            if not any(block):
                break
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            name, padding = member.name.removeprefix("./"), -member.size % _BLOCK
            if name in names and member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                found[name] = file.read(member.size).tobytes()
                file.skip(padding)
            else:
                file.skip(max(member.size, 0) + padding)
    if missing := sorted(set(names) - found.keys()):
        raise ValueError(f"it has no {' and no '.join(missing)}")
    return found
