"""Exact class statistics of fixed features: counts, means, and the scatter around the means.

With a frozen backbone, statistics of tasks learnt one by one are those of all images at once,
whatever the order: sums alone. A class's scatter matrix is kept as a factor R, Σ (x − μ)(x − μ)ᵀ =
RᵀR, with one row fewer than the class has images. So a class can be forgotten exactly. Once the
factors would take more memory than the sum of all scatter matrices, that sum replaces them.
Stored in float32, computed in float64.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from lmrc.nets.erasing import without_row
from lmrc.statistics.classes import ClassStatistics, Summary
from lmrc.statistics.covariances import with_row

EPS = 1e-30
BLOCK = 512  # rows of a symmetric matrix that are computed or copied at once
AT_ONCE = 1024  # samples whose scatter is added at once


@dataclass(frozen=True)
class Scatter:
    """Exact class statistics. Immutable: a change returns a new object."""

    counts: Tensor  # (classes,): images of each class
    means: Tensor  # (classes, width)
    ranks: Tensor  # (classes,): rows of each class's factor; 0 once they are pooled
    factors: Tensor  # (rows, width): the factors R of all classes, one after the other
    #: (width · (width + 1) / 2,): the upper triangle of the sum of all scatter matrices, row by
    #: row; empty until it takes less memory than the factors.
    within: Tensor

    @classmethod
    def empty(cls, width: int) -> Self:
        """Return statistics of no class."""
        none = torch.zeros(0, dtype=torch.int64)
        return cls(none, torch.zeros(0, width), none, torch.zeros(0, width), torch.zeros(0))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Undo `tensors`."""
        return cls(**tensors)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save, by name."""
        return dict(vars(self))

    def check(self, n_classes: int, width: int) -> None:
        """Raise ValueError unless shapes, types and ranks fit (a file may be forged)."""
        rows, pooled = int(self.ranks.sum()), self.within.numel() > 0
        wanted = {"counts": (n_classes,), "means": (n_classes, width), "ranks": (n_classes,)}
        wanted |= {"factors": (rows, width)}
        wanted |= {"within": (width * (width + 1) // 2 if pooled else 0,)}
        for name, shape in wanted.items():
            tensor = getattr(self, name)
            dtype = torch.int64 if name in ("counts", "ranks") else torch.float32
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                raise ValueError(f"the scatter's {name} is not of shape {shape} in {dtype}")
        fits = (self.ranks >= 0) & (self.ranks < self.counts)
        if not bool(fits.all()) or (pooled and rows):
            raise ValueError("the scatter's ranks do not fit its classes")

    @property
    def is_pooled(self) -> bool:
        """Whether only the sum of all scatter matrices is kept."""
        return bool(len(self.within))

    @property
    def n_images(self) -> int:
        """Images of all classes."""
        return int(self.counts.sum())

    def added(self, parts: Iterable[tuple[int, Tensor]]) -> Self:
        """Add samples, (n, width), of classes by row; the row after the last adds a class.

        Matrices are computed on the device of the samples.
        """
        found, more, waiting = self, torch.zeros(0, 0), []
        for row, x in parts:
            n, mean, away = found._around_mean(row, x.double())
            factors = list(torch.split(found.factors, found.ranks.tolist()))
            if found.is_pooled:
                waiting.append(away)
                if sum(map(len, waiting)) >= AT_ONCE:
                    more, waiting = products(torch.cat(waiting).T, more), []
                factor = found.factors
            else:
                known = factors[row : row + 1]
                rows = torch.cat([*(f.to(away) for f in known), away])
                # R = QᵀA, as of all columns: Q follows from the first ones.
                factor = (torch.linalg.qr(rows[:, : len(rows)])[0].T @ rows).cpu()
            found = replace(
                found,
                counts=with_row(found.counts, row, torch.tensor(n)),
                means=with_row(found.means, row, mean),
                ranks=with_row(found.ranks, row, torch.tensor(len(factor))),
                factors=torch.cat([*factors[:row], factor.float(), *factors[row + 1 :]]),
            )
            if len(found.factors) > found.means.shape[1] // 2:
                found = found._pooled()
        if waiting:
            more = products(torch.cat(waiting).T, more)
        if not len(more):
            return found
        return replace(found, within=(found.within.double() + packed(more.cpu())).float())

    def _around_mean(self, row: int, x: Tensor) -> tuple[int, Tensor, Tensor]:
        """Return a class's new count and mean, and the rows to add to its factor."""
        n, mean = len(x), x.mean(dim=0)
        # One row fewer with the same scatter: a reflection takes the mean into the first row.
        normal = torch.full((n, 1), 1 / math.sqrt(n)).to(x)
        normal[0] -= 1
        away = (x - 2 * normal @ (normal.T @ x) / (normal.square().sum() + EPS))[1:]
        mean = mean.cpu()
        if row < len(self.counts):
            before, old = int(self.counts[row]), self.means[row].double()
            step = mean - old
            between = math.sqrt(before * n / (before + n)) * step[None]
            away = torch.cat([away, between.to(away)])
            mean, n = old + n / (before + n) * step, before + n
        return n, mean, away

    def _pooled(self) -> Self:
        factors = self.factors.double()
        return type(self)(
            self.counts,
            self.means,
            torch.zeros_like(self.ranks),
            self.factors[:0],
            packed(products(factors.T)).float(),
        )

    def without(self, row: int) -> Self:
        """Remove a class.

        A pooled scatter matrix is scaled down by the class's share of the images.
        """
        parts = list(torch.split(self.factors, self.ranks.tolist()))
        return type(self)(
            without_row(self.counts, row),
            without_row(self.means, row),
            without_row(self.ranks, row),
            torch.cat([*parts[:row], *parts[row + 1 :]]),
            self.within * (1 - float(self.counts[row]) / self.n_images),
        )

    def of(self, start: int, stop: int | None = None) -> Self:
        """Return the statistics of some of the inputs."""
        within, width = self.within, self.means.shape[1]
        if self.is_pooled:
            start, stop, _ = slice(start, stop).indices(width)
            rows = torch.split(within, list(range(width, 0, -1)))[start:stop]
            within = torch.cat([row[: stop - i] for i, row in enumerate(rows, start)])
        means, factors = self.means[:, start:stop], self.factors[:, start:stop]
        return type(self)(self.counts, means, self.ranks, factors, within)

    def covariance(self) -> Tensor:
        """Return the covariance around the class means, (width, width), in float64."""
        if self.is_pooled:
            return unpacked(self.within, self.means.shape[1]).double() / self.n_images
        return mirrored(products(self.factors.double().T)) / self.n_images

    def class_statistics(self, kind: str) -> ClassStatistics:
        """Return statistics with covariances of a kind, for Gaussian replay.

        All classes have one covariance if their scatter matrices are pooled.
        """
        found = ClassStatistics.empty(kind, 1, self.means.shape[1])
        shared = self.covariance() if self.is_pooled else None
        factors = torch.split(self.factors.double(), self.ranks.tolist())
        for row, n in enumerate(self.counts.tolist()):
            matrix = factors[row].T @ factors[row] / n if shared is None else shared
            mean = self.means[row : row + 1].double()
            found = found.with_class(row, Summary(mean, matrix, float(n)))
        return found


def packed(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix, row by row.

    >>> packed(torch.tensor([[1, 2], [2, 3]]))
    tensor([1, 2, 3])
    """
    return torch.cat([row[i:] for i, row in enumerate(matrix)])


def unpacked(triangle: Tensor, width: int) -> Tensor:
    """Return the symmetric matrix whose upper triangle this is.

    >>> unpacked(torch.tensor([1, 2, 3]), 2)
    tensor([[1, 2],
            [2, 3]])
    """
    matrix = torch.empty(width, width, dtype=triangle.dtype)
    for i, row in enumerate(torch.split(triangle, list(range(width, 0, -1)))):
        matrix[i, i:] = row
    return mirrored(matrix)


def products(rows: Tensor, total: Tensor | None = None) -> Tensor:
    """Return the products of all pairs of rows, (n, n), added to a total: the upper triangle.

    The lower triangle is not computed, which saves half of the work, and has no meaning.
    """
    n = len(rows)
    if total is None or not len(total):
        total = rows.new_zeros(n, n)
    for start in range(0, n, BLOCK):
        block = slice(start, start + BLOCK)
        total[block, start:].addmm_(rows[block], rows[start:].T)
    return total


def mirrored(matrix: Tensor) -> Tensor:
    """Copy the upper triangle of a matrix to the lower one, in place."""
    for start in range(0, len(matrix), BLOCK):  # blocks stay in the cache
        rows = matrix[start : start + BLOCK]
        end = start + len(rows)
        square = rows[:, start:end]
        square.copy_(square.triu() + square.triu(1).T)
        matrix[end:, start:end] = rows[:, end:].T
    return matrix
