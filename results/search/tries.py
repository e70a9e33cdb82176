"""What might give better features: each a few lines on LMRC+, to be measured on held-out images.

    cd results/search
    lmrc reproduce incremental --dataset cifar100 --validate 0.1 --methods tries.Contrastive

`TRY_WEIGHT` in the environment is the weight of the term.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc import LMRCPlusClassifier
from lmrc.nets.network import on_device
from lmrc.statistics import readout
from lmrc.statistics.classes import Summary
from lmrc.statistics.drift import Drift
from lmrc.statistics.gather import gather

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


class Weighted(LMRCPlusClassifier):
    """Stored images count `TRY_WEIGHT` times, but not where old heads are held to their answers."""

    def losses(self, network: Any, frozen: Any, batch: Any) -> Any:
        """Return the terms of LMRC+, weighted."""
        if batch.known is None:
            return super().losses(network, frozen, batch)
        n_old = sum(self._sizes[: len(frozen.head)])
        old = torch.arange(len(batch.counts), device=batch.y.device) < n_old
        of_sample, of_class = (1 + (WEIGHT - 1) * known for known in (batch.known, old))
        batch = replace(batch, counts=batch.counts * of_class)
        terms = super().losses(network, frozen, batch)
        return {n: t if n == "response" else t * of_sample for n, t in terms.items()}


class Corrected(LMRCPlusClassifier):
    """With a pool: carried means are corrected by what the map leaves over on pooled images.

    One network, several readouts of it: `READ` names for each the part of the correction that is
    made, and the share of real features that it is tuned on.
    """

    READ: ClassVar = {"half": (0.5, 0.5), "whole": (1.0, 0.5), "real": (0.0, 0.75)}

    def keep(self, network: Any, samples: Any) -> None:
        """Keep as LMRC+ does, then the same with corrections."""
        old = on_device(network.trunk.mean.device, self.network_).trunk if self.n_batches_ else None
        _, pool = samples.parted(len(samples) - len(self.memory_ or ()))
        with watched(Drift, "fit") as maps, watched(readout, "tune") as tunings:
            super().keep(network, samples)
        (args, settings, _), base = tunings[0], self._class_statistics()
        chains = getattr(self, "_chains", {})
        self._chains, self._others = {}, {}
        for name, (part, share) in self.READ.items():
            statistics = base
            if old is not None:
                statistics = chains[name].carried(maps[0][2])
                means = statistics.means.clone()
                for row in torch.unique(pool.y).tolist():
                    now, then = self._seen([network.trunk, old], pool.of_class(row).x)
                    means[row] += part * (now - maps[0][2](then)).float()
                statistics = replace(statistics, means=means)
                for row in range(len(means), len(base.means)):
                    matrix, n = base.covariances.matrix(row), float(base.counts[row])
                    statistics = statistics.learnt(row, Summary(base.means[row], matrix, n))
            self._chains[name] = statistics
            readout.REAL = share
            self._others[name] = readout.tune(args[0], statistics, *args[2:], **settings)
            readout.REAL = 0.5

    def _seen(self, trunks: Any, x: Tensor) -> list[Tensor]:
        """Return the mean features of images, (turns, width), for each trunk."""
        chance = torch.Generator().manual_seed(0)
        rules = {"layers": self.feature_layers, "augment": self.augmentation, "rotated": True}
        parts = zip(*gather(trunks, x, generator=chance, **rules), strict=True)
        return [torch.cat(part, dim=1).mean(dim=1).cpu() for part in parts]

    def similarities_by_readout(self, X: Any) -> dict[str, Any]:
        """Return those of LMRC+, and of each of `READ`."""
        found, kept = super().similarities_by_readout(X), self.readout_
        for name, other in self._others.items():
            self.readout_ = other
            more = super().similarities_by_readout(X)
            found |= {f"{name} {way}": more[way] for way in ("lda", "tuned", "linear", "both")}
        self.readout_ = kept
        return found


@contextmanager
def watched(owner: Any, name: str) -> Iterator[list[Any]]:
    """Note every call of a function: what it was given, and what it returned."""
    original, calls = getattr(owner, name), []

    def noted(*args: Any, **settings: Any) -> Any:
        calls.append((args, settings, original(*args, **settings)))
        return calls[-1][2]

    setattr(owner, name, noted)
    yield calls
    setattr(owner, name, original)
