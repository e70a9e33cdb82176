"""Two backbones side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Beside(nn.Module):
    """An adapted backbone beside the published one: features of both, concatenated.

    Parameters
    ----------
    adapted, published : nn.Module
        Of one kind: features of shape (batch, width), and where they have it, ``last_two``.
    """

    def __init__(self, adapted: nn.Module, published: nn.Module) -> None:
        super().__init__()
        self.adapted, self.published = adapted, published
        has_two = hasattr(adapted, "last_two")
        self.width_before = 2 * int(getattr(adapted, "width_before", 0)) if has_two else 0
        self.saved = {"beside": True, **getattr(published, "saved", {})}

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, 2 · width)."""
        return torch.cat([self.adapted(x), self.published(x)], dim=1)

    def last_two(self, x: Tensor) -> Tensor:
        """Return the features of both backbones' layers before the last, then of the last."""
        before = self.width_before // 2
        found = [backbone.last_two(x) for backbone in self._both]
        parts = [f[:, :before] for f in found] + [f[:, before:] for f in found]
        return torch.cat(parts, dim=1)

    def folded(self) -> Beside:
        """Return a copy for inference; see `EfficientNetLite.folded`."""
        return Beside(*(b.folded() if hasattr(b, "folded") else b for b in self._both))

    @property
    def _both(self) -> tuple[Any, Any]:
        return self.adapted, self.published
