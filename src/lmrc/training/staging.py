"""Inputs that do not fit on the device: they stay in the host's memory, a mini-batch goes over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lmrc.data.streamed import Streamed

SHARE = 0.5  # of the device's free memory that inputs may take; the network needs the rest


def fits(x: Tensor, device: torch.device) -> bool:
    """Say whether inputs may lie on the device for as long as a task is learnt."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    # What tensors have left behind, torch keeps for the next ones.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return x.nbytes <= SHARE * free


class Source(ABC):
    """Inputs elsewhere, of which the device sees one mini-batch at a time.

    Parameters
    ----------
    x : Tensor or Streamed
        All inputs.
    most : int
        Samples in the largest mini-batch.
    device : torch.device

    Attributes
    ----------
    near : Tensor
        The mini-batch at hand in its first rows, always in the same memory of the device.
    """

    def __init__(self, x: Tensor | Streamed, most: int, device: torch.device) -> None:
        self.near = torch.empty((most, *x.shape[1:]), dtype=x.dtype, device=device)

    @abstractmethod
    def begin(self, parts: Sequence[Tensor]) -> None:
        """Begin an epoch; each part is the rows of a mini-batch."""

    @abstractmethod
    def advance(self) -> None:
        """Bring the next mini-batch to `near`."""


class Staging(Source):
    """Inputs in the host's memory.

    Mini-batches go over through two page-locked buffers by turns: the next is gathered while the
    device computes.
    """

    def __init__(self, x: Tensor, most: int, device: torch.device) -> None:
        super().__init__(x, most, device)
        on_gpu = device.type == "cuda"
        self.x = x
        self.buffers = [
            torch.empty(self.near.shape, dtype=x.dtype, pin_memory=on_gpu) for _ in range(2)
        ]
        self.copied = (
            [torch.cuda.Event() for _ in self.buffers]  # type: ignore[no-untyped-call]
            if on_gpu
            else []
        )
        self.parts: Iterator[Tensor] = iter(())
        self.turn = 0

    def begin(self, parts: Sequence[Tensor]) -> None:
        """Begin an epoch; each part is the rows of a mini-batch."""
        self.parts = iter(parts)

    def advance(self) -> None:
        """Bring the next mini-batch to `near`."""
        rows = next(self.parts)
        self.turn = 1 - self.turn
        if self.copied:
            self.copied[self.turn].synchronize()  # this buffer's last mini-batch has gone over
        buffer = self.buffers[self.turn][: len(rows)]
        torch.index_select(self.x, 0, rows, out=buffer)
        self.near[: len(rows)].copy_(buffer, non_blocking=True)
        if self.copied:
            self.copied[self.turn].record()
