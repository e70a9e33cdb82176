"""Which backbone ``"auto"`` stands for. Without torch, for ``lmrc info``."""

from __future__ import annotations

from collections.abc import Sequence


def pick(input_shape: Sequence[int]) -> str:
    """Return the name of the backbone for ``"auto"``, by the shape of the input."""
    if len(input_shape) == 1:
        return "mlp"
    channels, *sides = input_shape
    return "cnn" if (channels == 1 and max(sides) <= 28) or max(sides) < 16 else "resnet18"
