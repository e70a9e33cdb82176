"""Sums over the scores of held-out images, by class: they replace the images.

Probabilities are a softmax of scores times one number, the logit scale (temperature scaling: Guo
et al., "On Calibration of Modern Neural Networks", ICML 2017). For each class, these sums hold its
cross-entropy at a range of scales, to which later tasks add, and quantiles of its unknown scores,
which tell the share of known images above a threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.nets.erasing import without_row

#: Logit scales at which the cross-entropy is known, ascending: 0.1 … 1000.
SCALES = torch.logspace(-1, 3, 41, dtype=torch.float64)
QUANTILES = 33  # of a class's unknown scores, evenly spaced from the lowest to the highest
# A prior for the scale, and its weight: without it, a few images that are all classified correctly
# would ask for probabilities of 0 and 1.
USUAL_SCALE, USUAL_WEIGHT = 10.0, 2.0


@dataclass(frozen=True)
class HeldOut:
    """Sums over held-out images, by class. Immutable: a change returns a new object."""

    counts: Tensor  # (classes,): held-out images
    losses: Tensor  # (classes, scales): their cross-entropies at each of `SCALES`, summed
    #: (classes, quantiles): quantiles of their unknown scores; 0 for a class without images.
    unknown: Tensor

    @classmethod
    def empty(cls, n_classes: int) -> Self:
        """Return sums over no images."""
        return cls(
            torch.zeros(n_classes),
            torch.zeros(n_classes, len(SCALES)),
            torch.zeros(n_classes, QUANTILES),
        )

    @classmethod
    def of(cls, scores: Tensor, unknown: Tensor, y: Tensor) -> Self:
        """Sum up images by their scores (n, classes), unknown scores (n,) and classes (n,)."""
        n_classes = scores.shape[1]
        scores, found = scores.double(), cls.empty(n_classes)
        losses = torch.stack([F.cross_entropy(s * scores, y, reduction="none") for s in SCALES])
        sums = torch.zeros(n_classes, len(SCALES), dtype=torch.float64)
        sums.index_add_(0, y, losses.T)
        quantiles, at = found.unknown, torch.linspace(0, 1, QUANTILES)
        for row in torch.unique(y).tolist():
            quantiles[row] = torch.quantile(unknown[y == row].float(), at)
        return cls(torch.bincount(y, minlength=n_classes).float(), sums.float(), quantiles)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Undo `tensors`; others are ignored."""
        return cls(**{field.name: tensors[field.name] for field in fields(cls)})

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save, by name."""
        return dict(vars(self))

    def check(self, n_classes: int) -> None:
        """Raise ValueError unless shapes, types and ranges fit (a file may be forged)."""
        like = self.empty(n_classes)
        for name, tensor in self.tensors().items():
            wanted = tuple(getattr(like, name).shape)
            if tuple(tensor.shape) != wanted or tensor.dtype != torch.float32:
                raise ValueError(f"the calibration's {name} is not of shape {wanted} in float32")
        if not bool((self.counts >= 0).all()):
            raise ValueError("the calibration's counts holds values below 0")

    def joined(self, later: HeldOut) -> Self:
        """Add later images; classes may have been added."""
        more = len(later.counts) - len(self.counts)
        counts, losses, unknown = (
            torch.cat([t, t.new_zeros(more, *t.shape[1:])]) for t in self.tensors().values()
        )
        for row in torch.nonzero(later.counts).flatten().tolist():
            values = torch.cat([unknown[row], later.unknown[row]])
            weights = torch.stack([counts[row], later.counts[row]]).repeat_interleave(QUANTILES)
            unknown[row] = quantiles(values, weights, torch.linspace(0, 1, QUANTILES))
        return type(self)(counts + later.counts, losses + later.losses, unknown)

    def without(self, row: int) -> Self:
        """Remove a class."""
        return type(self)(*(without_row(tensor, row) for tensor in self.tensors().values()))

    def logit_scale(self, usual: float = USUAL_SCALE) -> float:
        """Return the scale of lowest cross-entropy; all classes have the same weight."""
        there = self.counts > 0
        total = USUAL_WEIGHT * (SCALES / usual).log().square()
        if bool(there.any()):
            each = self.losses[there].double() / self.counts[there, None]
            total = total + self.counts.sum() * each.mean(dim=0)
        best = int(total.argmin())
        if not 0 < best < len(SCALES) - 1:
            return float(SCALES[best])
        left, middle, right = total[best - 1 : best + 2].tolist()  # a parabola has its lowest here
        shift = 0.5 * (left - right) / max(left - 2 * middle + right, 1e-30)
        return float(SCALES[best] * (SCALES[1] / SCALES[0]) ** shift)

    def offsets(self) -> Tensor:
        """Return each class's mean unknown score less the mean over the classes, (classes,)."""
        there, means = self.counts > 0, self.unknown.mean(dim=1)
        return torch.where(there, means - means[there].mean(), 0) if bool(there.any()) else means

    def threshold(self, share: float, offsets: Tensor) -> float:
        """Return the unknown score that this share of known images exceeds.

        All classes have the same weight; offsets, (classes,), are subtracted from their scores.
        The lowest and the highest of n images are taken as the quantiles 1 / (n + 1) and
        n / (n + 1), since few images spread less than many will.
        """
        there = self.counts > 0
        n, found = self.counts[there, None].clamp(min=2), self.unknown[there]
        means = found.mean(dim=1, keepdim=True)
        spread = means + (n + 1) / (n - 1) * (found - means)
        values = (spread - offsets[there, None]).flatten()
        return float(quantiles(values, torch.ones_like(values), torch.tensor([1 - share])))


def quantiles(values: Tensor, weights: Tensor, at: Tensor) -> Tensor:
    """Return quantiles of weighted values, interpolated between neighbours.

    >>> quantiles(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.5, 1.0]))
    tensor([1., 2., 3.])
    """
    order = values.argsort()
    values, weights = values[order].double(), weights[order].double()
    ends = weights.cumsum(dim=0)
    places = (ends - weights / 2) / ends[-1]  # of each value, 0 … 1
    right = torch.searchsorted(places, at.double()).clamp(1, len(values) - 1)
    left = right - 1
    gap = (places[right] - places[left]).clamp(min=1e-30)
    share = ((at - places[left]) / gap).clamp(0, 1)
    return torch.lerp(values[left], values[right], share).float()
