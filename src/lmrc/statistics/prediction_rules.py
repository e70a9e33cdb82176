"""Prediction rules: Winner-Take-All, and rules from class statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc.nets.multihead import MultiHead, cosines
from lmrc.statistics.classes import arranged
from lmrc.statistics.ridge import normalised, ridge_scores

EPS = 1e-12

#: All prediction rules: Winner-Take-All, then those that need statistics.
RULES = ("wta", "lda", "finetuned", "linear", "ensemble", "snapshots", "ncm", "ridge")
#: Rules for which exact statistics are enough.
EXACT = ("lda", "ncm", "ridge")
#: Rules that are fitted to pseudo-features.
FINETUNED = ("finetuned", "linear", "ensemble", "snapshots")
#: The tensors in `PredictionRules.kept` that each rule needs; the others need ``head_weight``.
_NEEDS = {"wta": (), "lda": ("lda_weight",), "ncm": ("class_means",), "ridge": ("ridge_weight",)}
_NEEDS |= {"snapshots": ("snapshot_weight", "head_weight")}
#: Weight of each snapshot's score; the newest network's has weight 1.
OF_SNAPSHOT = 0.5


@dataclass(frozen=True)
class PredictionRules:
    """The prediction rules of a model."""

    head: MultiHead
    vectors: Tensor  # (classes, rotations, dim): label vectors
    sizes: Sequence[int]  # classes of each head
    #: Classifiers, as `lmrc.statistics.classifiers` returns them; ``class_means``, (rotations,
    #: classes, width), for "ncm", of normalised features if there is a ``ridge_weight``; and
    #: ``snapshot_weight`` and ``snapshot_bias``, stacked linear classifiers of earlier networks.
    kept: Mapping[str, Tensor]

    @property
    def possible(self) -> tuple[str, ...]:
        """The rules for which `kept` has the tensors."""
        needs = {rule: _NEEDS.get(rule, ("head_weight",)) for rule in RULES}
        return tuple(rule for rule in RULES if all(name in self.kept for name in needs[rule]))

    def check(self, *rules: str) -> None:
        """Raise ValueError for a rule that is not in `possible`."""
        for rule in rules:
            if rule not in self.possible:
                raise ValueError(
                    f"the model holds nothing for predict_with={rule!r}, as it did not learn its "
                    f"last task with that: set it to {' or '.join(map(repr, self.possible))}, or "
                    "learn a task first"
                )

    def scores(self, rules: Sequence[str], features: Tensor, views: int = 1) -> dict[str, Tensor]:
        """Return the scores of some rules, (n, classes) each; only what they need is computed.

        Features are (rotations, views · n, width): of all images, then of all images flipped. The
        last ones are the inputs of the heads. The features of snapshots follow.
        """
        self.check(*rules)
        found, kept = {}, self.kept
        features, *earlier = by_network(features, kept)
        wanted = {*rules} | ({"ensemble"} if "snapshots" in rules else set())
        x = arranged(features, len(kept["lda_weight"])) if "lda_weight" in kept else features
        # Exact statistics are of normalised features.
        known = normalised(x) if "ridge_weight" in kept else x

        def averaged(scores: Tensor) -> Tensor:
            return scores.view(views, -1, scores.shape[-1]).mean(dim=0) if views > 1 else scores

        def by_heads(weight: Tensor, bias: Tensor) -> Tensor:
            """Compare each rotation of an image with the label vectors of that rotation (Eq. 2)."""
            x = features[..., -weight.shape[-1] :]
            weight, bias = weight.to(x.device), bias.to(x.device)
            return averaged(similarities(x, weight, bias, self.vectors, self.sizes).mean(dim=0))

        if "wta" in rules:
            found["wta"] = by_heads(self.head.weight, self.head.bias)
        if "lda" in rules:
            found["lda"] = comparable(averaged(linear(kept, "lda", known)))
        if "ncm" in rules:
            found["ncm"] = averaged(nearest_mean(kept["class_means"], known))
        if "ridge" in rules:
            found["ridge"] = averaged(ridge_scores(kept["ridge_weight"], features[0]))
        if {"finetuned", "ensemble"} & wanted:
            found["finetuned"] = by_heads(kept["head_weight"], kept["head_bias"])
        if {"linear", "ensemble"} & wanted:
            found["linear"] = comparable(averaged(linear(kept, "linear", x)))
        # Of two classes, scores are on no common scale: see `comparable`.
        few = len(self.vectors) <= 2
        if "ensemble" in wanted:
            found["ensemble"] = (
                found["finetuned"] if few else standardised(found["finetuned"]) + found["linear"]
            )
        if "snapshots" in rules:
            found["snapshots"] = found["ensemble"]
            if len(kept["snapshot_weight"]) and not few:
                parts = zip(kept["snapshot_weight"], kept["snapshot_bias"], earlier, strict=True)
                each = [
                    standardised(averaged(_linear(weight, bias, arranged(of_one, len(weight)))))
                    for weight, bias, of_one in parts
                ]
                votes = OF_SNAPSHOT * torch.stack(each).sum(dim=0)
                found["snapshots"] = standardised(found["ensemble"]) + votes
        return {rule: found[rule] for rule in rules}


def by_network(features: Tensor, kept: Mapping[str, Tensor]) -> Sequence[Tensor]:
    """Split features: those of the newest network, then those of each snapshot."""
    if not len(kept.get("snapshot_weight", ())):
        return [features]
    rotations, _, width = kept["lda_weight"].shape  # of the statistics
    return torch.split(features, rotations * width // len(features), dim=-1)


def linear(kept: Mapping[str, Tensor], name: str, features: Tensor) -> Tensor:
    """Return the scores of the discriminant, "lda", or of the "linear" classifier: (n, classes)."""
    return _linear(kept[f"{name}_weight"], kept[f"{name}_bias"], features)


def _linear(weight: Tensor, bias: Tensor, features: Tensor) -> Tensor:
    weight, bias = weight.to(features.device), bias.to(features.device)
    with torch.autocast(features.device.type, enabled=False):
        return linear_scores(features.float(), weight, bias).mean(dim=0)


def nearest_mean(means: Tensor, features: Tensor) -> Tensor:
    """Return the cosine of features to each class mean, (n, classes); the mean over rotations.

    As SimpleCIL predicts: Zhou et al., "Revisiting Class-Incremental Learning with Pre-Trained
    Models", IJCV 2024.
    """
    directions = F.normalize(means.to(features.device), dim=-1)
    with torch.autocast(features.device.type, enabled=False):
        return torch.bmm(F.normalize(features.float(), dim=-1), directions.mT).mean(dim=0)


def linear_scores(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return scores, (rotations, n, classes), of features, (rotations, n, width)."""
    return torch.bmm(features, weight.mT) + bias[:, None]


def comparable(scores: Tensor) -> Tensor:
    """Standardise scores; for two classes, only subtract the mean.

    Two standardised scores would be 1 and −1, however close they are.
    """
    few = scores.shape[1] <= 2
    return scores - scores.mean(dim=1, keepdim=True) if few else standardised(scores)


def standardised(scores: Tensor) -> Tensor:
    """Return scores with mean 0 and deviation 1 for each sample."""
    centred = scores - scores.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True).sqrt() + EPS)


def similarities(
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


def check_classifiers(
    classifiers: Mapping[str, Tensor],
    shape: tuple[int, int, int],
    head: MultiHead,
    n_ridge: int | None = None,
) -> None:
    """Refuse classifiers that are not of these heads and statistics, (classes, rotations, width).

    `n_ridge` is the number of inputs of the ridge regression; None if there is none.
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
