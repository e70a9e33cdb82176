"""Images rotated by quarters: each rotation of a class is a target of its own.

Rotations as label augmentation, as in Lee et al., "Self-supervised Label Augmentation via Input
Transformations", ICML 2020.
"""

import torch
from torch import Tensor

N_ROTATIONS = 4  # 0°, 90°, 180° and 270°


def all_rotations(x: Tensor) -> Tensor:
    """Return images in all four rotations: (4n, …), first all by 0°, then all by 90°, ….

    >>> all_rotations(torch.tensor([[[[1, 2], [3, 4]]]])).flatten(1).tolist()
    [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [3, 1, 4, 2]]
    """
    return torch.cat([torch.rot90(x, k, dims=(-2, -1)) for k in range(N_ROTATIONS)])


def copies(rotations: str) -> int:
    """Return the number of inputs per image."""
    return N_ROTATIONS if rotations == "all" else 1


def is_square(input_shape: tuple[int, ...]) -> bool:
    """Tell whether inputs are square images."""
    return len(input_shape) == 3 and input_shape[1] == input_shape[2]


def check_square(input_shape: tuple[int, ...]) -> None:
    """Reject inputs that are not square images."""
    if len(input_shape) != 3:
        raise ValueError(
            "rotations are for images, and X is vectors: use rotations='none', which tables need"
        )
    _, height, width = input_shape
    if height != width:
        raise ValueError(
            f"rotations need square images, and X holds some of {height}×{width} pixels: bring "
            "them to a square (image files: --size 64, say), or use rotations='none' (lmrc learn: "
            "--rotations none, lmrc reproduce: --set rotations=none)"
        )


class Rotations:
    """The rotations of an epoch's images, sampled in advance.

    By kind: "none", images as they are; "one", each rotated at random; "all", each in all four
    rotations.
    """

    def __init__(self, kind: str, n_samples: int, device: torch.device) -> None:
        self.kind, self.copies = kind, copies(kind)
        self.rotation = torch.zeros(
            n_samples if kind == "one" else 0, dtype=torch.long, device=device
        )

    def sample_epoch(self, generator: torch.Generator) -> None:
        """Sample an epoch's rotations, in place: a captured step reads them there."""
        if self.kind == "one":
            self.rotation.copy_(
                torch.randint(N_ROTATIONS, (len(self.rotation),), generator=generator)
            )

    def __call__(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Rotate the images at these positions; return them and the quarter rotations of each."""
        if self.kind == "none":
            return x, None
        n, rotated = len(x), all_rotations(x)
        if self.kind == "all":
            return rotated, torch.arange(N_ROTATIONS * n, device=x.device) // n
        rotation = self.rotation[positions]
        return rotated[rotation * n + torch.arange(n, device=x.device)], rotation
