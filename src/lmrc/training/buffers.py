"""Inputs that do not fit on the device: it holds one mini-batch at a time, in a buffer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from lmrc.data.image_files import n_workers
from lmrc.data.inputs import Inputs

MEMORY_SHARE = 0.5  # of the device's free memory that inputs may take; the network needs the rest


def fits(x: Tensor, device: torch.device) -> bool:
    """Tell whether all inputs fit on the device beside the network."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    # Freed memory that torch keeps for the next tensors.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return x.nbytes <= MEMORY_SHARE * free


class DeviceBuffer(ABC):
    """The current mini-batch on the device, loaded from elsewhere.

    It is in the first rows of `data`, which has `max_size` rows. The memory stays the same.
    """

    def __init__(self, x: Inputs, max_size: int, device: torch.device) -> None:
        self.data = torch.empty((max_size, *x.shape[1:]), dtype=x.dtype, device=device)

    @abstractmethod
    def start_epoch(self, batches: Sequence[Tensor]) -> None:
        """Start an epoch; ``batches`` are the rows of each mini-batch."""

    @abstractmethod
    def load_next(self) -> None:
        """Load the next mini-batch into `data`."""


class PinnedDoubleBuffer(DeviceBuffer):
    """Loads from host memory through two pinned buffers in turn.

    The next mini-batch is gathered while the device computes.
    """

    def __init__(self, x: Tensor, max_size: int, device: torch.device) -> None:
        super().__init__(x, max_size, device)
        on_gpu = device.type == "cuda"
        self.x = x
        self.pinned = [
            torch.empty(self.data.shape, dtype=x.dtype, pin_memory=on_gpu) for _ in range(2)
        ]
        self.copied = (
            [torch.cuda.Event() for _ in self.pinned]  # type: ignore[no-untyped-call]
            if on_gpu
            else []
        )
        self.batches: Iterator[Tensor] = iter(())
        self.current = 0

    def start_epoch(self, batches: Sequence[Tensor]) -> None:
        self.batches = iter(batches)

    def load_next(self) -> None:
        rows = next(self.batches)
        self.current = 1 - self.current
        if self.copied:
            self.copied[self.current].synchronize()  # the last mini-batch of this buffer
        pinned = self.pinned[self.current][: len(rows)]
        torch.index_select(self.x, 0, rows, out=pinned)
        self.data[: len(rows)].copy_(pinned, non_blocking=True)
        if self.copied:
            self.copied[self.current].record()


class LoaderBuffer(DeviceBuffer):
    """Loads from disk: worker processes decode the next mini-batches."""

    def __init__(self, x: Inputs, max_size: int, device: torch.device) -> None:
        super().__init__(x, max_size, device)
        self.rows: list[list[int]] = []  # of each mini-batch of the current epoch
        self.loader: DataLoader[int] = DataLoader(
            range(len(x)),  # type: ignore[arg-type]  # row numbers: `x` itself reads them
            batch_sampler=self.rows,
            num_workers=n_workers(),
            collate_fn=x.__getitem__,
            pin_memory=device.type == "cuda",
            persistent_workers=True,
            generator=torch.Generator(),  # torch's global one is not touched
        )
        self.batches: Iterator[Tensor] = iter(())

    def start_epoch(self, batches: Sequence[Tensor]) -> None:
        self.rows[:] = [rows.tolist() for rows in batches]
        self.batches = iter(self.loader)

    def load_next(self) -> None:
        batch = next(self.batches)
        self.data[: len(batch)].copy_(batch, non_blocking=True)
