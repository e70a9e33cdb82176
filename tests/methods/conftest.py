"""A second task of a baseline, up to its first mini-batch."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from lmrc.checks import blobs
from lmrc.nets.growing import GrowingLinear
from lmrc.nets.network import Encoder, Frozen, Network
from lmrc.training.batches import MiniBatch
from lmrc.training.objective import Objective

(X, Y), (X2, Y2), _ = blobs()


@pytest.fixture
def linear():
    """Return a network of one linear layer with these weights."""

    def of(weight):
        head = GrowingLinear(1, len(weight))
        head.weight.data = weight
        return Network(Encoder(nn.Flatten(), torch.zeros(1), torch.ones(1)), head)

    return of


@pytest.fixture
def second_step():
    """The networks and the first mini-batch of a second task, moved a little."""

    def of(model):
        frozen = model.network_
        network = copy.deepcopy(frozen)
        network.head.add_classes(2)
        model.heads_ = [*model.heads_, np.array([2, 3])]
        torch.manual_seed(0)
        with torch.no_grad():
            for p in network.parameters():
                p += 0.05 * torch.randn_like(p)
        x, y = torch.from_numpy(X2).float(), torch.from_numpy(Y2)
        return network, frozen, MiniBatch(x, y, torch.bincount(y, minlength=4), n_known=2)

    return of


@pytest.fixture
def assert_gradient(second_step):
    """See that a term of the loss moves encoder and head, and not the network before."""

    def of(model, term):
        network, frozen, batch = second_step(model.partial_fit(X, Y))
        Objective(model, network, Frozen(frozen))(batch)[term].mean().backward()
        for part in (network.encoder.backbone[1], network.head):
            assert part.weight.grad.norm() > 1e-6
        assert all(p.grad is None for p in frozen.parameters())

    return of
