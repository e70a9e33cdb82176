"""Mean and covariance of the features of each class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from lmrc.nets.erasing import without_row
from lmrc.statistics.covariances import COVARIANCES, Covariances, with_row
from lmrc.statistics.drift import LinearMap


class Summary(NamedTuple):
    """Mean and covariance of the features of a class, in float64."""

    mean: Tensor  # (rotations, width)
    covariance: Tensor  # (width, width), around the mean of each rotation
    n_images: float

    @classmethod
    def of(cls, features: Tensor, n_images: int) -> Summary:
        """Summarise features of shape (rotations, n, width); an image may have several views."""
        mean = features.mean(dim=1)
        centred = (features - mean[:, None]).flatten(0, 1)
        return cls(mean.cpu(), (centred.T @ centred / len(centred)).cpu(), float(n_images))

    def joined(self, other: Summary) -> Summary:
        """Combine two sets of features, weighted by their numbers of images."""
        n = self.n_images + other.n_images
        share, away = other.n_images / n, other.mean - self.mean
        between = share * (1 - share) * away.T @ away / len(away)  # covariance of the two means
        matrix = share * other.covariance + (1 - share) * self.covariance + between
        return Summary(self.mean + share * away, matrix, n)


def summed(parts: Iterable[Mapping[int, Tensor]]) -> dict[int, Summary]:
    """Summarise the features of a class by several networks, from chunks of images."""
    found: dict[int, Summary] = {}
    for part in parts:
        for network, features in part.items():
            some = Summary.of(features, features.shape[1])
            found[network] = found[network].joined(some) if network in found else some
    return found


@dataclass(frozen=True)
class ClassStatistics:
    """Means and covariances of all classes. Immutable: a change returns a new object."""

    counts: Tensor  # (classes,): images of each class
    #: (classes, rotations, width): a mean for each rotation of the images; a single one if images
    #: are not rotated, or if the features of all rotations form one vector: see `concatenated`.
    means: Tensor
    covariances: Covariances  # of each class around these means, all rotations together

    @classmethod
    def empty(cls, kind: str, rotations: int, width: int) -> Self:
        """Return statistics of no class."""
        covariances = COVARIANCES[kind].empty(width)
        return cls(torch.zeros(0), torch.zeros(0, rotations, width), covariances)

    @classmethod
    def from_tensors(cls, kind: str, tensors: Mapping[str, Tensor]) -> Self:
        """Undo `tensors`."""
        rest = {name: t for name, t in tensors.items() if name not in ("counts", "means")}
        return cls(tensors["counts"], tensors["means"], COVARIANCES[kind](**rest))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save, by name."""
        return {"counts": self.counts, "means": self.means, **self.covariances.tensors()}

    def check(self, n_classes: int, rotations: int, width: int) -> None:
        """Raise ValueError unless shapes, types and ranges fit (a file may be forged)."""
        wanted = {"counts": (n_classes,), "means": (n_classes, rotations, width)}
        wanted |= self.covariances.shapes(n_classes, width)
        for name, tensor in self.tensors().items():
            if tuple(tensor.shape) != wanted[name] or tensor.dtype != torch.float32:
                shape = f"shape {wanted[name]} in float32"
                raise ValueError(f"the statistics' {name} is not of {shape}")
        for name, least in (("counts", 1), ("diagonal", 0), ("variance", 0)):
            if name in wanted and not bool((self.tensors()[name] >= least).all()):
                raise ValueError(f"the statistics' {name} holds values below {least}")

    def mapped(self, drift: LinearMap) -> Self:
        """Compensate feature drift: μ W + b, and Wᵀ Σ W, for each of concatenated rotations."""
        means = drift(self.means).float()
        return type(self)(self.counts, means, self.covariances.mapped(drift.weight))

    def interpolated(self, rows: Tensor, means: Tensor, share: float) -> Self:
        """Move the means of some classes towards others, by this share of the distance."""
        moved = self.means.clone()
        moved[rows] = torch.lerp(moved[rows], means.to(moved), share)
        return type(self)(self.counts, moved, self.covariances)

    def with_class(self, row: int, found: Summary) -> Self:
        """Add a class at the row after the last, or more images of a known one."""
        if row < len(self.counts):
            mean, matrix = self.means[row].double(), self.covariances.matrix(row)
            found = Summary(mean, matrix, float(self.counts[row])).joined(found)
        mean, matrix, n = found
        return type(self)(
            with_row(self.counts, row, torch.tensor(n)),
            with_row(self.means, row, mean),
            self.covariances.updated(row, matrix),
        )

    def emptied(self) -> Self:
        """Remove all classes."""
        return type(self)(self.counts[:0], self.means[:0], self.covariances.emptied())

    def extended(self, other: Self) -> Self:
        """Append the classes of other statistics."""
        return type(self)(
            torch.cat([self.counts, other.counts]),
            torch.cat([self.means, other.means]),
            self.covariances.extended(other.covariances),
        )

    def without(self, row: int) -> Self:
        """Remove a class."""
        return type(self)(
            without_row(self.counts, row),
            without_row(self.means, row),
            self.covariances.without(row),
        )


def concatenated(features: Tensor) -> Tensor:
    """Concatenate an image's rotations: (rotations, n, width) to (1, n, rotations · width).

    Covariances of these vectors hold how the features of an image's rotations vary together.
    """
    return features.transpose(0, 1).flatten(1)[None]


def by_rotation(features: Tensor, rotations: int) -> Tensor:
    """Undo `concatenated`, if it was applied: return (rotations, n, width)."""
    if len(features) == rotations:
        return features
    return features[0].reshape(features.shape[1], rotations, -1).transpose(0, 1)


def arranged(features: Tensor, rotations: int) -> Tensor:
    """Concatenate features, (rotations, n, width), unless statistics have all rotations apart."""
    return features if len(features) == rotations else concatenated(features)
