"""Scores from what is kept of the classes' features: LDA, and what is tuned on made-up features.

And on real ones, where images are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from lmrc.nets.multihead import MultiHead, cosines
from lmrc.statistics.classes import ClassStatistics

SHRINKAGE = 0.1  # of the covariance towards a sphere
STEPS, RATE, DRAWS = 300, 2e-3, 32  # of Adam; its first rate; made-up features of a class in each
REAL = 0.5  # share of these features that are of real images instead, where there are any
TINY = 1e-12

#: Prediction rules: Winner-Take-All, and those that need statistics.
RULES = ("wta", "lda", "finetuned", "linear", "ensemble")


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

    Both are tuned on features made up from statistics, and on real ones where there are any: the
    heads begin as they are, the classifier as the discriminant. All classes take part in one
    softmax here: made-up features of all of them are at hand, so none is suppressed.

    Parameters
    ----------
    head : MultiHead
        Left as it is.
    vectors : Tensor of shape (classes, rotations, dim)
        Label vectors.
    statistics : ClassStatistics
        Of the features that the heads are given, or of more that come before them.
    sizes : sequence of int
        Classes that each head governs.
    scale : float
        What cosines are multiplied with before the softmax.
    non_negative : bool
        Whether features end in a ReLU, and made-up ones shall, too.
    generator : torch.Generator
        Where the chance comes from.
    real : mapping of int to Tensor of shape (turns, n, width), optional
        By class, features of its images: they take part of the made-up ones' place.

    Returns
    -------
    dict of Tensor
        What `discriminant` returns, ``head_weight`` and ``head_bias`` of the heads' shapes, and
        ``linear_weight`` and ``linear_bias`` of the discriminant's.
    """
    lda = discriminant(statistics)
    chance = torch.Generator(head.weight.device)
    chance.manual_seed(int(torch.randint(2**62, (), generator=generator)))
    made_up = _made_up(statistics, non_negative, chance)
    if real:
        made_up = _partly_real(made_up, real, len(statistics.counts), chance)

    weight, bias = (p.detach().clone().requires_grad_() for p in (head.weight, head.bias))

    def of_heads(x: Tensor) -> Tensor:
        return scale * _similarities(x[..., -weight.shape[-1] :], weight, bias, vectors, sizes)

    slopes, offsets = (lda[name].to(weight.device) for name in ("lda_weight", "lda_bias"))
    size = slopes.norm(dim=-1).mean() + TINY  # Adam's steps are of one size: weights are, too
    slopes, offsets = ((part / size).requires_grad_() for part in (slopes, offsets))
    sharpness = size.log().requires_grad_()

    def of_classifier(x: Tensor) -> Tensor:
        scores: Tensor = sharpness.exp() * _linear(x, slopes, offsets)
        return scores

    parts = [weight, bias, slopes, offsets, sharpness]
    # Two in one go: no part is in both.
    _minimise([of_heads, of_classifier], parts, made_up, len(statistics.counts))
    with torch.no_grad():
        slopes, offsets = (sharpness.exp() * part for part in (slopes, offsets))
    found = {"head_weight": weight, "head_bias": bias}
    found |= {"linear_weight": slopes, "linear_bias": offsets}
    return lda | {name: part.detach().cpu() for name, part in found.items()}


def _made_up(
    statistics: ClassStatistics, non_negative: bool, generator: torch.Generator
) -> Callable[[], Tensor]:
    """Return what makes up features, as many of each class: (turns, n, width), class by class."""
    n_classes, turns, _ = statistics.means.shape
    each = max(1, DRAWS // turns)
    deviations = statistics.covariances.sampler(n_classes, generator)
    means = statistics.means[:, :, None].to(generator.device)  # (classes, turns, 1, width)

    def draw() -> Tensor:
        x = means + deviations(turns * each).view(n_classes, turns, each, -1)
        x = x.transpose(0, 1).flatten(1, 2)
        return x.relu() if non_negative else x

    return draw


def _partly_real(
    made_up: Callable[[], Tensor],
    real: Mapping[int, Tensor],
    n_classes: int,
    generator: torch.Generator,
) -> Callable[[], Tensor]:
    """Return what draws real features for some of the made-up ones, where a class has any."""
    device = generator.device
    rows = torch.tensor(list(real), device=device)
    features = [part.transpose(0, 1) for part in real.values()]  # (n, turns, width) each
    bank = pad_sequence(features, batch_first=True).to(device)  # (rows, most, turns, width)
    n = torch.tensor([[len(part)] for part in features], device=device)
    of_row = torch.arange(len(rows), device=device)[:, None]

    def draw() -> Tensor:
        x = made_up()
        x = x.view(len(x), n_classes, -1, x.shape[-1])  # (turns, classes, each, width)
        k = max(1, round(REAL * x.shape[2]))
        chosen = torch.rand(len(rows), k, generator=generator, device=device) * n
        x[:, rows, :k] = bank[of_row, chosen.long()].permute(2, 0, 1, 3)
        return x.flatten(1, 2)

    return draw


def _minimise(
    scorers: Sequence[Callable[[Tensor], Tensor]],
    parts: list[Tensor],
    made_up: Callable[[], Tensor],
    n_classes: int,
) -> None:
    """Minimise the cross-entropy of each way's logits, (turns, n, classes), of made-up features."""
    optimiser = torch.optim.Adam(parts, lr=RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for _ in range(STEPS):
        x = made_up()
        with torch.enable_grad():
            turns, n, _ = x.shape
            y = torch.arange(n_classes, device=x.device).repeat_interleave(n // n_classes)
            y = y.repeat(turns)
            each = [F.cross_entropy(logits(x).flatten(0, 1), y) for logits in scorers]
            loss = torch.stack(each).sum()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        falling.step()


def possible(kept: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Name those of `RULES` that go with what is kept: the discriminant, and what is tuned."""
    if not kept:
        return RULES[:1]
    return RULES if "head_weight" in kept else RULES[:2]


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
    looks: int = 1,
) -> dict[str, Tensor]:
    """Return the scores of each of some `RULES`: (n, classes) each.

    Parameters
    ----------
    rules : sequence of str
        Which; only what they need is computed.
    head : MultiHead
    vectors : Tensor of shape (classes, rotations, dim)
        Label vectors.
    features : Tensor of shape (turns, looks · n, width)
        Those that the heads are given are the last of them.
    sizes : sequence of int
        Classes that each head governs.
    kept : mapping
        What `discriminant` or `tune` returned.
    looks : int
        How often each image was looked at, in the order of all images, then all once more.
    """
    check_possible(rules, kept)
    found = {}
    last = features[..., -head.weight.shape[-1] :]

    def averaged(scores: Tensor) -> Tensor:
        return scores.view(looks, -1, scores.shape[-1]).mean(dim=0) if looks > 1 else scores

    if "wta" in rules:
        found["wta"] = averaged(winner_takes_all(head, vectors, last, sizes))
    if "lda" in rules:
        found["lda"] = comparable(averaged(linear(kept, "lda", features)))
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
    tuned: Mapping[str, Tensor] | None = None,
) -> Tensor:
    """Return the similarity of each class's label vectors to its head's responses (Eq. 2).

    The mean over the turns of the image, each compared with the label vector of that turn.

    Parameters
    ----------
    head : MultiHead
    vectors : Tensor of shape (classes, rotations, dim)
        Label vectors.
    features : Tensor of shape (turns, n, width)
    sizes : sequence of int
        Classes that each head governs.
    tuned : mapping, optional
        What `tune` returned, to be asked in place of the heads.
    """
    weight = head.weight if tuned is None else tuned["head_weight"].to(features.device)
    bias = head.bias if tuned is None else tuned["head_bias"].to(features.device)
    return _similarities(features, weight, bias, vectors, sizes).mean(dim=0)


def linear(kept: Mapping[str, Tensor], name: str, features: Tensor) -> Tensor:
    """Return the scores of the discriminant, "lda", or of the "linear" classifier: (n, classes)."""
    weight, bias = (kept[f"{name}_{part}"].to(features.device) for part in ("weight", "bias"))
    with torch.autocast(features.device.type, enabled=False):
        return _linear(features.float(), weight, bias).mean(dim=0)


def _linear(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return scores of features of each turn, (turns, n, width): (turns, n, classes)."""
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


def check(readout: Mapping[str, Tensor], statistics: ClassStatistics, head: MultiHead) -> None:
    """Refuse a readout that is not of these statistics and heads."""
    classes, turns, width = statistics.means.shape
    wanted = {"lda_weight": (turns, classes, width), "lda_bias": (turns, classes)}
    if "head_weight" in readout:
        wanted |= {"head_weight": tuple(head.weight.shape), "head_bias": tuple(head.bias.shape)}
        wanted |= {"linear_weight": wanted["lda_weight"], "linear_bias": wanted["lda_bias"]}
    shapes = {name: tuple(tensor.shape) for name, tensor in readout.items()}
    if shapes != wanted or any(tensor.dtype != torch.float32 for tensor in readout.values()):
        raise ValueError("what prediction goes by is not of these classes and heads")
