import pytest
import torch
from torch import nn

from lmrc.training.batches import Batches
from lmrc.training.loop import Optimisation, train


def test_cosine_rates_rise_in_the_first_epoch_and_fall_to_nothing():
    plan = Optimisation(10, 0.1, (), 0.9, 0.0, schedule="cosine")
    rates = [rate for epoch in range(10) for rate in plan.rates(epoch, 20)]
    top = rates.index(max(rates))
    assert 18 <= top <= 21
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == pytest.approx(0.1, rel=0.05)
    assert 0 < rates[0] < 0.005
    assert 0 < rates[-1] < 1e-4


@pytest.mark.parametrize("epochs", [1, 2, 4])
def test_few_epochs_still_reach_the_rate_and_fall_to_nothing(epochs):
    plan = Optimisation(epochs, 0.1, (), 0.9, 0.0, schedule="cosine")
    rates = [rate for e in range(epochs) for rate in plan.rates(e, 50)]
    assert max(rates) > 0.095
    # And fall for the most part of them.
    assert rates.index(max(rates)) == pytest.approx(0.2 * len(rates), abs=1)
    assert rates[-1] < 0.001


def test_each_step_is_taken_at_its_own_rate():
    x, y = torch.ones(8, 1), torch.zeros(8, dtype=torch.long)
    batches = Batches(x, y, n_known=0, batch_size=2, augment="none", device=torch.device("cpu"))
    network = nn.Linear(1, 1, bias=False)
    start = network.weight.item()
    plan = Optimisation(3, 0.1, (), 0.0, 0.0, schedule="cosine")
    losses = lambda batch: {"new": network(batch.x)[:, 0]}  # noqa: E731  # a slope of 1
    list(train(network, losses, batches, plan, seed=lambda epoch: epoch))
    moved = sum(rate for epoch in range(3) for rate in plan.rates(epoch, 4))
    assert start - network.weight.item() == pytest.approx(moved, rel=1e-5)
