"""Calibration of probabilities, and of a score for images of no known class.

As a model file has it, a calibration is a dict of tensors: by prediction rule ("ridge.losses") sums
over held-out images, and the logit scale, the unit and the offsets, which follow from them; and
``factors``, ``sizes`` and ``weights``, which are the same for all rules. Earlier versions of lmrc
saved no ``weights``: they are `USUAL` there.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lmrc.statistics import residual
from lmrc.statistics.classes import arranged
from lmrc.statistics.held_out import USUAL_SCALE, HeldOut
from lmrc.statistics.prediction_rules import by_network
from lmrc.statistics.ridge import normalised


class Weights(NamedTuple):
    """Weights of the residual in the unknown score."""

    residual: float
    relative: float  # share of the mean residual by all classes that is subtracted from it


# Chosen on held-out images:
USUAL = Weights(2.0, 0.5)  # for vectors, and for features that are learnt
OF_FIXED_FEATURES = Weights(3.0, 0.0)  # for images, by a frozen backbone and these rules:
LINEAR = ("ridge", "lda")
OFFSET = 0.6  # share of a class's offset that is subtracted from its unknown scores
#: Usual logit scales where they are not the default: cosines to class means differ by little.
USUAL_SCALES = {"ncm": 50.0}

#: By prediction rule.
Sums = dict[str, HeldOut]


class Basis(NamedTuple):
    """What scores and residuals are computed from."""

    kept: Mapping[str, Tensor]  # as in `PredictionRules`
    #: By rule, the score of an image at its class's mean. Scores are divided by it, which makes
    #: those of all tasks comparable.
    units: dict[str, float]
    factors: Tensor  # (classes, rank, width), directions of each class: see `statistics.residual`
    sizes: Tensor  # (classes,), what class means are divided by
    weights: Weights

    def residuals(self, features: Tensor, views: int) -> Tensor:
        """Return the residuals of images by class, (n, classes): the mean over their views."""
        means = self.kept["class_means"]
        known = arranged(by_network(features, self.kept)[0], len(means))
        known = normalised(known) if "ridge_weight" in self.kept else known
        centres = means / self.sizes[:, None]
        found = residual.residuals(centres, self.factors, known).mean(dim=0)
        return found.view(views, -1, found.shape[-1]).mean(dim=0)


def unknown_scores(rule: str, scores: Tensor, residuals: Tensor, weights: Weights) -> Tensor:
    """Return unknown scores, (n,), of scores in units and residuals, (n, classes) each."""
    weights = weights if rule in LINEAR else USUAL
    best, winner = scores.max(dim=1, keepdim=True)
    off = residuals.gather(1, winner) - weights.relative * residuals.mean(dim=1, keepdim=True)
    return (weights.residual * off - best).squeeze(1)


def weights_of(calibration: Mapping[str, Tensor]) -> Weights:
    """Return the weights of the unknown scores of a calibration."""
    kept = calibration.get("weights")
    return USUAL if kept is None else Weights(*kept.tolist())


def summed(scores: Mapping[str, Tensor], residuals: Tensor, y: Tensor, weights: Weights) -> Sums:
    """Sum up images by rule, from scores in units, residuals, (n, classes) each, and classes."""
    found = {r: unknown_scores(r, s, residuals, weights) for r, s in scores.items()}
    return {r: HeldOut.of(s, found[r], y) for r, s in scores.items()}


def joined(sums: Sums, found: Sums) -> Sums:
    """Add the sums over later images."""
    return sums | {r: sums[r].joined(later) if r in sums else later for r, later in found.items()}


def of_rule(calibration: Mapping[str, Tensor], rule: str) -> dict[str, Tensor]:
    """Return the tensors of one prediction rule in a calibration."""
    start = f"{rule}."
    return {n.removeprefix(start): t for n, t in calibration.items() if n.startswith(start)}


def sums_of(calibration: Mapping[str, Tensor]) -> Sums:
    """Return the sums over held-out images."""
    rules = sorted({n.partition(".")[0] for n in calibration if n.endswith(".losses")})
    return {rule: HeldOut.from_tensors(of_rule(calibration, rule)) for rule in rules}


def calibrated(sums: Sums, basis: Basis) -> dict[str, Tensor]:
    """Return the calibration of the rules in the basis, for the current statistics."""
    none = HeldOut.empty(len(basis.sizes))
    sums = {rule: found.joined(none) for rule, found in sums.items() if rule in basis.units}
    if not sums:
        return {}
    tensors = {"factors": basis.factors, "sizes": basis.sizes}
    tensors["weights"] = torch.tensor(basis.weights)
    for rule, found in sums.items():
        scale, unit = found.logit_scale(USUAL_SCALES.get(rule, USUAL_SCALE)), basis.units[rule]
        values = {"scale": torch.tensor([scale / unit]), "unit": torch.tensor([unit])}
        values |= {"offsets": OFFSET * found.offsets(), **found.tensors()}
        tensors |= {f"{rule}.{name}": tensor for name, tensor in values.items()}
    return tensors


def check(
    calibration: Mapping[str, Tensor], n_classes: int, width: int, rules: Collection[str]
) -> None:
    """Raise ValueError unless a calibration fits the classes, features and rules."""
    sums = sums_of(calibration)
    for found in sums.values():
        found.check(n_classes)
    rank = calibration.get("factors", torch.zeros(0)).shape[1:2]
    wanted: dict[str, tuple[int, ...]] = {"factors": (n_classes, *rank, width)}
    wanted |= {"sizes": (n_classes,)}
    if "weights" in calibration:
        wanted |= {"weights": (len(Weights._fields),)}
    for rule, found in sums.items():
        wanted |= {f"{rule}.{n}": tuple(t.shape) for n, t in found.tensors().items()}
        wanted |= {f"{rule}.scale": (1,), f"{rule}.unit": (1,), f"{rule}.offsets": (n_classes,)}
    if (
        {name: tuple(tensor.shape) for name, tensor in calibration.items()} != wanted
        or not set(sums) <= set(rules)
        or any(tensor.dtype != torch.float32 for tensor in calibration.values())
        or not bool((calibration["sizes"] > 0).all())
    ):
        raise ValueError("its calibration is not of these classes and features")
