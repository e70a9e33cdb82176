"""What a training step minimises: a method's losses, applied to the networks' outputs."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lmrc.nets.network import Frozen, Network
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Losses


@dataclass(frozen=True)
class Objective:
    """Runs the networks on a mini-batch and passes their outputs to a method's losses."""

    method: Any  # an `lmrc.IncrementalClassifier`
    network: Network  # in training
    old: Frozen | None = None  # the network before this task; None for the first
    class_weights: Tensor | None = None  # (classes,): weight of each class; None: all 1

    def prepare(self, batch: MiniBatch) -> MiniBatch:
        """Add the old network's outputs, if the method needs them."""
        wanted = self.method.needs_old_outputs or self.method.needs_features
        is_there = batch.old_outputs is not None or batch.old_features is not None
        if self.old is None or not wanted or is_there:
            return batch
        with torch.no_grad():
            features = self.old.features(batch.x)
            outputs = self.old.head(features) if self.method.needs_old_outputs else None  # Eq. 6
        kept = features if self.method.needs_features else None
        return replace(batch, old_outputs=outputs, old_features=kept)

    def __call__(self, batch: MiniBatch) -> Losses:
        """Return the terms of the loss on a mini-batch."""
        batch = self.prepare(batch)
        features = self.network.encoder(batch.x)
        outputs = self.network.head(features)
        if self.method.needs_features:
            batch = replace(batch, features=features)
        weights = self.class_weights
        if weights is not None:
            batch = replace(batch, counts=batch.counts * weights)
        terms: Losses = self.method.losses(outputs, batch.old_outputs, batch)
        if weights is not None:
            of_sample = weights[batch.y]
            if batch.lam is not None:
                of_sample = of_sample.flip(0).lerp(of_sample, batch.lam)
            terms = {name: t * of_sample if t.ndim else t for name, t in terms.items()}
        if self.old is not None:
            terms = {**terms, **self.method.penalty(self.network, self.old)}
        return terms
