"""Residuals: how far features lie outside of the directions in which a class varies.

As in SIMCA, each class has its own principal directions (Wold, "Pattern Recognition by Means
of Disjoint Principal Components Models", Pattern Recognition 1976). The residual of an image is its
distance from a class's mean, less the part along these directions, weighted by how much the class
varies along them, as in probabilistic principal component analysis (Tipping and Bishop, JRSS
B 1999): a Mahalanobis distance, times the deviation of the other directions.

Features are scaled to length 1. A class's factors are its directions, each as long as the standard
deviation along it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import scipy.linalg
import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.statistics.classes import ClassStatistics
from lmrc.statistics.covariances import RANK
from lmrc.statistics.ridge import normalised
from lmrc.statistics.scatter import Scatter
from lmrc.training.memory import Memory

MAX_IMAGES = 500  # of a class in a task, that its directions are of
EPS = 1e-12


class Class(NamedTuple):
    """Features of a class, in float64."""

    n_images: int
    mean: Tensor  # (width,)
    factors: Tensor  # (rank, width)

    @classmethod
    def of(cls, x: Tensor) -> Class:
        """Summarise features, (n, width)."""
        some = x[:: -(-len(x) // MAX_IMAGES)]
        mean = x.mean(dim=0)
        return cls(len(x), mean, principal(some - mean, len(some)))

    def joined(self, other: Class) -> Class:
        """Combine two sets of features."""
        (n, mean, factors), (more, other_mean, others) = self, other
        away = math.sqrt(n * more / (n + more)) * (other_mean - mean)[None]
        rows = torch.cat([math.sqrt(n) * factors, math.sqrt(more) * others, away])
        joint = mean + more / (n + more) * (other_mean - mean)
        return Class(n + more, joint, principal(rows, n + more))


def principal(rows: Tensor, n_images: int) -> Tensor:
    """Return the factors, (rank, width), of a covariance RᵀR / n with rows R, (m, width)."""
    m, width = rows.shape
    gram = rows @ rows.T if m <= width else rows.T @ rows
    rank = min(RANK, len(gram))
    if not rank:  # SciPy 1.11 refuses an empty matrix
        return rows.new_zeros(min(RANK, width), width)
    values, vectors = scipy.linalg.eigh(
        gram.numpy(), subset_by_index=[len(gram) - rank, len(gram) - 1]
    )
    directions = torch.from_numpy(vectors).T
    if m <= width:
        found = directions @ rows
    else:
        found = directions * torch.from_numpy(values).clamp(min=0).sqrt()[:, None]
    return F.pad(found / math.sqrt(n_images), (0, 0, 0, min(RANK, width) - rank))


def add_factors(before: Tensor, scatter: Scatter, task: Memory) -> Tensor:
    """Return the factors of all classes, (classes, rank, width), with those of a task.

    `before` are those without it, `scatter` exact statistics without it. Its samples are features.
    """
    found = list(before)
    for row in torch.unique(task.y).tolist():  # in order
        known = Class.of(_of_class(task, row))
        if row < len(before):
            known = known_class(before, scatter, row).joined(known)
        found[row : row + 1] = [known.factors.float()]
    return torch.stack(found)


def known_class(factors: Tensor, scatter: Scatter, row: int) -> Class:
    """Return what is known of a class."""
    width = factors.shape[-1]
    mean = scatter.means[row, width : 2 * width].double()
    return Class(int(scatter.counts[row]), mean, factors[row].double())


def factors_of(scatter: Scatter, width: int) -> Tensor:
    """Return the factors of exact statistics; the same for all classes if they are pooled.

    The statistics are of what `ridge.expand` returns, `width` is the number of features.
    """
    features, n = scatter.of(width, 2 * width), len(scatter.counts)
    if features.is_pooled:
        values, directions = torch.linalg.eigh(features.covariance())
        found: Tensor = (directions * values.clamp(min=0).sqrt()).T[-RANK:].float()
        return found.expand(n, -1, -1).contiguous()
    parts = torch.split(features.factors.double(), features.ranks.tolist())
    each = [principal(part, k) for part, k in zip(parts, features.counts.tolist(), strict=True)]
    return torch.stack(each).float() if each else torch.zeros(0, min(RANK, width), width)


def of_statistics(statistics: ClassStatistics) -> tuple[Tensor, Tensor]:
    """Return the factors of class statistics, (classes, rank, width), and sizes, (classes,).

    The size of a class is the usual length of its features; factors are divided by it, and the
    caller divides the means.
    """
    n = len(statistics.counts)
    covariances = statistics.covariances.low_rank(n)
    factors = covariances.factors.mT
    variance = factors.square().sum(dim=(1, 2)) + covariances.diagonal.sum(dim=1)
    sizes = (statistics.means.square().sum(dim=2).mean(dim=1) + variance).sqrt() + EPS
    return (factors / sizes[:, None, None]).contiguous(), sizes


def residuals(centres: Tensor, factors: Tensor, features: Tensor) -> Tensor:
    """Return the residuals of features, (rotations, n, width), by class: (rotations, n, classes).

    `centres`, (rotations, classes, width), are means of the classes' features of length 1; to that
    the features are brought here.
    """
    with torch.autocast(features.device.type, enabled=False):
        x = F.normalize(features.float(), dim=-1)
        centres, factors = centres.to(x), factors.to(x)
        lengths = centres.square().sum(dim=-1)  # (rotations, classes)
        spare = (1 - lengths.mean(dim=0)).clamp(min=EPS) / x.shape[-1]
        weights = 1 / (factors.square().sum(dim=-1) + spare[:, None]).sqrt()
        directions = weights[..., None] * factors
        own = torch.einsum("kcw,crw->kcr", centres, directions)[:, None]
        along = (x @ directions.flatten(0, 1).T).view(*x.shape[:2], *weights.shape) - own
        far = x.square().sum(dim=-1, keepdim=True) - 2 * x @ centres.mT + lengths[:, None]
        found: Tensor = (far - along.square().sum(dim=-1)).clamp(min=EPS).sqrt()
        return found


def left_out_residuals(
    before: Tensor, scatter: Scatter, task: Memory, rows: Tensor, folds: int = 5
) -> Tensor:
    """Return the residuals of images of a task by their own classes without them, (n,).

    Each class is left out in parts (`folds`); the rest is as for `add_factors`. Of each class of
    the images at `rows` there is another image, or it is known.
    """
    found = torch.zeros(len(rows))
    y = task.y[rows]
    for row in torch.unique(y).tolist():
        x, here = _of_class(task, row), torch.nonzero(y == row).flatten()
        places = torch.searchsorted(torch.nonzero(task.y == row).flatten(), rows[here])
        known = known_class(before, scatter, row) if row < len(before) else None
        for part in torch.arange(len(here)).chunk(min(folds, len(x))):
            rest = torch.ones(len(x), dtype=torch.bool)
            rest[places[part]] = False
            model = known
            if bool(rest.any()):
                model = Class.of(x[rest])
                model = model if known is None else known.joined(model)
            assert model is not None
            parts = model.mean[None, None], model.factors[None], x[places[part]][None]
            found[here[part]] = residuals(*parts)[0, :, 0]
    return found


def _of_class(task: Memory, row: int) -> Tensor:
    return normalised(task.of_class(row).x[:]).cpu().double()
