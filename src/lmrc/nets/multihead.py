"""The multi-head network M of the paper: one head per task on shared features (Sec. 2.2)."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmrc.nets.growing import new_rows

EPS = 1e-12  # shorter vectors are not normalised


class MultiHead(nn.Module):
    """Normalised linear heads M₁ … M_k, one per task, as one stacked parameter.

    ``forward`` maps features (batch, width) to responses o₁ … o_k of unit length,
    (batch, heads, dim).

    Parameters
    ----------
    width : int
        Number of features.
    dim : int
        Dimension d of the label vectors.
    n_heads : int
        Initial number of heads.

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

    def add_head(self) -> None:
        """Add the head M_{k+1} of a new task; the others keep their weights."""
        _, dim, width = self.weight.shape
        weight, bias = new_rows(dim, width, like=self.weight)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), weight[None]]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), bias[None]]))

    def forward(self, features: Tensor) -> Tensor:
        """Return the responses oᵢ ← Mᵢ(x) of Eqs. 1, 7 and 9: (batch, heads, dim).

        Of the frozen copy M̂, they are the v̂ᵢ of Eq. 6.
        """
        return self.respond(features, self.weight, self.bias)

    @staticmethod
    def respond(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the responses of heads with these weights."""
        n_heads, dim, width = weight.shape
        out = F.linear(features, weight.reshape(-1, width), bias.reshape(-1))
        # Normalised in fp32: a cosine near 1 needs more digits than bf16 has.
        return unit(out.float().view(-1, n_heads, dim))


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (…, dim) at unit length; zero vectors stay zero."""
    if not (torch.is_grad_enabled() and vectors.requires_grad):
        return F.normalize(vectors, dim=-1, eps=EPS)
    # The same up to rounding, in fewer kernels on a GPU.
    dim = vectors.shape[-1]
    units: Tensor = F.rms_norm(vectors, (dim,), eps=EPS**2 / dim) * float(dim) ** -0.5
    return units


def cosines(responses: Tensor, vectors: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return the similarities oᵢ · cᵢʲ of Eq. 2, each head with its own classes' vectors.

    Parameters
    ----------
    responses : Tensor of shape (n, heads, dim)
        The oᵢ, of unit length.
    vectors : Tensor of shape (sum of sizes, dim)
        The cᵢʲ in the order of the heads, of unit length.
    sizes : sequence of int
        Label vectors h of each head.

    Returns
    -------
    list of Tensors of shape (n, heads, size)
        One for consecutive heads with the same number of classes: one batched product.
    """
    parts, head, row = [], 0, 0
    for size, run in itertools.groupby(sizes):
        count = len(list(run))
        own = vectors[row : row + count * size].view(count, size, -1)
        outputs = responses[:, head : head + count].transpose(0, 1)  # (heads, n, dim)
        with torch.autocast(responses.device.type, enabled=False):  # bf16 has steps of 0.004 near 1
            parts.append(torch.bmm(outputs, own.transpose(1, 2)).transpose(0, 1))
        head, row = head + count, row + count * size
    return parts
