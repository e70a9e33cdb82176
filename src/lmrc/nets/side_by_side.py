"""An adapted backbone and the pre-trained one that it comes from, side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class SideBySide(nn.Module):
    """Two backbones of one kind as one: features of both, concatenated.

    Parameters
    ----------
    adapted, pretrained : nn.Module
        They map images to features of shape (batch, width).
    """

    def __init__(self, adapted: nn.Module, pretrained: nn.Module) -> None:
        super().__init__()
        self.adapted: Any = adapted
        self.pretrained: Any = pretrained
        before = getattr(pretrained, "width_before", 0) if hasattr(pretrained, "last_two") else 0
        self.width_before = 2 * before
        self.saved = {"side_by_side": True, **getattr(pretrained, "saved", {})}

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, 2 · width)."""
        return torch.cat([self.adapted(x), self.pretrained(x)], dim=1)

    def last_two(self, x: Tensor) -> Tensor:
        """Return what precedes the last layer's features in both, then those of `forward`."""
        both = [self.adapted.last_two(x), self.pretrained.last_two(x)]
        before = self.width_before // 2
        return torch.cat([f[:, :before] for f in both] + [f[:, before:] for f in both], dim=1)

    def folded(self) -> SideBySide:
        """Return a copy for inference, of backbones that have a folded form."""
        both = self.adapted, self.pretrained
        return SideBySide(*(b.folded() if hasattr(b, "folded") else b for b in both))
