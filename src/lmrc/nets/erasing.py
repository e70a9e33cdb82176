"""Heads without a class, for `forget`: not part of the paper."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmrc.nets.multihead import MultiHead

MIXTURE_NORM = 0.7  # of a response along two label vectors, as for an image similar to both


def without_row(rows: Tensor, row: int) -> Tensor:
    """Return all rows but one."""
    return torch.cat([rows[:row], rows[row + 1 :]])


def erase_class(
    heads: MultiHead, head: int, own: Tensor, rest: Tensor, rng: torch.Generator
) -> None:
    """Change a head in place: it then responds to a class of its own as to an unknown image.

    The response along the class's `own` label vectors, (rotations, dim), is replaced by a random
    mixture of two other classes', and the weights of these directions are sampled anew. Without the
    mixture, the class would stand out by a response far from all others; without new weights, by
    directions of zeros.

    With one other class in the `rest`, (others, rotations, dim), there is no mixture, as everything
    unknown would be predicted as that class. Instead, the directions orthogonal to its label
    vectors are rotated at random.
    """
    own, rest = own.cpu().double(), rest.cpu().double()
    basis = torch.linalg.qr(own.T)[0]  # (dim, rotations)
    if len(rest) > 1:
        two = rest[torch.randperm(len(rest), generator=rng)[:2]]
        weights = torch.rand(2, 1, 1, generator=rng, dtype=torch.double)
        mixture = MIXTURE_NORM * F.normalize((weights * two).sum(dim=0), dim=1)
        mixture -= mixture @ basis @ basis.T  # nothing of the class's own vectors
        change, scale = mixture.T @ own - basis @ basis.T, 1.0
    else:
        away = torch.linalg.qr(rest[0].T, mode="complete")[0][:, rest.shape[1] :]
        noise = torch.randn(away.shape[1], away.shape[1], generator=rng, dtype=torch.double)
        change, scale = away @ torch.linalg.qr(noise)[0] @ away.T - away @ away.T, 0.0

    def erased(rows: Tensor) -> Tensor:  # (dim, n)
        new = rows.cpu().double()
        new = new + change @ new
        fresh = torch.randn(basis.shape[1], new.shape[1], generator=rng, dtype=torch.double)
        found: Tensor = (new + scale * new.std() * basis @ fresh).to(rows)
        return found

    weight, bias = heads.weight.detach().clone(), heads.bias.detach().clone()
    weight[head], bias[head] = erased(weight[head]), erased(bias[head][:, None])[:, 0]
    heads.weight, heads.bias = nn.Parameter(weight), nn.Parameter(bias)


def remove_head(heads: MultiHead, head: int) -> None:
    """Remove a head without classes, in place."""
    heads.weight = nn.Parameter(without_row(heads.weight.detach(), head))
    heads.bias = nn.Parameter(without_row(heads.bias.detach(), head))
