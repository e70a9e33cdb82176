"""Scores of images by exact statistics without them: each is left out in turn, in closed form.

To leave an image x = μ + d out of the n of its class moves the class's mean to μ − d / (n − 1), and
takes n / (n − 1) · d dᵀ from its scatter matrix. So a matrix of scatter and means changes by one of
rank two, and its inverse by the Woodbury formula: one factorisation is enough for all images. For
linear regression this is PRESS: Allen, "The Relationship between Variable Selection and Data
Augmentation and a Method for Prediction", Technometrics 1974. The ridge, the shrinkage and what an
image weighs stay as they are.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.statistics.classifiers import Exact
from lmrc.statistics.prediction_rules import comparable
from lmrc.statistics.ridge import Regression, expand
from lmrc.statistics.scatter import Scatter
from lmrc.training.memory import Memory

EPS = 1e-12
MAX_IMAGES, MAX_OF_CLASS = 2000, 100  # that are left out, of a task and of a class of it


class LeftOut(NamedTuple):
    """Images of a task, each to be scored by statistics without it. In float64."""

    x: Tensor  # (n, inputs): what `expand` makes of their features
    y: Tensor  # (n,): rows of their classes
    away: Tensor  # (n, inputs): how far they are from the means of their classes
    scatter: Scatter  # exact statistics with them
    rows: Tensor  # (n,): where in the task they are

    @property
    def others(self) -> Tensor:
        """Other images of each one's class, (n,)."""
        return self.scatter.counts[self.y].double() - 1

    def means(self, start: int, stop: int | None = None) -> Tensor:
        """Return some inputs of the class means, (classes, inputs)."""
        return self.scatter.means[:, start:stop].double()


def leave_out(
    scatter: Scatter,
    task: Memory,
    projections: int,
    device: torch.device,
    generator: torch.Generator,
) -> LeftOut:
    """Return images of a task: all, or as many of each class. Never the only image of a class.

    The samples of the task are features; `scatter` are exact statistics with them.
    """
    classes, picked = torch.unique(task.y).tolist(), []
    most = max(1, min(MAX_OF_CLASS, MAX_IMAGES // len(classes)))
    for row in classes:
        rows = torch.nonzero(task.y == row).flatten()
        if scatter.counts[row] > 1:
            picked.append(rows[torch.randperm(len(rows), generator=generator)[:most]])
    found = torch.cat(picked) if picked else torch.zeros(0, dtype=torch.int64)
    samples = task.at(found)
    x = expand(samples.x[:].to(device), projections).cpu().double()
    return LeftOut(x, samples.y, x - scatter.means[samples.y].double(), scatter, found)


def scores(left_out: LeftOut, fit: Exact, width: int) -> dict[str, Tensor]:
    """Return the scores of each rule of exact statistics, (n, classes), as `PredictionRules` does.

    `fit` is the one with the images; the first `width` inputs are features.
    """
    return {
        "ncm": _nearest_mean(left_out, width),
        "lda": comparable(_discriminant(left_out, fit, width)),
        "ridge": _ridge(left_out, fit.regression, width),
    }


def _products(away: Tensor, means: Tensor) -> Tensor:
    """Return the products of deviations and class means, (n, width) each, as (n, 2, 2)."""
    pair = torch.stack([away, means], dim=1)
    return pair @ pair.mT


def _changed(products: Tensor, others: Tensor, of_image: float, of_mean: float) -> Tensor:
    """Return H, (n, 2, 2), by which products with an inverse matrix change without each image.

    With A = s · scatter + t · Σ μμᵀ + λI and U = [d, μ], G = Uᵀ A⁻¹ U becomes H G, and Uᵀ A⁻¹ x
    becomes H Uᵀ A⁻¹ x: A changes by U M Uᵀ, and H = (I + G M)⁻¹. `products` are the G of all
    images, `others` the numbers of other images of their classes, `of_image` and `of_mean` s and t.
    """
    change = torch.zeros_like(products)
    change[:, 0, 0] = of_mean / others.square() - of_image * (others + 1) / others
    change[:, 0, 1] = change[:, 1, 0] = -of_mean / others
    found: Tensor = torch.linalg.inv(torch.eye(2, dtype=products.dtype) + products @ change)
    return found


def _ridge(left_out: LeftOut, regression: Regression, width: int) -> Tensor:
    n_classes, y, weight = len(left_out.scatter.counts), left_out.y, regression.weight.double()
    means, away = left_out.means(width), left_out.away[:, width:]
    of_mean = 1 / n_classes
    pair = away.to(regression.factor), means.to(regression.factor)
    if regression.basis is not None:
        pair = _in_basis(left_out, regression.basis, pair[0])
    products = _products(regression.solved(pair[0]), regression.solved(pair[1])[y])
    if regression.basis is not None:  # B (BᵀB + λI)⁻¹ Bᵀ = I − λ (BBᵀ + λI)⁻¹
        products = _products(pair[0], pair[1][y]) - regression.ridge * products
    products = products.cpu()
    changed = _changed(products, left_out.others, 1 / left_out.scatter.n_images, of_mean)
    by_weight = torch.stack([away @ weight.T, (means @ weight.T)[y]], dim=1)  # (n, 2, classes)
    # The class's column of the targets moves, too.
    moved = of_mean / left_out.others[:, None] * products[:, :, 0]
    by_weight[torch.arange(len(y)), :, y] -= moved
    return (changed @ by_weight).sum(dim=1)


def _in_basis(left_out: LeftOut, basis: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
    """Return the d and the μ of which Bᵀ makes the deviations and the class means: (…, rows).

    A deviation is a sum of its own class's rows of B.
    """
    ranks = left_out.scatter.ranks.tolist()
    found = away.new_zeros(len(away), len(basis))
    for row in torch.unique(left_out.y).tolist():
        here = torch.nonzero(left_out.y == row).to(away.device)
        own = torch.arange(sum(ranks[:row]), sum(ranks[: row + 1]), device=away.device)
        rows = basis[own]
        inner = rows @ rows.T
        # There may be the same image twice, or nothing but.
        inner.diagonal().add_(EPS * inner.diagonal().mean() + torch.finfo(inner.dtype).tiny)
        products = rows @ away[here[:, 0]].T
        found[here, own] = torch.cholesky_solve(products, torch.linalg.cholesky(inner)).T
    n_classes = len(ranks)
    means = away.new_zeros(n_classes, len(basis))
    means[:, -n_classes:].fill_diagonal_(math.sqrt(n_classes))
    return found, means


def _discriminant(left_out: LeftOut, fit: Exact, width: int) -> Tensor:
    y, n = left_out.y, torch.arange(len(left_out.y))
    weight = fit.classifiers["lda_weight"][0].double()  # (classes, width): Σ⁻¹ μ
    means, away = left_out.means(width, 2 * width), left_out.away[:, width : 2 * width]
    means = means - means.mean(dim=0)
    half: Tensor = torch.linalg.solve_triangular(fit.factor, away.T, upper=False)
    length = half.square().sum(dim=0)  # d Σ⁻¹ d
    share = (1 - fit.shrinkage) * (left_out.others + 1) / left_out.others
    share = share / left_out.scatter.n_images
    gain = share / (1 - share * length)  # Σ⁻¹ grows by gain · Σ⁻¹ d dᵀ Σ⁻¹
    step = 1 / left_out.others  # by which the mean moves, in −d
    of_away, of_means = away @ weight.T, means @ weight.T  # d Σ⁻¹ μ, μ Σ⁻¹ μ
    own = of_away[n, y]
    # x Σ⁻¹ μ and μ Σ⁻¹ μ of all classes, then of the image's own, whose mean moves.
    product = of_away + of_means[y] + (gain * (length + own))[:, None] * of_away
    square = of_means.diagonal() + gain[:, None] * of_away.square()
    product[n, y] -= step * (length + own) * (1 + gain * length)
    square[n, y] += (1 + gain * length) * (step.square() * length - 2 * step * own)
    return product - square / 2


def _nearest_mean(left_out: LeftOut, width: int) -> Tensor:
    y, n = left_out.y, torch.arange(len(left_out.y))
    x, away = (part[:, width : 2 * width] for part in (left_out.x, left_out.away))
    means = left_out.means(width, 2 * width)
    x = F.normalize(x, dim=1)
    found = x @ F.normalize(means, dim=1).T
    moved = F.normalize(means[y] - away / left_out.others[:, None], dim=1)
    found[n, y] = (x * moved).sum(dim=1)
    return found
