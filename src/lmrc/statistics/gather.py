"""Features of a task in several networks: the old one and the new one."""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from lmrc.data.inputs import Inputs
from lmrc.nets.network import Encoder
from lmrc.training.augment import per_image
from lmrc.training.batches import Batches
from lmrc.training.device import for_float64

PASSES = 2  # augmented views of each image
AT_A_TIME = 128  # images in a mini-batch
TOGETHER = 32  # mini-batches whose features by two encoders are in memory at once


def passes(augment: str) -> int:
    """Return the number of augmented views of each image."""
    return PASSES if augment != "none" else 1


def gather(
    encoders: Sequence[Encoder],
    x: Inputs,
    *,
    layers: int,
    augment: str,
    rotated: bool,
    generator: torch.Generator,
) -> Iterator[list[Tensor]]:
    """Yield features of augmented images: one (rotations, n, width) for each encoder.

    In float64, on the CPU unless the device supports it. Some thousand at a time, since the
    features of all images may take more memory than the images.

    Parameters
    ----------
    encoders : sequence of Encoder
        In evaluation mode, on one device. All see the same inputs.
    x : Inputs
        Images, or vectors.
    layers : int
        Of how many of the last layers the features are.
    augment : str
        As the classifiers' parameter, but for "auto".
    rotated : bool
        Whether to take each image in all four rotations.
    generator : torch.Generator
        RNG.
    """
    device = encoders[0].mean.device
    batches = Batches(
        x,
        torch.zeros(len(x), dtype=torch.long),
        n_known=0,
        batch_size=AT_A_TIME,
        augment=per_image(augment),
        device=device,
        rotations="all" if rotated else "none",
    )
    rotations = batches.rotations.copies
    home = for_float64(device)

    def views() -> Iterator[list[Tensor]]:
        for _ in range(passes(augment)):
            batches.sample_epoch(generator)
            for _, positions in batches.shards():
                inputs = batches.at(positions).x
                with torch.no_grad():
                    found = [encoder.features(inputs, layers).float() for encoder in encoders]
                yield [f.view(rotations, -1, f.shape[-1]).to(home, torch.float64) for f in found]

    left, together = views(), max(1, TOGETHER // max(1, len(encoders) - 1))
    while some := list(islice(left, together)):
        yield [torch.cat(part, dim=1) for part in zip(*some, strict=True)]
