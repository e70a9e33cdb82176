"""Locks between processes. They end with the process that holds them, however it ends."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO


class LockedError(RuntimeError):
    """Another process is at work on the same thing."""


@contextmanager
def locked(file: IO[bytes], *, wait: bool = True) -> Iterator[None]:
    """Hold other processes off (where the system can).

    Parameters
    ----------
    file : binary file
        Open; the lock is on it.
    wait : bool, default=True
        Wait until another process lets go of it; else raise BlockingIOError at once.
    """
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = open(path, "a+b", opener=_open_itself)  # noqa: SIM115
        except FileNotFoundError:
            continue  # who held it last has just removed the folder, since nothing came of it
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise OSError(f"{path} is a link, which no lock of lmrc's is: remove it") from None
        with file:
            try:
                with locked(file, wait=False):
                    if not _is_still_at(path, file):
                        continue  # its last holder removed it just after we had opened it
                    _sign(file)
                    try:
                        yield
                    finally:
                        path.unlink(missing_ok=True)
            except BlockingIOError:
                raise LockedError(
                    f"{path.parent} is being changed by {_signature(file)}: wait until that has "
                    "ended"
                ) from None
        return


def holder(path: Path) -> str | None:
    """Say who holds the lock file at a path, and since when; None where no one does."""
    try:
        with open(path, "rb", opener=_open_itself) as file:
            try:
                with locked(file, wait=False):
                    return None  # a killed process has left it
            except BlockingIOError:
                return _signature(file)
    except OSError:
        return None


def _open_itself(path: str, flags: int) -> int:
    """Open a file, and never what it links to: that is someone else's, and would be overwritten."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _is_still_at(path: Path, file: IO[bytes]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _signature(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(1000).decode(errors="replace").strip() or "another process"


def _sign(file: IO[bytes]) -> None:
    """Say in the lock file who holds it."""
    since = datetime.now().astimezone().isoformat(" ", timespec="seconds")
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
    file.flush()
