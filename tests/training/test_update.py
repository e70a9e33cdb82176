"""Weights that compiled code moves go where torch's own SGD would move them."""

import pytest
import torch
from torch import nn

from lmrc.training.checkpoint import pack_training, unpack_training
from lmrc.training.compiling import uncompiled
from lmrc.training.update import update

# The compiler's own.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def optimiser_of(weights, **settings):
    return torch.optim.SGD(weights, lr=0.1, **{"momentum": 0.9, "weight_decay": 0.01} | settings)


def fresh(n=2):
    rng = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(3, 2, 3, 3, generator=rng)) for _ in range(n)]


def slopes(step):
    rng = torch.Generator().manual_seed(step + 1)
    return [torch.randn(3, 2, 3, 3, generator=rng).bfloat16() for _ in range(2)]


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_weights_move_as_by_torchs_sgd_and_are_cast(momentum):
    expected, moved = fresh(), fresh()
    torchs, ours = (optimiser_of(w, momentum=momentum) for w in (expected, moved))
    used = [torch.zeros_like(w, dtype=torch.bfloat16) for w in moved]
    for step in range(3):
        for weight, slope in zip(expected, slopes(step), strict=True):
            weight.grad = slope.float()
        ours.param_groups[0]["lr"] = torchs.param_groups[0]["lr"] = 0.1 / (step + 1)
        torchs.step()
        with uncompiled():
            update(ours, moved, slopes(step), used)
        ours.step()  # which has no gradient of them, and leaves them alone
        for weight, own, cast in zip(expected, moved, used, strict=True):
            torch.testing.assert_close(own, weight)
            assert torch.equal(cast, own.bfloat16())


def test_a_training_that_is_stopped_goes_on_with_its_momentum():
    network, resumed = nn.ParameterList(fresh()), nn.ParameterList(fresh())
    used = [torch.zeros_like(w, dtype=torch.bfloat16) for w in network]
    ours, again = optimiser_of(network), optimiser_of(resumed)
    with uncompiled():
        update(ours, list(network), slopes(0), used)
        unpack_training(pack_training(network, ours), resumed, again)
        update(ours, list(network), slopes(1), used)
        update(again, list(resumed), slopes(1), used)
    for one, other in zip(network, resumed, strict=True):
        assert torch.equal(one, other)
