"""Locks between processes; the system releases them when the process ends."""

import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO


class LockedError(RuntimeError):
    """Another process holds the lock."""


@contextmanager
def locked(file: IO[bytes], *, wait: bool = True, shared: bool = False) -> Iterator[bool]:
    """Hold a lock between processes on an open file; yield whether the system has locks.

    Without `wait`, raise BlockingIOError at once if another process has it. A `shared` lock blocks
    exclusive ones only.
    """
    try:
        import fcntl

        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except (ImportError, OSError):  # Windows, or a network file system without locks
        yield False
        return
    try:
        yield True
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Hold the lock file at a path; it is deleted afterwards.

    The lock file of a killed process is taken over. Its folder is created if there is none.

    Raises `LockedError` if another process holds it, with which and since when; `OSError` if it
    is a link or not a regular file.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = open(path, "a+b", opener=_open_itself)  # noqa: SIM115
        except FileNotFoundError:
            continue  # its last holder has just removed the empty folder
        with file, ExitStack() as held:
            try:
                held.enter_context(locked(file, wait=False))
            except BlockingIOError:
                who = holder(path)
                if who is None:
                    continue  # just released, or held by a call of `holder`
                raise LockedError(
                    f"{path.parent} is being changed by {who}: wait until that has ended"
                ) from None
            if not _is_still_at(path, file):
                continue  # its last holder removed it just after we had opened it
            _sign(file)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
        return


def explain(path: Path, why: str) -> None:
    """Add to the lock file at a path, which this process holds, what it is held for."""
    with suppress(OSError), open(path, "r+b", opener=_open_itself) as file:
        file.seek(0, os.SEEK_END)
        file.write(f", {why}".encode())


def holder(path: Path) -> str | None:
    """Return who holds the lock file at a path, and since when; None if no one does.

    Tested by a shared lock, held for a moment: no writer fails because of it.
    """
    try:
        with open(path, "rb", opener=_open_itself) as file:
            try:
                with locked(file, wait=False, shared=True):
                    return None  # a killed process has left it
            except BlockingIOError:
                return file.read(1000).decode(errors="replace").strip() or "another process"
    except OSError:
        return None


def _open_itself(path: str, flags: int) -> int:
    """Open a regular file without links: writing could change a file of someone else.

    A pipe is rejected, without blocking.
    """
    refused = OSError(f"{path} is a link or not a file, so not a lock of lmrc: remove it")
    more = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = os.open(path, flags | more, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a pipe or a socket
            raise refused from None
        raise
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(handle)
        raise refused
    return handle


def _is_still_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _sign(file: IO[bytes]) -> None:
    """Write into the lock file who holds it; if the disk is full, it stays empty."""
    since = datetime.now().astimezone().isoformat(" ", timespec="seconds")
    text = f"process {os.getpid()} on {socket.gethostname()} since {since}"
    with suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), text.encode())
