"""Prediction rules from class statistics: LDA, and classifiers fine-tuned on pseudo-features.

Pseudo-features are samples of the classes' Gaussians (Gaussian replay). Where there are exemplars,
their features are used, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.nets.multihead import MultiHead, cosines
from lmrc.statistics.classes import ClassStatistics
from lmrc.statistics.pseudo_features import partly_real, pseudo_features
from lmrc.statistics.ridge import (
    Regression,
    normalised,
    ridge_regression,
    ridge_scores,
    shrinkage,
)
from lmrc.statistics.scatter import Scatter

SHRINKAGE = 0.1  # of the covariance towards a sphere
STEPS, RATE = 300, 2e-3  # of Adam; its first rate
EPS = 1e-12

#: Prediction rules: Winner-Take-All, and those that need statistics.
RULES = ("wta", "lda", "finetuned", "linear", "ensemble", "ncm", "ridge")
#: Those that exact statistics are enough for.
EXACT = ("lda", "ncm", "ridge")
#: Those that are fitted to pseudo-features.
FINETUNED = ("finetuned", "linear", "ensemble")
#: What each of the others needs of what is kept.
_NEEDS = {"wta": (), "lda": ("lda_weight",), "ncm": ("class_means",), "ridge": ("ridge_weight",)}


def discriminant(statistics: ClassStatistics) -> dict[str, Tensor]:
    """Return Fisher's linear discriminant.

    Returns
    -------
    dict of Tensor
        ``lda_weight``, (rotations, classes, width), and ``lda_bias``, (rotations, classes).
    """
    return _discriminant(statistics.means, shrunk(statistics.covariances.mean(), SHRINKAGE))


class Exact(NamedTuple):
    """Classifiers from exact statistics, and what they were computed by."""

    classifiers: dict[str, Tensor]
    covariance: Tensor  # of normalised features, around the class means
    shrinkage: float  # of it
    regression: Regression


def exact(scatter: Scatter, width: int, device: torch.device) -> Exact:
    """Return the discriminant of normalised features, and ``ridge_weight``, (classes, inputs).

    The discriminant's shrinkage depends on the number of images.

    Parameters
    ----------
    scatter : Scatter
        Of what `ridge.expand` returns.
    width : int
        How many of these are features.
    device : torch.device
        Where to compute.
    """
    features = scatter.of(width, 2 * width)
    covariance = features.covariance()
    amount = shrinkage(covariance, max(1, scatter.n_images - len(scatter.counts)))
    found = _discriminant(features.means[:, None], shrunk(covariance, amount))
    regression = ridge_regression(scatter.of(width), device)
    found["ridge_weight"] = regression.weight
    return Exact(found, covariance, amount, regression)


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """Return a covariance shrunk towards a sphere."""
    size = covariance.diagonal().mean() + EPS
    found = (1 - shrinkage) * covariance
    found.diagonal().add_(shrinkage * size)
    return found


def _discriminant(means: Tensor, covariance: Tensor) -> dict[str, Tensor]:
    """Return Fisher's linear discriminant: Gaussians with one covariance Σ for all classes.

    The score of class c for features x in rotation r is x · Σ⁻¹ μ − ½ μ · Σ⁻¹ μ with the mean
    μ of (c, r); all seen from the mean of the classes, which changes no order and saves digits.
    """
    means = means.double().transpose(0, 1)  # (rotations, classes, width)
    middle = means.mean(dim=1, keepdim=True)
    away = means - middle
    weight = torch.linalg.solve(covariance, away.flatten(0, 1).T).T.view_as(means)
    bias = -(weight * (away / 2 + middle)).sum(dim=-1)
    return {"lda_weight": weight.float().contiguous(), "lda_bias": bias.float()}


def fit_head(head: MultiHead, vectors: Tensor, scatter: Scatter) -> None:
    """Fit the last head by least squares: its responses to its own classes' label vectors.

    With features that do not change, this takes no training. Other heads stay as they are.

    Parameters
    ----------
    head : MultiHead
        Changed in place.
    vectors : Tensor of shape (n, dim)
        Label vectors of its classes, the last of all.
    scatter : Scatter
        Of the features that the heads are given.
    """
    n, covariance = len(vectors), scatter.covariance()
    amount = shrinkage(covariance, max(1, scatter.n_images - len(scatter.counts)))
    means = scatter.means[-n:].double()
    middle = means.mean(dim=0)
    away = means - middle
    weight = torch.linalg.solve(shrunk(covariance + away.T @ away / n, amount), away.T).T / n
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
        Of the features that the heads are given, or of more that come before them.
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
    pseudo = pseudo_features(statistics, non_negative, rng)
    if real:
        pseudo = partly_real(pseudo, real, len(statistics.counts), rng)

    weight, bias = (p.detach().clone().requires_grad_() for p in (head.weight, head.bias))

    def of_heads(x: Tensor) -> Tensor:
        return scale * _similarities(x[..., -weight.shape[-1] :], weight, bias, vectors, sizes)

    weights, biases = (lda[name].to(weight.device) for name in ("lda_weight", "lda_bias"))
    size = weights.norm(dim=-1).mean() + EPS  # Adam's steps are of one size: weights are, too
    weights, biases = ((part / size).requires_grad_() for part in (weights, biases))
    log_scale = size.log().requires_grad_()

    def of_classifier(x: Tensor) -> Tensor:
        scores: Tensor = log_scale.exp() * _linear(x, weights, biases)
        return scores

    parts = [weight, bias, weights, biases, log_scale]
    # Two in one go: no part is in both.
    _minimise([of_heads, of_classifier], parts, pseudo, len(statistics.counts))
    with torch.no_grad():
        weights, biases = (log_scale.exp() * part for part in (weights, biases))
    found = {"head_weight": weight, "head_bias": bias}
    found |= {"linear_weight": weights, "linear_bias": biases}
    return lda | {name: part.detach().cpu() for name, part in found.items()}


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


def possible(kept: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return those of `RULES` that there are classifiers for."""
    return tuple(
        rule for rule in RULES if all(name in kept for name in _NEEDS.get(rule, ("head_weight",)))
    )


def check_possible(rules: Sequence[str], kept: Mapping[str, Tensor]) -> None:
    """Refuse those of `RULES` that do not go with what is kept."""
    there = possible(kept)
    for rule in rules:
        if rule not in there:
            raise ValueError(
                f"the model holds nothing for predict_with={rule!r}, as it did not learn its last "
                f"task with that: set it to {' or '.join(map(repr, there))}, or learn a "
                "task first"
            )


def scores_by(
    rules: Sequence[str],
    head: MultiHead,
    vectors: Tensor,
    features: Tensor,
    sizes: Sequence[int],
    kept: Mapping[str, Tensor],
    views: int = 1,
) -> dict[str, Tensor]:
    """Return the scores of each of some `RULES`: (n, classes) each.

    Parameters
    ----------
    rules : sequence of str
        Which; only what they need is computed.
    head : MultiHead
    vectors : Tensor of shape (classes, rotations, dim)
        Label vectors.
    features : Tensor of shape (rotations, views · n, width)
        Those that the heads are given are the last of them.
    sizes : sequence of int
        Classes of each head.
    kept : mapping
        What `discriminant`, `exact` or `finetune` returned; ``class_means``, (rotations,
        classes, width), for "ncm": of normalised features with ``ridge_weight``.
    views : int
        Views of each image: all images first, then all once more, flipped.
    """
    check_possible(rules, kept)
    found = {}
    last = features[..., -head.weight.shape[-1] :]

    def averaged(scores: Tensor) -> Tensor:
        return scores.view(views, -1, scores.shape[-1]).mean(dim=0) if views > 1 else scores

    if "wta" in rules:
        found["wta"] = averaged(winner_takes_all(head, vectors, last, sizes))
    # Exact statistics are of normalised features.
    known = normalised(features) if "ridge_weight" in kept else features
    if "lda" in rules:
        found["lda"] = comparable(averaged(linear(kept, "lda", known)))
    if "ncm" in rules:
        found["ncm"] = averaged(nearest_mean(kept["class_means"], known))
    if "ridge" in rules:
        found["ridge"] = averaged(ridge_scores(kept["ridge_weight"], features[0]))
    if "finetuned" in rules or "ensemble" in rules:
        found["finetuned"] = averaged(winner_takes_all(head, vectors, last, sizes, kept))
    if "linear" in rules or "ensemble" in rules:
        found["linear"] = comparable(averaged(linear(kept, "linear", features)))
    if "ensemble" in rules:
        # Of two classes, the two rules are on no common scale: see `comparable`.
        few = found["finetuned"].shape[1] <= 2
        found["ensemble"] = (
            found["finetuned"] if few else standardised(found["finetuned"]) + found["linear"]
        )
    return {rule: found[rule] for rule in rules}


def winner_takes_all(
    head: MultiHead,
    vectors: Tensor,
    features: Tensor,
    sizes: Sequence[int],
    finetuned: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Return the similarity of each class's label vectors to its head's responses (Eq. 2).

    The mean over the rotations of the image, each compared with the label vector of that rotation.

    Parameters
    ----------
    head : MultiHead
    vectors : Tensor of shape (classes, rotations, dim)
        Label vectors.
    features : Tensor of shape (rotations, n, width)
    sizes : sequence of int
        Classes of each head.
    finetuned : mapping, optional
        What `finetune` returned, to be used in place of the heads.
    """
    weight = head.weight if finetuned is None else finetuned["head_weight"].to(features.device)
    bias = head.bias if finetuned is None else finetuned["head_bias"].to(features.device)
    return _similarities(features, weight, bias, vectors, sizes).mean(dim=0)


def linear(kept: Mapping[str, Tensor], name: str, features: Tensor) -> Tensor:
    """Return the scores of the discriminant, "lda", or of the "linear" classifier: (n, classes)."""
    weight, bias = (kept[f"{name}_{part}"].to(features.device) for part in ("weight", "bias"))
    with torch.autocast(features.device.type, enabled=False):
        return _linear(features.float(), weight, bias).mean(dim=0)


def nearest_mean(means: Tensor, features: Tensor) -> Tensor:
    """Return the cosine of features to each class mean, (n, classes); the mean over rotations.

    As SimpleCIL predicts: Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained
    Models", IJCV 2024.
    """
    directions = F.normalize(means.to(features.device), dim=-1)
    with torch.autocast(features.device.type, enabled=False):
        return torch.bmm(F.normalize(features.float(), dim=-1), directions.mT).mean(dim=0)


def _linear(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return scores, (rotations, n, classes), of features, (rotations, n, width)."""
    return torch.bmm(features, weight.mT) + bias[:, None]


def comparable(scores: Tensor) -> Tensor:
    """Return scores standardised; of two classes with mean 0 alone.

    Their standardised scores would be 1 and −1, however near they are to each other.
    """
    few = scores.shape[1] <= 2
    return scores - scores.mean(dim=1, keepdim=True) if few else standardised(scores)


def standardised(scores: Tensor) -> Tensor:
    """Return scores with mean 0 and deviation 1 for each sample."""
    centred = scores - scores.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True).sqrt() + EPS)


def _similarities(
    features: Tensor, weight: Tensor, bias: Tensor, vectors: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Return cosines to the label vectors of each rotation, (rotations, n, classes)."""
    responses = MultiHead.respond(features.flatten(0, 1), weight, bias)
    by_rotation = responses.view(len(features), -1, *responses.shape[1:])
    return torch.stack(
        [
            torch.cat([part.flatten(1) for part in cosines(o, vectors[:, rotation], sizes)], dim=1)
            for rotation, o in enumerate(by_rotation)
        ]
    )


def check(
    classifiers: Mapping[str, Tensor],
    shape: tuple[int, int, int],
    head: MultiHead,
    n_ridge: int | None = None,
) -> None:
    """Refuse classifiers that are not of these heads and statistics.

    Parameters
    ----------
    classifiers : mapping
    shape : (classes, rotations, width)
        Of the statistics' means.
    head : MultiHead
    n_ridge : int, optional
        Inputs of the ridge regression; None if there is none.
    """
    classes, rotations, width = shape
    wanted: dict[str, tuple[int, ...]] = {"lda_weight": (rotations, classes, width)}
    wanted |= {"lda_bias": (rotations, classes)}
    if n_ridge is not None:
        wanted |= {"ridge_weight": (classes, n_ridge)}
    if "head_weight" in classifiers:
        wanted |= {"head_weight": tuple(head.weight.shape), "head_bias": tuple(head.bias.shape)}
        wanted |= {"linear_weight": wanted["lda_weight"], "linear_bias": wanted["lda_bias"]}
    shapes = {name: tuple(tensor.shape) for name, tensor in classifiers.items()}
    if shapes != wanted or any(tensor.dtype != torch.float32 for tensor in classifiers.values()):
        raise ValueError("what prediction goes by is not of these classes and heads")
