"""What might give better features: each a few lines on LMRC+, to be measured on held-out images.

    cd results/search
    lmrc reproduce incremental --dataset cifar100 --validate 0.1 --methods tries.Contrastive

`TRY_WEIGHT` in the environment is the weight of the term.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc import LMRCPlusClassifier

WEIGHT = float(os.environ.get("TRY_WEIGHT", "0.5"))
TEMPERATURE = 0.2


class Seen:
    """A network whose features of an input are at hand."""

    def __init__(self, head: Any, features: Tensor) -> None:
        self.head, self.features = head, features

    def __call__(self, x: Tensor) -> Any:
        """Return what the head makes of them."""
        return self.head(self.features)


class Contrastive(LMRCPlusClassifier):
    """Features of a class in one turn draw near each other, and away from all others."""

    def losses(self, network: Any, frozen: Any, batch: Any) -> Any:
        """Return the terms of LMRC+, and one more."""
        features = network.trunk(batch.x)
        terms = dict(super().losses(Seen(network.head, features), frozen, batch))
        group = network.head.row(batch.y, batch.turn)
        terms["contrast"] = WEIGHT * contrast(features.float(), group)
        return terms


def contrast(features: Tensor, group: Tensor) -> Tensor:
    """Return the supervised contrastive loss of each sample."""
    unit = F.normalize(features, dim=1)
    alone = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    log_p = (unit @ unit.T / TEMPERATURE).masked_fill(alone, -1e4).log_softmax(dim=1)
    same = (group[:, None] == group) & ~alone
    return -(log_p * same).sum(dim=1) / same.sum(dim=1).clamp(min=1)


class Distilled(LMRCPlusClassifier):
    """Features are held in direction to what they were, beside the heads' answers."""

    def losses(self, network: Any, frozen: Any, batch: Any) -> Any:
        """Return the terms of LMRC+, and one more."""
        features = network.trunk(batch.x)
        if frozen is None:
            return super().losses(Seen(network.head, features), None, batch)
        with torch.no_grad():
            backbone = frozen._folded[0] if frozen._folded else frozen.trunk.backbone
            before = backbone(frozen.trunk.normalise(batch.x))
        now, then = Seen(network.head, features), Seen(frozen.head, before)
        terms = dict(super().losses(now, then, batch))
        terms["features"] = -WEIGHT * F.cosine_similarity(features.float(), before.float(), dim=1)
        return terms
