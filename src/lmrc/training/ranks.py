"""Ranks: processes that train one model together, as started by ``torchrun``.

Every rank has the same seed and takes its shard of the same mini-batches, so the result is that of
one process (but see `distributed`). Only the first rank reads and writes the files of a run.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, distributed

T = TypeVar("T")

#: Replaces BatchNorm by SyncBatchNorm: statistics over the mini-batch of all ranks.
SYNC_BATCHNORM = "LMRC_SYNC_BATCHNORM"

# torchrun notices a dead rank at once. This is for slow ones, which list a large folder or score a
# large test set.
TIMEOUT = timedelta(hours=2)
MAX_ROWS = 65_536  # that are sent at once

_RESUME = "start it again to resume, learn with --resume"
# In messages of gloo and NCCL when a peer has ended.
_LOST = ("closed by peer", "reset by peer", "Broken pipe", "NCCL", "Socket closed")


class LostRankError(RuntimeError):
    """Another process of the run has ended."""


class FirstFailedError(RuntimeError):
    """The first rank has failed, with an error of its own."""


@dataclass(frozen=True)
class Ranks:
    """One of the processes that train a model together."""

    rank: int = 0  # this one's number, from 0
    size: int = 1  # how many there are

    @property
    def is_first(self) -> bool:
        """Whether this rank reads and writes the files of the run."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there are several ranks."""
        return self.size > 1

    def n_shards(self, n: int) -> int:
        """Return how many ranks have a shard of n samples: two samples or more, for BatchNorm.

        >>> [Ranks(0, 4).n_shards(n) for n in (1, 2, 5, 8, 100)]
        [1, 1, 2, 4, 4]
        """
        return max(1, min(self.size, n // 2))

    def shard(self, n: int) -> slice:
        """Return which of n samples this rank takes.

        If there are too few for all, the last ranks repeat the shard of the first with weight 0:
        they must take part in the reduction of gradients.

        >>> [Ranks(rank, 3).shard(7) for rank in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        >>> Ranks(2, 3).shard(5), Ranks(2, 3).has_shard(5)
        (slice(0, 2, None), False)
        """
        n_shards = self.n_shards(n)
        rank = self.rank if self.has_shard(n) else 0
        return slice(n * rank // n_shards, n * (rank + 1) // n_shards)

    def has_shard(self, n: int) -> bool:
        """Tell whether this rank has its own shard of n samples."""
        return self.rank < self.n_shards(n)

    def part(self, n: int) -> slice:
        """Return which of n rows this rank computes; the ranks share the rows.

        >>> [Ranks(rank, 3).part(7) for rank in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        """
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def share_rows(self, rows: Tensor) -> None:
        """Exchange rows, of which each rank has computed its `part`, in place.

        They are on the CPU and contiguous.
        """
        if self.is_distributed:
            for rank in range(self.size):
                part = Ranks(rank, self.size).part(len(rows))
                for start in range(part.start, part.stop, MAX_ROWS):
                    stop = min(start + MAX_ROWS, part.stop)
                    distributed.broadcast(rows[start:stop], rank)

    def broadcast(self, make: Callable[[], T]) -> T:
        """Call a function on the first rank only; return its result on all ranks.

        It is sent over the network: plain values, and tensors on the CPU.
        """
        if not self.is_distributed:
            return make()
        result: list[Any] = [None, True]
        try:
            if self.is_first:
                result = [make(), False]
        finally:  # the others learn of a failure, too
            distributed.broadcast_object_list(result, device=torch.device("cpu"))
        value, failed = result
        if failed:
            raise FirstFailedError("the first process has failed")
        return value  # type: ignore[no-any-return]

    def check_same(self, value: Any, what: str) -> None:
        """Raise an error if a value differs from that of the first rank."""
        if self.broadcast(lambda: value) != value:
            raise RuntimeError(
                f"{what} is not the same for process {self.rank} as for the first: bring all "
                "machines to the same state"
            )


SINGLE_PROCESS = Ranks()
_current = SINGLE_PROCESS


def current() -> Ranks:
    """Return the rank of this process, within `process_group`; else a single process."""
    return _current


def started_by_torchrun() -> bool:
    """Tell whether ``torchrun``, or what sets the same variables, started this process."""
    is_set = {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return is_set and int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def process_group() -> Iterator[Ranks]:
    """Join the process group that ``torchrun`` started, if it did.

    Estimators that learn within it share the work; all processes must make the same calls with the
    same data. Gradients are reduced by NCCL on GPUs, by gloo on CPUs.

    Raises `LostRankError` if another process ends early.
    """
    global _current
    if not started_by_torchrun():
        yield SINGLE_PROCESS
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        _select_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    distributed.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", timeout=TIMEOUT)
    _current = Ranks(distributed.get_rank(), distributed.get_world_size())
    before = signal.signal(signal.SIGTERM, _end)  # torchrun sends it when a process has died
    try:
        yield _current
    except RuntimeError as error:
        if isinstance(error, LostRankError) or not is_lost(error):
            raise
        raise LostRankError(f"another process of this run has ended: {_RESUME}") from error
    else:
        distributed.destroy_process_group()
    finally:
        signal.signal(signal.SIGTERM, before)
        _current = SINGLE_PROCESS


def is_lost(error: BaseException) -> bool:
    """Tell whether an error means that another process has ended."""
    lost = isinstance(error, RuntimeError) and any(word in str(error) for word in _LOST)
    return lost or isinstance(error, LostRankError)


def _end(*_: object) -> NoReturn:
    raise LostRankError(f"this process was terminated, as another one may have been: {_RESUME}")


def _select_gpu(index: int) -> None:
    if index >= torch.cuda.device_count():
        raise RuntimeError(
            f"process {index} of this machine has no GPU of its own, as there are "
            f"{torch.cuda.device_count()}: lower --nproc-per-node"
        )
    torch.cuda.set_device(index)


def wants_sync_batchnorm() -> bool:
    """Tell whether SyncBatchNorm is enabled, by an environment variable."""
    return os.environ.get(SYNC_BATCHNORM, "") not in ("", "0")
