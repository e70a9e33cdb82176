"""Pseudo-features: samples of the classes' Gaussians, some replaced by features of exemplars."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lmrc.statistics.classes import ClassStatistics

SAMPLES = 32  # pseudo-features of a class in each step
REAL = 0.5  # share of these features that are of real images instead, where there are any


def pseudo_features(
    statistics: ClassStatistics,
    non_negative: bool,
    generator: torch.Generator,
    samples: int = SAMPLES,
) -> Callable[[], Tensor]:
    """Return a sampler of pseudo-features, equally many of each class: (rotations, n, width)."""
    n_classes, rotations, _ = statistics.means.shape
    each = max(1, samples // rotations)
    deviations = statistics.covariances.sampler(n_classes, generator)
    means = statistics.means[:, :, None].to(generator.device)  # (classes, rotations, 1, width)

    def sample() -> Tensor:
        x = means + deviations(rotations * each).view(n_classes, rotations, each, -1)
        x = x.transpose(0, 1).flatten(1, 2)
        return x.relu() if non_negative else x

    return sample


def partly_real(
    pseudo: Callable[[], Tensor],
    real: Mapping[int, Tensor],
    n_classes: int,
    generator: torch.Generator,
) -> Callable[[], Tensor]:
    """Return a sampler that replaces a share of a class's pseudo-features by real ones, if any."""
    device = generator.device
    rows = torch.tensor(list(real), device=device)
    features = [part.transpose(0, 1) for part in real.values()]  # (n, rotations, width) each
    bank = pad_sequence(features, batch_first=True).to(device)  # (rows, most, rotations, width)
    n = torch.tensor([[len(part)] for part in features], device=device)
    of_row = torch.arange(len(rows), device=device)[:, None]

    def sample() -> Tensor:
        x = pseudo()
        x = x.view(len(x), n_classes, -1, x.shape[-1])  # (rotations, classes, each, width)
        k = max(1, round(REAL * x.shape[2]))
        chosen = torch.rand(len(rows), k, generator=generator, device=device) * n
        x[:, rows, :k] = bank[of_row, chosen.long()].permute(2, 0, 1, 3)
        return x.flatten(1, 2)

    return sample
