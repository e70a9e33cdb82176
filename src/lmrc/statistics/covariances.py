"""Covariances of the features of each class, in four forms.

For 100 classes and 512 features, full covariances take 100 MB, low-rank ones with a diagonal 4 MB.
Joined rotations, with four times as many features, have low-rank covariances with a shared rest.
Stored in float32, computed in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse.linalg
import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.nets.erasing import without_row
from lmrc.threads import Threads
from lmrc.training.device import for_float64

RANK = 12  # directions of a class's features that a low-rank covariance keeps
ITERATIVE = 2048  # features from which a few directions are found iteratively
MAX_THREADS = 16  # threads: each holds some matrices of the features' width
EPS = 1e-9  # of a variance: what is less is rounding

Array = npt.NDArray[np.float64]
#: Samples n deviations for each class: (classes, n, width).
Sampler = Callable[[int], Tensor]


@dataclass(frozen=True)
class Covariances(ABC):
    """Covariances of classes, by row. Immutable: a change returns a new object."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def empty(cls, width: int) -> Self:
        """Return covariances of no class, for features of this width."""

    @abstractmethod
    def shapes(self, n_classes: int, width: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes that `tensors` must have for so many classes and features."""

    @abstractmethod
    def matrix(self, row: int) -> Tensor:
        """Return the covariance of a class, (width, width)."""

    @abstractmethod
    def mean(self) -> Tensor:
        """Return the mean over all classes, (width, width)."""

    @abstractmethod
    def updated(self, row: int, matrix: Tensor) -> Self:
        """Set the covariance of a class; the row after the last adds a class."""

    def emptied(self) -> Self:
        """Remove all classes; width and rank stay."""
        return type(self)(*(tensor[:0] for tensor in self.tensors().values()))

    def extended(self, other: Self) -> Self:
        """Append the classes of another object."""
        pairs = zip(self.tensors().values(), other.tensors().values(), strict=True)
        return type(self)(*map(torch.cat, pairs))

    @abstractmethod
    def mapped(self, map_: Tensor) -> Self:
        """Return the covariances of mapped features x · W: Wᵀ Σ W.

        Features may be several vectors of the map's width, concatenated; each of them is mapped.
        """

    def without(self, row: int) -> Self:
        """Remove a class."""
        return type(self)(*(without_row(tensor, row) for tensor in self.tensors().values()))

    @abstractmethod
    def sampler(self, n_classes: int, generator: torch.Generator) -> Sampler:
        """Return a sampler of n deviations from the mean for each class: (classes, n, width).

        It samples on the generator's device.
        """

    def low_rank(self, n_classes: int) -> LowRank:
        """Convert to low-rank covariances."""
        found = LowRank.empty(len(self.mean()))
        for row in range(n_classes):
            found = found.updated(row, self.matrix(row))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Shared(Covariances):
    """One covariance for all classes: the mean of theirs."""

    covariance: Tensor  # (width, width)
    averaged: Tensor  # (): how many covariances it is the mean of
    name = "shared"

    @classmethod
    def empty(cls, width: int) -> Self:
        return cls(torch.zeros(width, width), torch.tensor(0.0))

    def shapes(self, n_classes: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"covariance": (width, width), "averaged": ()}

    def matrix(self, row: int) -> Tensor:
        return self.mean()

    def mean(self) -> Tensor:
        return self.covariance.double()

    def updated(self, row: int, matrix: Tensor) -> Self:
        n = self.averaged.clamp(min=row + 1)  # a class that comes again is not counted twice
        return type(self)((self.mean() + (matrix - self.mean()) / n.double()).float(), n)

    def emptied(self) -> Self:
        return self.empty(len(self.covariance))

    def extended(self, other: Self) -> Self:
        n = self.averaged + other.averaged
        share = float(other.averaged / n.clamp(min=1))
        return type(self)(torch.lerp(self.mean(), other.mean(), share).float(), n)

    def mapped(self, map_: Tensor) -> Self:
        map_ = _for_each(map_, len(self.covariance))
        return type(self)((map_.T @ self.mean() @ map_).float(), self.averaged)

    def without(self, row: int) -> Self:
        return self  # the share of one class cannot be told apart

    def low_rank(self, n_classes: int) -> LowRank:
        one = super().low_rank(1)
        return LowRank(*(t.expand(n_classes, *t.shape[1:]) for t in one.tensors().values()))

    def sampler(self, n_classes: int, generator: torch.Generator) -> Sampler:
        return _sampler(_root(self.mean()).float(), n_classes, generator)


@dataclass(frozen=True)
class Full(Covariances):
    """A full covariance for each class."""

    covariance: Tensor  # (classes, width, width)
    name = "full"

    @classmethod
    def empty(cls, width: int) -> Self:
        return cls(torch.zeros(0, width, width))

    def shapes(self, n_classes: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"covariance": (n_classes, width, width)}

    def matrix(self, row: int) -> Tensor:
        return self.covariance[row].double()

    def mean(self) -> Tensor:
        return self.covariance.double().mean(dim=0)

    def updated(self, row: int, matrix: Tensor) -> Self:
        return type(self)(with_row(self.covariance, row, matrix))

    def mapped(self, map_: Tensor) -> Self:
        map_ = _for_each(map_, self.covariance.shape[-1])
        return type(self)(
            torch.stack([map_.T @ c.double() @ map_ for c in self.covariance]).float()
        )

    def sampler(self, n_classes: int, generator: torch.Generator) -> Sampler:
        roots = torch.stack([_root(c.double()) for c in self.covariance])
        return _sampler(roots.float(), n_classes, generator)


@dataclass(frozen=True)
class LowRank(Covariances):
    """For each class, its largest directions and the remaining variance of each feature.

    Σ = U Uᵀ + diag(d). Variances are exact, and so are the largest directions.
    """

    factors: Tensor  # (classes, width, rank): U
    diagonal: Tensor  # (classes, width): d
    name = "low-rank"

    @classmethod
    def empty(cls, width: int) -> Self:
        return cls(torch.zeros(0, width, min(RANK, width)), torch.zeros(0, width))

    def shapes(self, n_classes: int, width: int) -> dict[str, tuple[int, ...]]:
        return {"factors": (n_classes, width, _rank(self)), "diagonal": (n_classes, width)}

    def matrix(self, row: int) -> Tensor:
        u = self.factors[row].double()
        return u @ u.T + self.diagonal[row].double().diag()

    def mean(self) -> Tensor:
        return _mean_product(self.factors) + self.diagonal.double().mean(dim=0).diag()

    def updated(self, row: int, matrix: Tensor) -> Self:
        u = largest(matrix, self.factors.shape[-1])
        d = (matrix.diagonal() - u.square().sum(dim=1)).clamp(min=0)
        return type(self)(with_row(self.factors, row, u), with_row(self.diagonal, row, d))

    def mapped(self, map_: Tensor) -> Self:
        w = map_.numpy()

        def one(u: Array, d: Array) -> tuple[Array, Array]:
            each = u.reshape(-1, len(w), u.shape[-1])  # joined rotations
            directions = (w.T @ each).reshape(u.shape)
            rest = scipy.linalg.block_diag(*[(w.T * part) @ w for part in d.reshape(-1, len(w))])
            # The diagonal of the rest stays in d: without a drift nothing changes.
            return self._cut(directions @ directions.T + rest, rest.diagonal())

        with Threads(min(MAX_THREADS, torch.get_num_threads())) as threads:
            cut = threads.map(one, self.factors.double().numpy(), self.diagonal.double().numpy())
        factors, diagonal = (torch.from_numpy(np.stack(part)) for part in zip(*cut, strict=True))
        return type(self)(factors.float(), diagonal.float())

    def low_rank(self, n_classes: int) -> LowRank:
        return self

    def sampler(self, n_classes: int, generator: torch.Generator) -> Sampler:
        device = generator.device
        u, deviation = self.factors.to(device), self.diagonal.sqrt()[:, None].to(device)
        directions = F.normalize(u, dim=1)

        def sample(n: int) -> Tensor:
            noise = torch.randn(2, len(u), n, u.shape[1], generator=generator, device=device)
            along = noise[0] @ directions @ u.mT  # by the symmetric root of U Uᵀ: see `_root`
            return along + noise[1] * deviation

        return sample

    def _cut(self, matrix: Array, diagonal: Array) -> tuple[Array, Array]:
        """Cut a covariance to U and d, where this much of its diagonal belongs to d."""
        u = _largest(matrix - np.diag(diagonal), self.factors.shape[-1])
        return u, (matrix.diagonal() - np.square(u).sum(axis=1)).clip(min=0)


@dataclass(frozen=True)
class LowRankShared(Covariances):
    """For each class, its largest directions and a multiple of one matrix that all share.

    Σ = U Uᵀ + v M, with an M of trace 1 for all classes. Their mean is exact.
    """

    factors: Tensor  # (classes, width, rank): U, orthogonal columns
    variance: Tensor  # (classes,): v
    rest: Tensor  # (width, width): M; zeros while there is none
    name = "low-rank+shared"

    @classmethod
    def empty(cls, width: int) -> Self:
        factors = torch.zeros(0, width, min(RANK, width))
        return cls(factors, torch.zeros(0), torch.zeros(width, width))

    def shapes(self, n_classes: int, width: int) -> dict[str, tuple[int, ...]]:
        wanted: dict[str, tuple[int, ...]] = {"factors": (n_classes, width, _rank(self))}
        return wanted | {"variance": (n_classes,), "rest": (width, width)}

    def matrix(self, row: int) -> Tensor:
        u = self.factors[row].double()
        return u @ u.T + self.variance[row].double() * self.rest.double()

    def mean(self) -> Tensor:
        return _mean_product(self.factors) + self.variance.double().mean() * self.rest.double()

    def updated(self, row: int, matrix: Tensor) -> Self:
        u = largest(matrix, self.factors.shape[-1])
        rest = matrix - u @ u.T
        if rest.trace() <= EPS * matrix.trace():  # nothing but rounding
            rest = torch.zeros_like(rest)
        others = self.variance[:row].double().sum() + self.variance[row + 1 :].double().sum()
        return type(self)(
            with_row(self.factors, row, u),
            with_row(self.variance, row, rest.trace()),
            _of_trace_1(others * self.rest.double() + rest).float(),
        )

    def emptied(self) -> Self:
        return type(self)(self.factors[:0], self.variance[:0], torch.zeros_like(self.rest))

    def extended(self, other: Self) -> Self:
        sums = [part.variance.double().sum() * part.rest.double() for part in (self, other)]
        factors = torch.cat([self.factors, other.factors])
        variance = torch.cat([self.variance, other.variance])
        return type(self)(factors, variance, _of_trace_1(sums[0] + sums[1]).float())

    def mapped(self, map_: Tensor) -> Self:
        whole = _for_each(map_, len(self.rest))
        u = whole.T @ self.factors.double()
        _, vectors = torch.linalg.eigh(u.mT @ u)  # so that columns are orthogonal again
        rest = whole.T @ self.rest.double() @ whole
        variance = self.variance.double() * rest.trace().clamp(min=0)
        return type(self)((u @ vectors).float(), variance.float(), _of_trace_1(rest).float())

    def without(self, row: int) -> Self:
        # The share of the class in the rest cannot be told apart.
        factors, variance = (without_row(part, row) for part in (self.factors, self.variance))
        return type(self)(factors, variance, self.rest)

    def low_rank(self, n_classes: int) -> LowRank:
        # With the variances of the rest, but not its correlations.
        return LowRank(self.factors, self.variance[:, None] * self.rest.diagonal().clamp(min=0))

    def sampler(self, n_classes: int, generator: torch.Generator) -> Sampler:
        device, width = generator.device, len(self.rest)
        root = _root(self.rest.double().to(for_float64(device))).to(device, torch.float32)
        u, size = self.factors.to(device), self.variance.sqrt()[:, None, None].to(device)
        directions = F.normalize(u, dim=1)

        def sample(n: int) -> Tensor:
            noise = torch.randn(2, len(u), n, width, generator=generator, device=device)
            return noise[0] @ directions @ u.mT + size * (noise[1] @ root.T)

        return sample


COVARIANCES: dict[str, type[Covariances]] = {
    cls.name: cls for cls in (Shared, LowRank, Full, LowRankShared)
}


def largest(matrix: Tensor, rank: int) -> Tensor:
    """Return the largest directions of a covariance, as long as the deviations: (width, rank)."""
    with Threads(1) as thread:  # for its one BLAS thread
        (found,) = thread.map(_largest, [matrix.numpy()], [rank])
    return torch.from_numpy(found)


def _largest(matrix: Array, rank: int) -> Array:
    """Return the same as `largest`, as arrays."""
    width = len(matrix)
    # Not torch's, which finds all directions where a few are wanted, in over twice the time.
    if width >= ITERATIVE and matrix.any():  # iteratively, which is faster
        start = np.random.default_rng(0).standard_normal(width)
        values, found = scipy.sparse.linalg.eigsh(matrix, rank, which="LA", v0=start, tol=1e-4)
        # With either sign it is the same direction: the largest part is to be positive.
        found *= np.sign(found[np.abs(found).argmax(axis=0), np.arange(rank)])
    else:
        values, found = scipy.linalg.eigh(matrix, subset_by_index=[width - rank, width - 1])
    scaled: Array = found * np.sqrt(values.clip(min=0))
    return scaled


def with_row(rows: Tensor, row: int, new: Tensor) -> Tensor:
    """Return the rows with one replaced, or appended."""
    return torch.cat([rows[:row], new[None].to(rows), rows[row + 1 :]])


def _rank(low_rank: LowRank | LowRankShared) -> int:
    """Return the rank that factors must have: the one that the model began with."""
    return max(1, min(low_rank.factors.shape[1:]))


def _mean_product(factors: Tensor) -> Tensor:
    """Return the mean of U Uᵀ over the classes."""
    u = factors.double().transpose(0, 1).flatten(1)  # (width, classes · rank)
    return u @ u.T / len(factors)


def _of_trace_1(matrix: Tensor) -> Tensor:
    """Scale a covariance to trace 1; zeros stay zeros."""
    trace = matrix.trace()
    return matrix / trace if trace > 0 else torch.zeros_like(matrix)


def _for_each(map_: Tensor, width: int) -> Tensor:
    """Return the block-diagonal map of features that are several vectors, concatenated."""
    return torch.kron(torch.eye(width // len(map_), dtype=map_.dtype), map_.contiguous())


def _root(matrix: Tensor) -> Tensor:
    """Return the symmetric R with R Rᵀ = Σ, for a Σ of any rank.

    It is unique. Eigenvectors are not: rounding decides their signs, so samples by another root
    would depend on the number of threads or processes.
    """
    values, directions = torch.linalg.eigh(matrix)
    root: Tensor = directions * values.clamp(min=0).sqrt() @ directions.T
    return root


def _sampler(roots: Tensor, n_classes: int, generator: torch.Generator) -> Sampler:
    """Return a sampler from N(0, R Rᵀ) for each class; R may be one for all classes."""
    rank = roots.shape[-1]
    device = generator.device
    roots = roots.to(device)

    def sample(n: int) -> Tensor:
        return torch.randn(n_classes, n, rank, generator=generator, device=device) @ roots.mT

    return sample
