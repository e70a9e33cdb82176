"""Inputs of a network: a tensor, or images on disk that are decoded when they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrc.data.image_files import ImageFiles


class Inputs(Protocol):
    """What training reads of its inputs; every tensor offers it. The first axis counts samples."""

    @property
    def shape(self) -> torch.Size:
        """Of all inputs."""

    @property
    def dtype(self) -> torch.dtype:
        """Of all inputs."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Tensor:
        """Return these inputs, in memory."""

    def split(self, size: int, /) -> Iterable[Tensor]:
        """Iterate over all inputs, at most ``size`` in memory at a time."""

    def narrow(self, dim: int, start: int, length: int, /) -> Inputs:
        """Return a range of the inputs (``dim`` is 0); those on disk stay there."""

    def index_select(self, dim: int, rows: Tensor, /) -> Inputs:
        """Return the inputs at these rows, ascending (``dim`` is 0); those on disk stay there."""


class Streamed:
    """Inputs on disk, of shape (n, channels, height, width)."""

    dtype = torch.uint8

    def __init__(self, files: ImageFiles) -> None:
        self.files = files
        self.shape = torch.Size((len(files), 3 if files.mode == "RGB" else 1, *files.size))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Any, /) -> Tensor:
        return _as_inputs(np.asarray(self.files[_as_index(rows)]))

    def split(self, size: int, /) -> Iterator[Tensor]:
        return map(_as_inputs, self.files.chunks(size))

    def narrow(self, dim: int, start: int, length: int, /) -> Streamed:
        return Streamed(self.files[start : start + length])

    def index_select(self, dim: int, rows: Tensor, /) -> Streamed:
        return Streamed(self.files[rows.numpy()])


class Joined:
    """Inputs of which some are on disk: two parts, one after the other."""

    def __init__(self, first: Inputs, second: Inputs) -> None:
        if first.dtype != second.dtype:
            raise ValueError(
                f"images on disk cannot be learnt with exemplars of another type, {first.dtype} "
                f"with {second.dtype}: reduce them until they fit into memory"
            )
        self.first, self.second, self.dtype = first, second, first.dtype
        self.shape = torch.Size((len(first) + len(second), *first.shape[1:]))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any, /) -> Tensor:
        wanted, n = np.arange(len(self))[_as_index(rows)], len(self.first)
        in_first = wanted < n
        out = torch.empty((len(wanted), *self.shape[1:]), dtype=self.dtype)
        out[torch.from_numpy(in_first)] = self.first[wanted[in_first]]
        out[torch.from_numpy(~in_first)] = self.second[wanted[~in_first] - n]
        return out

    def split(self, size: int, /) -> Iterator[Tensor]:
        return chain(self.first.split(size), self.second.split(size))

    def narrow(self, dim: int, start: int, length: int, /) -> Inputs:
        return self.index_select(dim, torch.arange(start, start + length))

    def index_select(self, dim: int, rows: Tensor, /) -> Inputs:
        in_first = rows < len(self.first)
        first = self.first.index_select(dim, rows[in_first])
        second = self.second.index_select(dim, rows[~in_first] - len(self.first))
        return join(first, second) if len(first) else second


def join(a: Inputs, b: Inputs) -> Inputs:
    """Concatenate inputs; of two tensors, uint8 beside float is scaled to 0…1."""
    if len(b) == 0:
        return a  # as it is: neither copied nor laid out anew
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return Joined(a, b)
    if a.dtype != b.dtype:
        a, b = (x.float() / 255 if x.dtype == torch.uint8 else x for x in (a, b))
    return torch.cat([a, b])


def channel_statistics(inputs: Inputs, values: int = 3 * 2**22) -> tuple[Tensor, Tensor]:
    """Return mean and deviation per channel or feature, shaped to broadcast over one sample.

    Accumulated in float64 over chunks of so many values, so that a large uint8 set, or one on
    disk, is never copied whole.
    """
    chunk, ndim = max(1, values // inputs.shape[1:].numel()), len(inputs.shape)
    axes = [0, *range(2, ndim)]
    shape = (-1, *[1] * (ndim - 2))
    count = inputs.shape.numel() / inputs.shape[1]
    scale = 255.0 if inputs.dtype == torch.uint8 else 1.0
    sums = [part.double().sum(axes) for part in inputs.split(chunk)]
    mean = torch.stack(sums).sum(0).view(shape) / (count * scale)
    squares = [(part.double() / scale - mean).square().sum(axes) for part in inputs.split(chunk)]
    variance = torch.stack(squares).sum(0).view(shape) / count
    # A constant channel carries no information: keep it at zero instead of dividing by zero.
    std = variance.sqrt().float()
    return mean.float(), torch.where(std > 0, std, 1.0)


def _as_index(rows: Any) -> Any:
    return np.asarray(rows) if isinstance(rows, Tensor) else rows


def _as_inputs(pixels: NDArray[np.uint8]) -> Tensor:
    images = torch.from_numpy(pixels)
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
