"""Which backbone ``"auto"`` stands for. Without torch, for ``lmrc info``."""

from collections.abc import Sequence

PRETRAINED = "efficientnet-lite0"  # for photographs, in LMRC+
HOMOGENEOUS = "homogeneous"  # for vectors, in LMRC+
OF_VECTORS = ("identity", HOMOGENEOUS)  # backbones without weights
#: Features of a vector, at least; of fewer an MLP that learns is more accurate
#: (results/search/vectors.py).
MANY_FEATURES = 9
PHOTOGRAPH = 64  # pixels a side, at least


def pick(input_shape: Sequence[int]) -> str:
    """Return the name of the backbone for ``"auto"``, by the shape of the input."""
    if len(input_shape) == 1:
        return "mlp"
    channels, *sides = input_shape
    return "cnn" if (channels == 1 and max(sides) <= 28) or max(sides) < 16 else "resnet18"


def are_photographs(input_shape: Sequence[int]) -> bool:
    """Tell whether inputs are colour images of some size, for which pre-trained weights are best.

    >>> are_photographs((3, 64, 64)), are_photographs((3, 32, 32)), are_photographs((1, 64, 64))
    (True, False, False)
    """
    return len(input_shape) == 3 and input_shape[0] == 3 and min(input_shape[1:]) >= PHOTOGRAPH


def pick_frozen(input_shape: Sequence[int]) -> str | None:
    """Return the backbone that needs no training, for inputs of a shape for which that is best.

    >>> pick_frozen((3, 64, 64)), pick_frozen((300,)), pick_frozen((2,)), pick_frozen((1, 28, 28))
    ('efficientnet-lite0', 'homogeneous', None, None)
    """
    if len(input_shape) == 1:
        return HOMOGENEOUS if input_shape[0] >= MANY_FEATURES else None
    return PRETRAINED if are_photographs(input_shape) else None
