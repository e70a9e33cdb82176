"""Feature drift: a linear map from old to new features, fitted on the images at hand."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

RIDGE = 0.01  # of the mean variance: pulls directions that hardly vary towards the identity
ROUNDING = 1e-8  # of the mean square: a smaller variance, of equal inputs, is rounding
EPS = 1e-12


@dataclass(frozen=True)
class LinearMap:
    """From old features to new ones: x · weight + bias."""

    weight: Tensor  # (width, width)
    bias: Tensor  # (width,)

    def __call__(self, x: Tensor) -> Tensor:
        """Map features, (…, width), or several vectors of this width, joined."""
        each = x.double().reshape(-1, len(self.bias))
        return (each @ self.weight + self.bias).view_as(x)


class Drift:
    """Sums over pairs of an old and a new feature vector, from which the map is fitted."""

    def __init__(self, width: int) -> None:
        self.n = 0
        self.old, self.new = torch.zeros(2, width, dtype=torch.float64)
        self.old_old, self.old_new = torch.zeros(2, width, width, dtype=torch.float64)

    def add(self, old: Tensor, new: Tensor) -> Self:
        """Add features of the same inputs before and after, (n, width) each, in float64."""
        self.n += len(old)
        self.old, self.new = self.old + old.sum(dim=0).cpu(), self.new + new.sum(dim=0).cpu()
        self.old_old = self.old_old + (old.T @ old).cpu()
        self.old_new = self.old_new + (old.T @ new).cpu()
        return self

    def fit(self) -> LinearMap:
        """Return the ridge regression of new on old features, shrunk towards the identity.

        With G = cov(old), H = cov(old, new): W = (G + εI)⁻¹ (H + εI). Directions in which old
        features do not vary stay as they are.
        """
        old, new = self.old / self.n, self.new / self.n
        g = self.old_old / self.n - old[:, None] * old
        h = self.old_new / self.n - old[:, None] * new
        rounding = ROUNDING * self.old_old.diagonal().mean() / self.n
        strength = RIDGE * g.diagonal().mean().clamp(min=0) + rounding + EPS
        ridge = strength * torch.eye(len(g), dtype=torch.float64)
        weight = torch.linalg.solve(g + ridge, h + ridge)
        return LinearMap(weight, new - old @ weight)
