"""What might give better features: each a few lines on LMRC+, to be measured on held-out images.

    cd results/search
    lmrc reproduce incremental --dataset cifar100 --validate 0.1 --methods tries.Contrastive

`TRY_WEIGHT` in the environment is the weight of the term.
"""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional as F

from lmrc import LMRCPlusClassifier
from lmrc.methods import objectives
from lmrc.nets import multihead
from lmrc.training import augment, cutmix

WEIGHT = float(os.environ.get("TRY_WEIGHT", "0.5"))
TEMPERATURE = 0.2


class Contrastive(LMRCPlusClassifier):
    """A supervised contrastive term (Khosla et al., 2020) among images of a class and rotation."""

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
    """The direction of the features is distilled, too, not only the heads' outputs."""

    needs_features = True

    def losses(self, outputs: Any, old_outputs: Any, batch: Any) -> Any:
        """Return the terms of LMRC+, and one more."""
        terms = dict(super().losses(outputs, old_outputs, batch))
        if batch.old_features is not None:
            now, then = batch.features.float(), batch.old_features.float()
            terms["features"] = -WEIGHT * F.cosine_similarity(now, then, dim=1)
        return terms


class Always(LMRCPlusClassifier):
    """With ``augment="cutmix"``: CutMix in every mini-batch, not in half of them."""

    def _train(self, *args: Any) -> Any:
        cutmix.PROBABILITY = 1.0
        return super()._train(*args)


class Margin(LMRCPlusClassifier):
    """An additive angular margin in a head's softmax (ArcFace; Deng et al., CVPR 2019).

    `TRY_WEIGHT` is the margin, in radians.
    """

    def _train(self, *args: Any) -> Any:
        plain = multihead.cosines

        def with_margin(o: Tensor, vectors: Tensor, sizes: Any) -> Any:
            assert len(sizes) == 1  # no exemplars: the new head alone
            (c,) = plain(o, vectors, sizes)  # (n, 1, vectors)
            angle = c.clamp(-1 + 1e-5, 1 - 1e-5).acos() + WEIGHT
            nearer = angle.clamp(max=torch.pi).cos()
            return [torch.where(self._right[:, None], nearer, c)]

        with patch.object(objectives, "cosines", with_margin):
            yield from super()._train(*args)

    def losses(self, outputs: Any, old_outputs: Any, batch: Any) -> Any:
        """Return the terms of LMRC+, with the margin on the right label vectors."""
        self._right = batch.targets[:, batch.n_known * batch.n_rotations :] > 0
        return super().losses(outputs, old_outputs, batch)


class Simplex(LMRCPlusClassifier):
    """The label vectors of a head are a regular simplex in a random rotation."""

    def expand(self, network: Any, n_new: int) -> None:
        """Open a head as LMRC+ does, then replace its label vectors by the simplex."""
        super().expand(network, n_new)
        n = n_new * self._n_rotations
        corners = torch.eye(n, dtype=torch.float64) - 1 / n
        rng = torch.Generator().manual_seed(self._seed(99))
        noise = torch.randn(self.label_dim, n, generator=rng, dtype=torch.float64)
        frame = torch.linalg.qr(noise)[0]  # (dim, n), orthonormal columns
        vectors = F.normalize(corners @ frame.T, dim=1).view(n_new, self._n_rotations, -1)
        known = self.labels_["vectors"]
        self.labels_ = {"vectors": torch.cat([known[:-n_new], vectors.to(known)])}


class Colour(LMRCPlusClassifier):
    """Greyscale for a fifth of the images, solarised colours for a tenth."""

    def _train(self, *args: Any) -> Any:
        plain = augment.jitter

        def more(x: Tensor, change: Tensor) -> Tensor:
            x = plain(x, change)
            # The later digits of random numbers are as good as new ones.
            digits = (change * 1e4) % 1
            first, second, third = (d[:, None, None, None] for d in digits.unbind(dim=1))
            grey = augment._grey(x.float()).to(x.dtype).expand_as(x)
            x = torch.where(first < 0.2, grey, x)
            bright = x > (128 + 127 * third).to(x.dtype)
            return torch.where((second < 0.1) & bright, 255 - x, x)

        with patch.object(augment, "jitter", more):
            yield from super()._train(*args)
