"""Which backbone ``"auto"`` stands for. Takes no torch: ``lmrc info`` tells it."""

from __future__ import annotations

from collections.abc import Sequence


def pick(input_shape: Sequence[int]) -> str:
    """Name the backbone that ``"auto"`` stands for: by the shape of the input alone."""
    if len(input_shape) == 1:
        return "mlp"
    channels, *sides = input_shape
    return "cnn" if (channels == 1 and max(sides) <= 28) or max(sides) < 16 else "resnet18"
