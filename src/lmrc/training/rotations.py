"""Images turned by quarters: each turn of a class is something of its own to learn."""

from __future__ import annotations

import torch
from torch import Tensor

ROTATIONS = ("none", "one", "all")
TURNS = 4  # 0°, 90°, 180° and 270°


def all_turns(x: Tensor) -> Tensor:
    """Return images in all four turns: (4n, …), first all as they are, then all by 90°, ….

    >>> all_turns(torch.tensor([[[[1, 2], [3, 4]]]])).flatten(1).tolist()
    [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [3, 1, 4, 2]]
    """
    return torch.cat([torch.rot90(x, turn, dims=(-2, -1)) for turn in range(TURNS)])


def copies(rotations: str) -> int:
    """Return how many inputs come of one image."""
    return TURNS if rotations == "all" else 1


def check_square(input_shape: tuple[int, ...]) -> None:
    """Refuse inputs that have no four turns of one shape."""
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
    """The turns of an epoch's images, drawn ahead.

    Parameters
    ----------
    kind : {"none", "one", "all"}
        Images as they are; each turned by chance; or each in all four turns.
    n_samples : int
        Positions in an epoch.
    device : torch.device
    """

    def __init__(self, kind: str, n_samples: int, device: torch.device) -> None:
        self.kind, self.copies = kind, copies(kind)
        self.turn = torch.zeros(n_samples if kind == "one" else 0, dtype=torch.long, device=device)

    def draw(self, generator: torch.Generator) -> None:
        """Draw an epoch's turns, in place: there a captured step looks for them."""
        if self.kind == "one":
            self.turn.copy_(torch.randint(TURNS, (len(self.turn),), generator=generator))

    def __call__(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Turn the images at these positions; return them and how often each was turned."""
        if self.kind == "none":
            return x, None
        n, turned = len(x), all_turns(x)
        if self.kind == "all":
            return turned, torch.arange(TURNS * n, device=x.device) // n
        turn = self.turn[positions]
        return turned[turn * n + torch.arange(n, device=x.device)], turn
