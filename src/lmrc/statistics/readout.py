"""Scores from what is kept of the classes' features: LDA, and heads tuned on made-up features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.nets.multihead import MultiHead, cosines
from lmrc.statistics.classes import ClassStatistics

SHRINKAGE = 0.5  # of the covariance towards a sphere
STEPS, RATE, DRAWS = 150, 5e-4, 32  # of Adam; its first rate; made-up features of a class in each
TINY = 1e-12

#: Ways to predict: Winner-Take-All, and those that need statistics.
READOUTS = ("wta", "lda", "tuned", "both")


def discriminant(statistics: ClassStatistics) -> dict[str, Tensor]:
    """Return Fisher's linear discriminant: Gaussians with one covariance Σ for all classes.

    The score of class c for features x of images in turn r is x · Σ⁻¹ μ − ½ μ · Σ⁻¹ μ with the mean
    μ of (c, r); all seen from the mean of the classes, which changes no order and saves digits.

    Returns
    -------
    dict of Tensor
        ``lda_weight`` of shape (turns, classes, width) and ``lda_bias`` of shape (turns, classes).
    """
    covariance = statistics.covariances.mean()
    size = covariance.diagonal().mean() + TINY
    sphere = size * torch.eye(len(covariance), dtype=covariance.dtype)
    means = statistics.means.double().transpose(0, 1)  # (turns, classes, width)
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * sphere
    middle = means.mean(dim=1, keepdim=True)
    away = means - middle
    weight = torch.linalg.solve(shrunk, away.flatten(0, 1).T).T.view_as(means)
    bias = -(weight * (away / 2 + middle)).sum(dim=-1)
    return {"lda_weight": weight.float().contiguous(), "lda_bias": bias.float()}


def tune(
    head: MultiHead,
    statistics: ClassStatistics,
    sizes: Sequence[int],
    *,
    scale: float,
    non_negative: bool,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Return weights of heads that tell all classes apart on features made up from statistics.

    They start from the heads' own. All heads take part in one softmax here: made-up features of
    all classes are at hand, so none is suppressed.

    Parameters
    ----------
    head : MultiHead
        Left as it is.
    statistics : ClassStatistics
    sizes : sequence of int
        Classes that each head governs.
    scale : float
        What cosines are multiplied with before the softmax.
    non_negative : bool
        Whether features end in a ReLU, and made-up ones shall, too.
    generator : torch.Generator
        Where the chance comes from.

    Returns
    -------
    dict of Tensor
        ``head_weight`` and ``head_bias``.
    """
    device = head.weight.device
    weight, bias = (p.detach().clone().requires_grad_() for p in (head.weight, head.bias))
    optimiser = torch.optim.Adam([weight, bias], lr=RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    n_classes, turns, _ = statistics.means.shape
    each = max(1, DRAWS // turns)
    y = torch.arange(n_classes, device=device).repeat_interleave(each)
    deviations = statistics.covariances.sampler(n_classes, generator)
    means = statistics.means[:, :, None]  # (classes, turns, 1, width)
    for _ in range(STEPS):
        made_up = means + deviations(turns * each).view(n_classes, turns, each, -1)
        x = made_up.transpose(0, 1).flatten(1, 2).to(device)  # (turns, classes · each, width)
        x = x.relu() if non_negative else x
        with torch.enable_grad():
            scores = _similarities(x, weight, bias, head.by_turn, sizes)
            loss = F.cross_entropy(scale * scores.flatten(0, 1), y.repeat(turns))
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        falling.step()
    return {"head_weight": weight.detach().cpu(), "head_bias": bias.detach().cpu()}


def possible(kept: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Name those of `READOUTS` that go with what is kept: the discriminant, and tuned heads."""
    if not kept:
        return READOUTS[:1]
    return READOUTS if "head_weight" in kept else READOUTS[:2]


def scores_by(
    ways: Sequence[str],
    head: MultiHead,
    features: Tensor,
    sizes: Sequence[int],
    kept: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return the scores of each of some `READOUTS`: (n, classes) each.

    Parameters
    ----------
    ways : sequence of str
        Which; only what they need is computed.
    head, features, sizes
        As for `winner_takes_all`.
    kept : mapping
        What `discriminant` and `tune` returned.
    """
    found = {}
    if "wta" in ways:
        found["wta"] = winner_takes_all(head, features, sizes)
    if "lda" in ways or "both" in ways:
        found["lda"] = standardised(nearest_gaussian(kept, features))
    if "tuned" in ways or "both" in ways:
        found["tuned"] = winner_takes_all(head, features, sizes, kept)
    if "both" in ways:
        # Of two classes, standardised scores are 1 and −1 however near they are to each other:
        # where the two ways disagree, the sum would be 0 for both, and rounding would decide.
        few = found["tuned"].shape[1] <= 2
        found["both"] = found["tuned"] if few else standardised(found["tuned"]) + found["lda"]
    return {way: found[way] for way in ways}


def winner_takes_all(
    head: MultiHead,
    features: Tensor,
    sizes: Sequence[int],
    tuned: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Return the similarity of each class's label vectors to its head's responses (Eq. 2).

    The mean over the turns of the image, each compared with the label vector of that turn.

    Parameters
    ----------
    head : MultiHead
    features : Tensor of shape (turns, n, width)
    sizes : sequence of int
        Classes that each head governs.
    tuned : mapping, optional
        What `tune` returned, to be asked in place of the heads.
    """
    if tuned is not None and "head_weight" not in tuned:
        raise ValueError(
            "the model has no tuned heads: it learnt its last class batch with another "
            "predict_with than 'tuned' or 'both'"
        )
    weight = head.weight if tuned is None else tuned["head_weight"].to(features.device)
    bias = head.bias if tuned is None else tuned["head_bias"].to(features.device)
    return _similarities(features, weight, bias, head.by_turn, sizes).mean(dim=0)


def nearest_gaussian(lda: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Return the scores of `discriminant`, the mean over turns: (n, classes)."""
    weight, bias = (lda[name].to(features.device) for name in ("lda_weight", "lda_bias"))
    with torch.autocast(features.device.type, enabled=False):
        return (torch.bmm(features.float(), weight.mT) + bias[:, None]).mean(dim=0)


def standardised(scores: Tensor) -> Tensor:
    """Return scores with mean 0 and deviation 1 for each sample."""
    centred = scores - scores.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True).sqrt() + TINY)


def _similarities(
    features: Tensor, weight: Tensor, bias: Tensor, vectors: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Compare features of each turn, (turns, n, width), with its vectors: (turns, n, classes)."""
    responses = MultiHead.respond(features.flatten(0, 1), weight, bias)
    of_turns = responses.view(len(features), -1, *responses.shape[1:])
    return torch.stack(
        [
            torch.cat([part.flatten(1) for part in cosines(o, vectors[:, turn], sizes)], dim=1)
            for turn, o in enumerate(of_turns)
        ]
    )


def without_class(readout: Mapping[str, Tensor], row: int, head: int | None) -> dict[str, Tensor]:
    """Return a readout that does not know a class, nor the head that governed it alone."""
    kept = {}
    for name, tensor in readout.items():
        axis, index = (1, row) if name.startswith("lda") else (0, head)
        parts = tensor.tensor_split([index, index + 1], dim=axis) if index is not None else None
        kept[name] = torch.cat([parts[0], parts[2]], dim=axis) if parts else tensor
    return kept


def check(readout: Mapping[str, Tensor], statistics: ClassStatistics, head: MultiHead) -> None:
    """Refuse a readout that is not of these statistics and heads."""
    classes, turns, width = statistics.means.shape
    wanted = {"lda_weight": (turns, classes, width), "lda_bias": (turns, classes)}
    if "head_weight" in readout:
        wanted |= {"head_weight": tuple(head.weight.shape), "head_bias": tuple(head.bias.shape)}
    if {name: tuple(tensor.shape) for name, tensor in readout.items()} != wanted:
        raise ValueError("what prediction goes by is not of these classes and heads")
