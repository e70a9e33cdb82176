"""Classifiers from class statistics: in closed form, and fine-tuned on pseudo-features.

Pseudo-features are samples of the classes' Gaussians (Gaussian replay). Where there are exemplars,
their features are used, too.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.nets.multihead import MultiHead
from lmrc.statistics.classes import ClassStatistics, by_rotation
from lmrc.statistics.prediction_rules import linear_scores, similarities
from lmrc.statistics.pseudo_features import SAMPLES, partly_real, pseudo_features
from lmrc.statistics.ridge import Regression, ridge_regression, shrinkage
from lmrc.statistics.scatter import Scatter

SHRINKAGE = 0.1  # of the covariance towards a sphere
STEPS, RATE = 300, 2e-3  # of Adam; its first rate
EPS = 1e-12


def discriminant(statistics: ClassStatistics) -> dict[str, Tensor]:
    """Return Fisher's discriminant: ``lda_weight``, (rotations, classes, width), ``lda_bias``."""
    covariance = shrunk(statistics.covariances.mean(), SHRINKAGE)
    return _discriminant(statistics.means, torch.linalg.cholesky(covariance))


class Exact(NamedTuple):
    """Classifiers from exact statistics, and what they were computed by."""

    classifiers: dict[str, Tensor]
    factor: Tensor  # lower, of the discriminant's covariance
    shrinkage: float  # of it
    regression: Regression


def exact(scatter: Scatter, width: int, device: torch.device) -> Exact:
    """Return the discriminant of normalised features, and ``ridge_weight``, (classes, inputs).

    The statistics are of what `ridge.expand` returns, `width` is the number of features. The
    discriminant's shrinkage depends on the number of images.
    """
    features = scatter.of(width, 2 * width)
    covariance = features.covariance()
    amount = shrinkage(covariance, max(1, scatter.n_images - len(scatter.counts)))
    factor = torch.linalg.cholesky(shrunk(covariance, amount))
    found = _discriminant(features.means[:, None], factor)
    regression = ridge_regression(scatter.of(width), device)
    found["ridge_weight"] = regression.weight
    return Exact(found, factor, amount, regression)


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """Return a covariance shrunk towards a sphere."""
    size = covariance.diagonal().mean() + EPS
    found = (1 - shrinkage) * covariance
    found.diagonal().add_(shrinkage * size)
    return found


def _discriminant(means: Tensor, factor: Tensor) -> dict[str, Tensor]:
    """Return Fisher's linear discriminant: Gaussians with one covariance Σ for all classes.

    The score of class c for features x in rotation r is x · Σ⁻¹ μ − ½ μ · Σ⁻¹ μ with the mean
    μ of (c, r); all seen from the mean of the classes, which changes no order and saves digits.
    `factor` is the lower one of Σ.
    """
    means = means.double().transpose(0, 1)  # (rotations, classes, width)
    middle = means.mean(dim=1, keepdim=True)
    away = means - middle
    weight = torch.cholesky_solve(away.flatten(0, 1).T, factor).T.view_as(means)
    bias = -(weight * (away / 2 + middle)).sum(dim=-1)
    return {"lda_weight": weight.float().contiguous(), "lda_bias": bias.float()}


def fit_head(head: MultiHead, vectors: Tensor, scatter: Scatter) -> None:
    """Fit the last head by least squares, in place: its responses to its classes' label vectors.

    With features that do not change, this takes no training. Other heads stay as they are.
    `scatter` is of the features that the heads are given, `vectors`, (n, dim), are the last of all.
    """
    n, covariance = len(vectors), scatter.covariance()
    amount = shrinkage(covariance, max(1, scatter.n_images - len(scatter.counts)))
    means = scatter.means[-n:].double()
    middle = means.mean(dim=0)
    away = means - middle
    factor = torch.linalg.cholesky(shrunk(covariance + away.T @ away / n, amount))
    weight = torch.cholesky_solve(away.T, factor).T / n
    bias = 1 / n - weight @ middle
    vectors = vectors.cpu().double()
    with torch.no_grad():
        head.weight[-1] = vectors.T @ weight
        head.bias[-1] = vectors.T @ bias


def finetune(
    head: MultiHead,
    vectors: Tensor,
    statistics: ClassStatistics,
    sizes: Sequence[int],
    *,
    scale: float,
    non_negative: bool,
    generator: torch.Generator,
    real: Mapping[int, Tensor] = MappingProxyType({}),
) -> dict[str, Tensor]:
    """Return the discriminant, and heads and a linear classifier that tell all classes apart.

    Both are trained on pseudo-features, and on real ones where there are any: the
    heads begin as they are, the classifier as the discriminant. All classes take part in one
    softmax here: pseudo-features of all of them are at hand, so none is suppressed.

    Parameters
    ----------
    head : MultiHead
        Left as it is.
    vectors : Tensor of shape (classes, rotations, dim)
        Label vectors.
    statistics : ClassStatistics
        Of the features that the heads are given, or of more that come before them; of each
        rotation, or of all rotations of an image, `concatenated`.
    sizes : sequence of int
        Classes of each head.
    scale : float
        What cosines are multiplied with before the softmax.
    non_negative : bool
        Whether features end in a ReLU, and pseudo-features shall, too.
    generator : torch.Generator
        RNG.
    real : mapping of int to Tensor of shape (rotations, n, width), optional
        By class, features of its images: they take part of the pseudo-features' place.

    Returns
    -------
    dict of Tensor
        What `discriminant` returns, ``head_weight`` and ``head_bias`` of the heads' shapes, and
        ``linear_weight`` and ``linear_bias`` of the discriminant's.
    """
    lda = discriminant(statistics)
    rng = torch.Generator(head.weight.device)
    rng.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    rotations, kept = vectors.shape[1], statistics.means.shape[1]
    pseudo = pseudo_features(statistics, non_negative, rng, SAMPLES * kept // rotations)
    if real:
        pseudo = partly_real(pseudo, real, len(statistics.counts), rng)

    weight, bias = (p.detach().clone().requires_grad_() for p in (head.weight, head.bias))

    def of_heads(x: Tensor) -> Tensor:
        x = by_rotation(x, rotations)[..., -weight.shape[-1] :]
        found = similarities(x, weight, bias, vectors, sizes)
        return scale * (found if kept == rotations else found.mean(dim=0, keepdim=True))

    classifier = _Linear(lda, weight.device)
    parts = [weight, bias, *classifier.parts]
    # Two in one go: no part is in both.
    _minimise([of_heads, classifier.logits], parts, pseudo, len(statistics.counts))
    found = {"head_weight": weight.detach().cpu(), "head_bias": bias.detach().cpu()}
    return lda | found | classifier.learnt()


def finetune_linear(
    statistics: ClassStatistics,
    *,
    non_negative: bool,
    generator: torch.Generator,
    device: torch.device,
) -> dict[str, Tensor]:
    """Return ``linear_weight`` and ``linear_bias`` alone, without heads: see `finetune`.

    Each step has `SAMPLES` of a class, however many rotations an image has.
    """
    rng = torch.Generator(device)
    rng.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    pseudo = pseudo_features(statistics, non_negative, rng, SAMPLES)
    classifier = _Linear(discriminant(statistics), device)
    _minimise([classifier.logits], classifier.parts, pseudo, len(statistics.counts))
    return classifier.learnt()


class _Linear:
    """A linear classifier that begins as the discriminant."""

    def __init__(self, lda: Mapping[str, Tensor], device: torch.device) -> None:
        weight, bias = (lda[name].to(device) for name in ("lda_weight", "lda_bias"))
        size = weight.norm(dim=-1).mean() + EPS  # Adam's steps are of one size: weights are, too
        self.weight, self.bias = ((part / size).requires_grad_() for part in (weight, bias))
        self.log_scale = size.log().requires_grad_()
        self.parts = [self.weight, self.bias, self.log_scale]

    def logits(self, x: Tensor) -> Tensor:
        """Return the scores of features, (rotations, n, width)."""
        scores: Tensor = self.log_scale.exp() * linear_scores(x, self.weight, self.bias)
        return scores

    @torch.no_grad()
    def learnt(self) -> dict[str, Tensor]:
        """Return ``linear_weight`` and ``linear_bias``."""
        weight, bias = (self.log_scale.exp() * part for part in (self.weight, self.bias))
        return {"linear_weight": weight.cpu(), "linear_bias": bias.cpu()}


def _minimise(
    scorers: Sequence[Callable[[Tensor], Tensor]],
    parts: list[Tensor],
    pseudo: Callable[[], Tensor],
    n_classes: int,
) -> None:
    """Minimise the cross-entropy of each scorer's logits on pseudo-features."""
    optimiser = torch.optim.Adam(parts, lr=RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for _ in range(STEPS):
        x = pseudo()
        with torch.enable_grad():
            rotations, n, _ = x.shape
            y = torch.arange(n_classes, device=x.device).repeat_interleave(n // n_classes)
            y = y.repeat(rotations)
            each = [F.cross_entropy(logits(x).flatten(0, 1), y) for logits in scorers]
            loss = torch.stack(each).sum()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        falling.step()
