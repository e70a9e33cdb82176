"""What might give better features: each a few lines on LMRC+, to be measured on held-out images.

    cd results/search
    lmrc reproduce incremental --dataset cifar100 --validate 0.1 --methods tries.Contrastive

`TRY_WEIGHT` in the environment is the weight of the term.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc import LMRCPlusClassifier
from lmrc.methods import objectives
from lmrc.nets.network import on_device
from lmrc.statistics import prediction_rules
from lmrc.statistics.classes import Summary
from lmrc.statistics.drift import Drift
from lmrc.statistics.gather import gather
from lmrc.training import augment, cutmix
from lmrc.training.memory import Memory, _first_of_each

WEIGHT = float(os.environ.get("TRY_WEIGHT", "0.5"))
TEMPERATURE = 0.2


class Contrastive(LMRCPlusClassifier):
    """Features of a class in one turn draw near each other, and away from all others."""

    needs_features = True

    def losses(self, outputs: Any, old_outputs: Any, batch: Any) -> Any:
        """Return the terms of LMRC+, and one more."""
        terms = dict(super().losses(outputs, old_outputs, batch))
        group = batch.y * batch.n_rotations + batch.rotation
        terms["contrast"] = WEIGHT * contrast(batch.features.float(), group)
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

    needs_features = True

    def losses(self, outputs: Any, old_outputs: Any, batch: Any) -> Any:
        """Return the terms of LMRC+, and one more."""
        terms = dict(super().losses(outputs, old_outputs, batch))
        if batch.old_features is not None:
            now, then = batch.features.float(), batch.old_features.float()
            terms["features"] = -WEIGHT * F.cosine_similarity(now, then, dim=1)
        return terms


class Always(LMRCPlusClassifier):
    """With ``augment="cutmix"``: images have pieces of others in every mini-batch, not in half."""

    def _train(self, *args: Any) -> Any:
        cutmix.PROBABILITY = 1.0
        return super()._train(*args)


class Read(LMRCPlusClassifier):
    """With a pool: one network, several readouts of it.

    `READ` names for each whether pooled images take part in the map that carries the statistics,
    and whether it is tuned on their features, too. "sum" adds Winner-Take-All to "both".
    """

    READ: ClassVar = {"made-up": (True, False), "own-map": (False, True), "neither": (False, False)}

    def after_task(self, network: Any, samples: Any) -> None:
        """Keep as LMRC+ does, then in the other ways."""
        pooled = torch.unique(self.memory_.y).tolist() if self.memory_ else []
        with watched(prediction_rules, "finetune") as tunings:
            super().after_task(network, samples)
        base, (args, settings, _) = self._class_statistics(), tunings[0]
        self._others, unpooled = {}, base
        if self.n_tasks_ and not all(mapped for mapped, _ in self.READ.values()):
            old = on_device(network.encoder.mean.device, self.network_).encoder
            drift = Drift(base.means.shape[-1])
            rules = {"layers": self.feature_layers, "augment": self.augmentation_, "rotated": True}
            for row in set(torch.unique(samples.y).tolist()) - set(pooled):
                chance, x = torch.Generator().manual_seed(row), samples.of_class(row).x
                for now, then in gather([network.encoder, old], x, generator=chance, **rules):
                    drift.add(then.flatten(0, 1), now.flatten(0, 1))
            unpooled = self._unpooled.carried(drift.fit())
            for row in range(len(unpooled.means), len(base.means)):
                matrix, n = base.covariances.matrix(row), float(base.counts[row])
                unpooled = unpooled.learnt(row, Summary(base.means[row], matrix, n))
        self._unpooled = unpooled
        for name, (mapped, real) in self.READ.items():
            statistics = base if mapped else unpooled
            how = settings if real else settings | {"real": {}}
            self._others[name] = prediction_rules.finetune(*args[:2], statistics, *args[3:], **how)

    def similarities_by_rule(self, X: Any) -> dict[str, Any]:
        """Return those of LMRC+, of each of `READ`, and sums."""
        found, kept = super().similarities_by_rule(X), self.classifiers_
        loudest = prediction_rules.standardised(torch.from_numpy(found["wta"])).numpy()
        found["sum"] = found["both"] + loudest
        for name, other in self._others.items():
            self.classifiers_ = other
            more = super().similarities_by_rule(X)
            more["sum"] = more["both"] + loudest
            ways = ("lda", "tuned", "linear", "both", "sum")
            found |= {f"{name} {way}": more[way] for way in ways}
        self.classifiers_ = kept
        return found


class Aside(Read):
    """A quarter of the exemplars is not learnt again, and tells alone where its class is."""

    def _train(self, network: Any, before: Any, samples: Any, n_known: int) -> Any:
        self._whole = self.memory_
        if self._whole:
            self.memory_ = self._whole.at_most(3 * self.memory_per_class // 4)
            batch, _ = samples.split(len(samples) - len(self._whole))
            samples = self.memory_.joined(batch.x, batch.y)
        return super()._train(network, before, samples, n_known)

    def after_task(self, network: Any, samples: Any) -> None:
        """Keep as `Read` does, with the others as the pool."""
        if whole := self._whole:
            batch, _ = samples.split(len(samples) - len(whole))
            others = torch.ones(len(whole), dtype=torch.bool)
            others[_first_of_each(whole.y, 3 * self.memory_per_class // 4)] = False
            self.memory_ = Memory(whole.x[others], whole.y[others])
            samples = self.memory_.joined(batch.x, batch.y)
        super().after_task(network, samples)
        self.memory_ = whole


class Margin(LMRCPlusClassifier):
    """An additive angular margin in a head's softmax (ArcFace; Deng et al., CVPR 2019).

    `TRY_WEIGHT` is the margin, in radians.
    """

    def _train(self, *args: Any) -> Any:
        plain = objectives.cosines

        def with_margin(o: Tensor, vectors: Tensor, sizes: Any) -> Any:
            assert len(sizes) == 1  # no exemplars: the new head alone
            (c,) = plain(o, vectors, sizes)  # (n, 1, vectors)
            angle = c.clamp(-1 + 1e-5, 1 - 1e-5).acos() + WEIGHT
            nearer = angle.clamp(max=torch.pi).cos()
            return [torch.where(self._right[:, None], nearer, c)]

        objectives.cosines = with_margin
        try:
            yield from super()._train(*args)
        finally:
            objectives.cosines = plain

    def losses(self, outputs: Any, old_outputs: Any, batch: Any) -> Any:
        """Return the terms of LMRC+, with the margin on the right label vectors."""
        self._right = batch.targets[:, batch.n_known * batch.n_rotations :] > 0
        return super().losses(outputs, old_outputs, batch)


class Simplex(LMRCPlusClassifier):
    """The label vectors of a head are a regular simplex, turned at random."""

    def expand(self, network: Any, n_new: int) -> None:
        """Open a head as LMRC+ does, then put the simplex in place of the vectors drawn."""
        super().expand(network, n_new)
        n = n_new * self._n_rotations
        corners = torch.eye(n, dtype=torch.float64) - 1 / n
        chance = torch.Generator().manual_seed(self._seed(99))
        drawn = torch.randn(self.label_dim, n, generator=chance, dtype=torch.float64)
        frame = torch.linalg.qr(drawn)[0]  # (dim, n), orthonormal columns
        vectors = F.normalize(corners @ frame.T, dim=1).view(n_new, self._n_rotations, -1)
        drawn = self.labels_["vectors"]
        self.labels_ = {"vectors": torch.cat([drawn[:-n_new], vectors.to(drawn)])}


class Colour(LMRCPlusClassifier):
    """Greyscale for a fifth of the images, solarised colours for a tenth."""

    def _train(self, *args: Any) -> Any:
        plain = augment.jitter

        def more(x: Tensor, change: Tensor) -> Tensor:
            x = plain(x, change)
            # The digits behind what was drawn are as good as new draws.
            draw = (change * 1e4) % 1
            first, second, third = (d[:, None, None, None] for d in draw.unbind(dim=1))
            grey = augment._grey(x.float()).to(x.dtype).expand_as(x)
            x = torch.where(first < 0.2, grey, x)
            bright = x > (128 + 127 * third).to(x.dtype)
            return torch.where((second < 0.1) & bright, 255 - x, x)

        augment.jitter = more
        try:
            yield from super()._train(*args)
        finally:
            augment.jitter = plain


class WideCrop(LMRCPlusClassifier):
    """Crops of a third to all of the image's area in place of shifts by four pixels."""

    def _train(self, *args: Any) -> Any:
        plain = augment.crop_and_flip

        def resized(x: Tensor, corner: Tensor, flip: Tensor) -> Tensor:
            # Eighty-one corners: rows choose the size, columns and rows the place.
            side = x.shape[-1]
            rows, columns = corner.float().unbind(dim=1)
            size = side * (0.6 + 0.4 * rows / (2 * augment.PADDING))
            place = columns / (2 * augment.PADDING)
            box = torch.stack([place * (side - size), (1 - place) * (side - size), size, size], 1)
            return augment.resize_and_flip(x, box, flip)

        augment.crop_and_flip = resized
        try:
            yield from super()._train(*args)
        finally:
            augment.crop_and_flip = plain


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
