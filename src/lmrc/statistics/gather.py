"""Features of a class batch, before and after it was learnt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from lmrc.nets.network import Trunk
from lmrc.training.batches import Batches

PASSES = 2  # looks at each image, augmented otherwise each time
AT_A_TIME = 128  # images in a mini-batch
TOGETHER = 32  # mini-batches whose features are in memory at once


def gather(
    trunks: Sequence[Trunk],
    x: Tensor,
    *,
    layers: int,
    augment: str,
    rotated: bool,
    generator: torch.Generator,
    blended: bool = False,
) -> Iterator[list[Tensor]]:
    """Yield features of images, augmented as in training: one (turns, n, width) for each trunk.

    In float64, and on the device where that is computed there; some thousand at a time, as those
    of all images may take more room than the images.

    Parameters
    ----------
    trunks : sequence of Trunk
        In evaluation mode, on one device. All see the same inputs.
    x : Tensor
        Images, or vectors.
    layers : int
        Of how many of the last layers the features are.
    augment : str
        One of `augment.AUGMENTATIONS`.
    rotated : bool
        Whether each image is looked at in all four turns.
    generator : torch.Generator
        Where the chance comes from.
    blended : bool
        Whether each image is laid over another, in random shares.
    """
    device = trunks[0].mean.device
    batches = Batches(
        x,
        torch.zeros(len(x), dtype=torch.long),
        n_known=0,
        batch_size=AT_A_TIME,
        augment=augment,
        device=device,
        rotations="all" if rotated else "none",
    )
    turns = batches.rotations.copies
    home = device if device.type == "cuda" else torch.device("cpu")  # others have no float64

    def looks() -> Iterator[list[Tensor]]:
        for _ in range(PASSES if augment != "none" else 1):
            batches.draw(generator)
            for _, positions in batches.shares():
                inputs = batches.at(positions).x
                if blended:
                    inputs = _blend(inputs, turns, generator)
                with torch.no_grad():
                    found = [trunk.features(inputs, layers).float() for trunk in trunks]
                yield [f.view(turns, -1, f.shape[-1]).to(home, torch.float64) for f in found]

    left = looks()
    while some := list(islice(left, TOGETHER)):
        yield [torch.cat(part, dim=1) for part in zip(*some, strict=True)]


def _blend(x: Tensor, turns: int, generator: torch.Generator) -> Tensor:
    """Lay each input over the one before it, in the same turn, in random shares."""
    of_turns = x.view(turns, -1, *x.shape[1:])
    share = torch.rand(of_turns.shape[1], *(1,) * (x.ndim - 1), generator=generator).to(x.device)
    out = share * of_turns.float() + (1 - share) * of_turns.roll(1, dims=1).float()
    out = out.round() if x.dtype == torch.uint8 else out
    return out.to(x.dtype).view_as(x)
