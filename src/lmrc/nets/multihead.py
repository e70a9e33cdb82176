"""Heads that grow: one per task (the paper's), or one row per class (the baselines')."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MIXED = 0.7  # part of a response along two label vectors, as of an image that is like both
TINY = 1e-12  # vectors that are shorter keep a direction and are not made as long as others


def _fresh_rows(n_rows: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Draw weights and biases for new outputs, uniform in ±1/√width as in ``nn.Linear``."""
    bound = 1 / math.sqrt(width)
    weight = torch.empty(n_rows, width).uniform_(-bound, bound)
    bias = torch.empty(n_rows).uniform_(-bound, bound)
    return weight.to(like), bias.to(like)


def without_row(rows: Tensor, row: int) -> Tensor:
    """Return all rows but one."""
    return torch.cat([rows[:row], rows[row + 1 :]])


class MultiHead(nn.Module):
    """Normalised linear heads M₁ … M_k, one per task, as one stacked parameter.

    ``forward`` maps features (batch, width) to unit responses (batch, heads, dim).

    Parameters
    ----------
    width : int
        Number of features.
    dim : int
        Dimension d of the label vectors.
    n_heads : int
        Heads to begin with.

    Attributes
    ----------
    weight : Parameter of shape (heads, dim, width)
    bias : Parameter of shape (heads, dim)
    """

    def __init__(self, width: int, dim: int, n_heads: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_heads, dim, width))
        self.bias = nn.Parameter(torch.zeros(n_heads, dim))

    def __len__(self) -> int:
        return len(self.weight)

    def open_head(self) -> None:
        """Add one head; those that are there keep their weights."""
        _, dim, width = self.weight.shape
        weight, bias = _fresh_rows(dim, width, like=self.weight)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), weight[None]]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), bias[None]]))

    def erase(self, head: int, own: Tensor, rest: Tensor, rng: torch.Generator) -> None:
        """Let a head respond to one of its classes as to an image that is none of them.

        What it responds along the class's label vectors goes to a random mixture of two other
        classes', and these directions are drawn anew. Without the mixture the class would show by
        a response that is far from all others; without the new draw, by directions of zeros.

        With one other class there is no mixture: that class would be taken for all that neither
        was. The directions away from its label vectors are rotated at random instead.

        Parameters
        ----------
        head : int
        own : Tensor of shape (rotations, dim)
            Label vectors of the class.
        rest : Tensor of shape (others, rotations, dim)
            Those of the head's other classes.
        rng : torch.Generator
        """
        own, rest = own.cpu().double(), rest.cpu().double()
        basis = torch.linalg.qr(own.T)[0]  # (dim, turns)
        if len(rest) > 1:
            two = rest[torch.randperm(len(rest), generator=rng)[:2]]
            shares = torch.rand(2, 1, 1, generator=rng, dtype=torch.double)
            mixture = MIXED * F.normalize((shares * two).sum(dim=0), dim=1)
            mixture -= mixture @ basis @ basis.T  # nothing of the class's own vectors
            change, scale = mixture.T @ own - basis @ basis.T, 1.0
        else:
            away = torch.linalg.qr(rest[0].T, mode="complete")[0][:, rest.shape[1] :]
            noise = torch.randn(away.shape[1], away.shape[1], generator=rng, dtype=torch.double)
            change, scale = away @ torch.linalg.qr(noise)[0] @ away.T - away @ away.T, 0.0

        def erased(weights: Tensor) -> Tensor:  # (dim, n)
            new = weights.cpu().double()
            new = new + change @ new
            fresh = torch.randn(basis.shape[1], new.shape[1], generator=rng, dtype=torch.double)
            found: Tensor = (new + scale * new.std() * basis @ fresh).to(weights)
            return found

        weight, bias = self.weight.detach().clone(), self.bias.detach().clone()
        weight[head], bias[head] = erased(weight[head]), erased(bias[head][:, None])[:, 0]
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def remove_head(self, head: int) -> None:
        """Take out a head that governs no class any more."""
        self.weight = nn.Parameter(without_row(self.weight.detach(), head))
        self.bias = nn.Parameter(without_row(self.bias.detach(), head))

    def forward(self, features: Tensor) -> Tensor:
        """Return unit responses of shape (batch, heads, dim)."""
        return self.respond(features, self.weight, self.bias)

    @staticmethod
    def respond(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the unit responses of heads with these weights."""
        n_heads, dim, width = weight.shape
        out = F.linear(features, weight.reshape(-1, width), bias.reshape(-1))
        # Unit length in fp32: a cosine near 1 needs the digits that bf16 lacks.
        return unit(out.float().view(-1, n_heads, dim))


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (…, dim) with length 1; those of length 0 as they are."""
    if not (torch.is_grad_enabled() and vectors.requires_grad):
        return F.normalize(vectors, dim=-1, eps=TINY)
    # The same but for rounding, and on a GPU in fewer kernels.
    dim = vectors.shape[-1]
    units: Tensor = F.rms_norm(vectors, (dim,), eps=TINY**2 / dim) * float(dim) ** -0.5
    return units


def cosines(responses: Tensor, vectors: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Compare each head's response with the vectors that it governs.

    Parameters
    ----------
    responses : Tensor of shape (n, heads, dim)
        Unit vectors, and so are the others.
    vectors : Tensor of shape (sum of sizes, dim)
        In the order of the heads.
    sizes : sequence of int
        How many of them each head governs.

    Returns
    -------
    list of Tensors of shape (n, heads, size)
        One for each run of heads that govern equally many: they are one batched product.
    """
    parts, head, row = [], 0, 0
    for size, run in itertools.groupby(sizes):
        count = len(list(run))
        governed = vectors[row : row + count * size].view(count, size, -1)
        answers = responses[:, head : head + count].transpose(0, 1)  # (heads, n, dim)
        with torch.autocast(responses.device.type, enabled=False):  # bf16 has steps of 0.004 near 1
            parts.append(torch.bmm(answers, governed.transpose(1, 2)).transpose(0, 1))
        head, row = head + count, row + count * size
    return parts


class GrowingLinear(nn.Module):
    """A linear classifier with one output per class: the softmax layer that grows.

    Parameters
    ----------
    width : int
        Number of features.
    n_classes : int
        Outputs to begin with.
    """

    def __init__(self, width: int, n_classes: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_classes, width))
        self.bias = nn.Parameter(torch.zeros(n_classes))

    def add_classes(self, n_new: int) -> None:
        """Add outputs for new classes; those that are there keep their weights."""
        weight, bias = _fresh_rows(n_new, self.weight.shape[1], like=self.weight)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), weight]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), bias]))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        return F.linear(features, self.weight, self.bias).float()
