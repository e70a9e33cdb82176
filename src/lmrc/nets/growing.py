"""A linear layer that grows: the softmax head of the baselines."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def new_rows(n_rows: int, width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Initialise weights and biases of new outputs, uniform in ±1/√width as in ``nn.Linear``."""
    bound = 1 / math.sqrt(width)
    weight = torch.empty(n_rows, width).uniform_(-bound, bound)
    bias = torch.empty(n_rows).uniform_(-bound, bound)
    return weight.to(like), bias.to(like)


class GrowingLinear(nn.Module):
    """A linear layer with one output per class; outputs can be added.

    Parameters
    ----------
    width : int
        Number of features.
    n_classes : int
        Initial number of outputs.
    """

    def __init__(self, width: int, n_classes: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n_classes, width))
        self.bias = nn.Parameter(torch.zeros(n_classes))

    def add_classes(self, n_new: int) -> None:
        """Add outputs for new classes; the others keep their weights."""
        weight, bias = new_rows(n_new, self.weight.shape[1], like=self.weight)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), weight]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), bias]))

    def forward(self, features: Tensor) -> Tensor:
        """Return logits of shape (batch, classes)."""
        return F.linear(features, self.weight, self.bias).float()
