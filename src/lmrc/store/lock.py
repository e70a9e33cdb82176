"""Locks between processes. They end with the process that holds them, however it ends."""

from __future__ import annotations

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
    """Another process is at work on the same thing."""


@contextmanager
def locked(file: IO[bytes], *, wait: bool = True, shared: bool = False) -> Iterator[None]:
    """Hold other processes off (where the system can).

    Parameters
    ----------
    file : binary file
        Open; the lock is on it.
    wait : bool, default=True
        Wait until another process lets go of it; else raise BlockingIOError at once.
    shared : bool, default=False
        Hold off only those that do not share it, too.
    """
    try:
        import fcntl

        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(file, kind | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except (ImportError, OSError):  # Windows, or a network file system without locks
        yield
        return
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Be the only one to hold the lock file at a path; it is gone afterwards.

    A lock file that a killed process left is taken over. Its folder is made where there is none.

    Raises
    ------
    LockedError
        If another process holds it: says which, and since when.
    OSError
        If it is a link or no file: what it leads to is someone else's.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = open(path, "a+b", opener=_open_itself)  # noqa: SIM115
        except FileNotFoundError:
            continue  # who held it last has just removed the folder, since nothing came of it
        with file, ExitStack() as held:
            try:
                held.enter_context(locked(file, wait=False))
            except BlockingIOError:
                who = holder(path)
                if who is None:
                    continue  # it was let go just now, or someone has but asked for its holder
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


def holder(path: Path) -> str | None:
    """Say who holds the lock file at a path, and since when; None where no one does.

    It is asked for by a shared lock, held for a moment: no writer is refused for that.
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
    """Open a file that has no other name, and nothing else: writing would change what is not ours.

    A pipe is not waited for.
    """
    refused = OSError(f"{path} is a link or no file, which no lock of lmrc's is: remove it")
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
    """Say in the lock file who holds it; where the disk is full, it holds without words."""
    since = datetime.now().astimezone().isoformat(" ", timespec="seconds")
    text = f"process {os.getpid()} on {socket.gethostname()} since {since}\n"
    with suppress(OSError):
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), text.encode())
