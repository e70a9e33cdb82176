"""Processes that train one model together, as ``torchrun`` starts them: who does what.

Every rank draws the same chance and takes its share of the same mini-batches, so a run comes to
what it comes to in one process (but see `distributed`). The first rank alone reads and writes files
of the run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
from torch import distributed

T = TypeVar("T")

#: Turns BatchNorm into SyncBatchNorm: statistics over the mini-batch of all ranks.
SYNC_BATCHNORM = "LMRC_SYNC_BATCHNORM"

# A rank that dies is noticed by torchrun at once. This is for one that is merely slow: to list a
# large folder, to score a large test set.
PATIENCE = timedelta(hours=2)

_GO_ON = "start it again to go on, learn with --resume"
# What gloo and NCCL say when a peer is gone.
_LOST = ("closed by peer", "reset by peer", "Broken pipe", "NCCL", "Socket closed")


class LostRankError(RuntimeError):
    """Another process of the run has ended."""


class FirstFailedError(RuntimeError):
    """The first rank has failed, and says why itself."""


@dataclass(frozen=True)
class Ranks:
    """One process among those that train a model together.

    Attributes
    ----------
    rank : int
        This one's number, from 0.
    size : int
        How many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this is the one that reads and writes files of the run."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    def parts(self, n: int) -> int:
        """Return how many ranks have a share of n samples: at least two each, for BatchNorm.

        >>> [Ranks(0, 4).parts(n) for n in (1, 2, 5, 8, 100)]
        [1, 1, 2, 4, 4]
        """
        return max(1, min(self.size, n // 2))

    def share(self, n: int) -> slice:
        """Return which of n samples this rank takes.

        Where there are too few for all, the last ranks take those of the first, and these do not
        count: they must be there when gradients are added up.

        >>> [Ranks(rank, 3).share(7) for rank in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        >>> Ranks(2, 3).share(5), Ranks(2, 3).counts(5)
        (slice(0, 2, None), False)
        """
        parts = self.parts(n)
        rank = self.rank if self.counts(n) else 0
        return slice(n * rank // parts, n * (rank + 1) // parts)

    def counts(self, n: int) -> bool:
        """Say whether this rank has a share of its own of n samples."""
        return self.rank < self.parts(n)

    def broadcast(self, make: Callable[[], T]) -> T:
        """Do something on the first rank alone; all of them get what it came to.

        It travels over the network: plain values and tensors on the CPU.
        """
        if not self.is_distributed:
            return make()
        answer: list[Any] = [None, True]
        try:
            if self.is_first:
                answer = [make(), False]
        finally:  # the others are to know of a failure, too
            distributed.broadcast_object_list(answer, device=torch.device("cpu"))
        value, failed = answer
        if failed:
            raise FirstFailedError("the first process has failed")
        return value  # type: ignore[no-any-return]

    def check_same(self, value: Any, what: str) -> None:
        """Refuse to go on if something differs from what the first rank has."""
        if self.broadcast(lambda: value) != value:
            raise RuntimeError(
                f"{what} is not the same for process {self.rank} as for the first: bring all "
                "machines to the same state"
            )


ALONE = Ranks()
_current = ALONE


def current() -> Ranks:
    """Return which of several processes this is, within `joined`; else it is alone."""
    return _current


def is_one_of_several() -> bool:
    """Say whether ``torchrun``, or what sets the same variables, started this process."""
    told = {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return told and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined() -> Iterator[Ranks]:
    """Train together with the other processes that ``torchrun`` started, if it did.

    Estimators that learn within it share the work; all processes must call them alike, with the
    same data. NCCL carries the gradients on GPUs, gloo on CPUs.

    Raises
    ------
    LostRankError
        If another process ends before its time.
    """
    global _current
    if not is_one_of_several():
        yield ALONE
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        _take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=PATIENCE)
    _current = Ranks(distributed.get_rank(), distributed.get_world_size())
    before = signal.signal(signal.SIGTERM, _end)  # torchrun sends it when a process has died
    try:
        yield _current
    except RuntimeError as error:
        if isinstance(error, LostRankError) or not is_lost(error):
            raise
        raise LostRankError(f"another process of this run has ended: {_GO_ON}") from error
    else:
        distributed.destroy_process_group()
    finally:
        signal.signal(signal.SIGTERM, before)
        _current = ALONE


def is_lost(error: BaseException) -> bool:
    """Say whether an error means that another process has ended."""
    lost = isinstance(error, RuntimeError) and any(word in str(error) for word in _LOST)
    return lost or isinstance(error, LostRankError)


def _end(*_: object) -> NoReturn:
    raise LostRankError(f"this process was told to end, as another one has, maybe: {_GO_ON}")


def _take_gpu(index: int) -> None:
    if index >= torch.cuda.device_count():
        raise RuntimeError(
            f"process {index} of this machine has no GPU of its own, as there are "
            f"{torch.cuda.device_count()}: lower --nproc-per-node"
        )
    torch.cuda.set_device(index)


def wants_sync_batchnorm() -> bool:
    """Say whether the user asked for SyncBatchNorm, by an environment variable."""
    return os.environ.get(SYNC_BATCHNORM, "") not in ("", "0")
