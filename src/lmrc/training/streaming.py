"""Inputs that do not fit into memory: worker processes decode the mini-batches to come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lmrc.data.streamed import Streamed, n_workers
from lmrc.training.staging import Source


class Streaming(Source):
    """Inputs on disk, which worker processes decode."""

    def __init__(self, x: Streamed, most: int, device: torch.device) -> None:
        super().__init__(x, most, device)
        self.parts = _Parts()
        self.loader = DataLoader(
            _Rows(x),
            batch_sampler=self.parts,
            num_workers=n_workers(),
            collate_fn=_as_it_is,
            pin_memory=device.type == "cuda",
            persistent_workers=True,
            generator=torch.Generator(),  # its own: all chance of an epoch is drawn elsewhere
        )
        self.batches: Iterator[Tensor] = iter(())

    def begin(self, parts: Sequence[Tensor]) -> None:
        """Begin an epoch; each part is the rows of a mini-batch."""
        self.parts.rows = parts
        self.batches = iter(self.loader)

    def advance(self) -> None:
        """Bring the next mini-batch to `near`."""
        batch = next(self.batches)
        self.near[: len(batch)].copy_(batch, non_blocking=True)


class _Parts:
    """The mini-batches of the epoch at hand."""

    rows: Sequence[Tensor] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return (rows.tolist() for rows in self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class _Rows(Dataset[Any]):
    def __init__(self, x: Streamed) -> None:
        self.x = x

    def __getitem__(self, row: int) -> Tensor:
        return self.x[[row]][0]

    def __getitems__(self, rows: list[int]) -> Tensor:
        return self.x[rows]


def _as_it_is(batch: Any) -> Any:
    return batch
