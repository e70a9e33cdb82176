import copy

import pytest
import torch
from torch import nn

from lmrc.nets.network import Encoder, Network
from lmrc.training.batches import Batches
from lmrc.training.device import compiled
from lmrc.training.loop import Optimisation, TrainingError, train

CPU = torch.device("cpu")
PLAN = Optimisation(epochs=3, learning_rate=0.1, halve_at=(), momentum=0.0, weight_decay=0.0)


def batches(n=10, batch_size=4):
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0))
    y = torch.arange(n) % 2
    return Batches(x, y, n_known=0, batch_size=batch_size, augment="none", device=CPU)


def squared_error(network):
    return lambda batch: {"new": (network(batch.x)[:, 0] - batch.y).square()}


def run(network, losses, plan=PLAN, **kwargs):
    return list(train(network, losses, batches(**kwargs), plan, seed=lambda epoch: epoch))


def test_terms_are_means_over_samples_and_their_sum_is_the_loss():
    network = nn.Linear(2, 1)
    plan = Optimisation(1, 1e-9, (), 0.0, 0.0)  # a rate so small that the weights stand still
    losses = squared_error(network)
    (record,) = run(network, lambda batch: losses(batch) | {"penalty": torch.tensor(2.0)}, plan)
    data = batches()
    by_hand = (network(data.x)[:, 0] - data.y).square().mean().item()
    assert record["new"] == pytest.approx(by_hand)
    assert record["penalty"] == 2
    assert record["loss"] == pytest.approx(by_hand + 2)


def test_steps_are_those_of_sgd_with_momentum_weight_decay_and_a_falling_rate():
    network = nn.Linear(2, 1)
    data = batches()
    plan = Optimisation(2, 0.1, (1,), 0.9, 0.01)
    weight, bias = (p.detach().clone().requires_grad_() for p in network.parameters())
    run(network, squared_error(network), plan, batch_size=10)
    velocity = [0.0, 0.0]
    for rate in (0.1, 0.05):
        loss = (data.x @ weight.T + bias - data.y[:, None]).square().mean()
        gradients = torch.autograd.grad(loss, [weight, bias])
        parts = zip(velocity, gradients, (weight, bias), strict=True)
        velocity = [0.9 * v + g + 0.01 * p for v, g, p in parts]
        weight, bias = (
            (p - rate * v).detach().requires_grad_()
            for p, v in zip((weight, bias), velocity, strict=True)
        )
    torch.testing.assert_close(network.weight, weight)
    torch.testing.assert_close(network.bias, bias)


def test_the_loss_falls_and_records_say_what_happened():
    network = nn.Linear(2, 1)
    plan = Optimisation(6, 0.05, (0.5, 5), 0.9, 0.0)
    records = run(network, squared_error(network), plan)
    assert [r["epoch"] for r in records] == list(range(6))
    assert [r["learning_rate"] for r in records] == [0.05] * 3 + [0.025] * 2 + [0.0125]
    assert records[-1]["loss"] < records[0]["loss"]


def test_dropout_is_seeded_and_the_global_generator_is_restored():
    def trained(users_seed):
        torch.manual_seed(7)
        network = nn.Sequential(nn.Linear(2, 16), nn.Dropout(0.5), nn.Linear(16, 1))
        torch.manual_seed(users_seed)
        before = torch.random.get_rng_state()
        run(network, squared_error(network))
        assert torch.equal(torch.random.get_rng_state(), before)
        return network[0].weight

    assert torch.equal(trained(1), trained(2))


def test_dropout_differs_at_every_step_and_epoch():
    network, sampled = nn.Linear(2, 1), []

    def losses(batch):
        sampled.append(torch.rand(()).item())
        return squared_error(network)(batch)

    run(network, losses)
    assert len(sampled) == len(set(sampled)) == 9  # three epochs of three steps


def test_frozen_weights_stay():
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    network[0].requires_grad_(False)
    before = network[0].weight.clone(), network[1].weight.clone()
    run(network, squared_error(network))
    assert torch.equal(network[0].weight, before[0])
    assert not torch.equal(network[1].weight, before[1])


def test_a_network_is_in_training_mode_whatever_happens_between_epochs():
    network, modes = nn.Linear(2, 1), []

    def losses(batch):
        modes.append(network.training)
        return squared_error(network)(batch)

    for _ in train(network.eval(), losses, batches(), PLAN, seed=lambda epoch: epoch):
        network.eval()
    assert modes == [True] * 9


def test_training_works_where_the_caller_has_switched_gradients_off():
    network = nn.Linear(2, 1)
    with torch.no_grad():
        records = run(network, squared_error(network))
        assert not torch.is_grad_enabled()
    assert records[-1]["loss"] < records[0]["loss"]


def test_a_loss_that_explodes_is_an_error_that_names_the_remedy():
    network = nn.Linear(2, 1)
    plan = Optimisation(20, 1e6, (), 0.9, 0.0)
    with pytest.raises(TrainingError, match=r"lower learning_rate \(now 1e\+06\)"):
        run(network, squared_error(network), plan)


def test_terms_that_are_not_one_value_per_sample_are_named():
    network = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"the term 'wide' has the shape \(4, 1\)"):
        run(network, lambda batch: {"wide": network(batch.x)})
    with pytest.raises(TypeError, match="returned a Tensor: return a dict"):
        run(network, lambda batch: network(batch.x).mean())
    with pytest.raises(TypeError, match="returned no terms"):
        run(network, lambda batch: {})
    with pytest.raises(TypeError, match="the term 'old' is a int: return a tensor"):
        run(network, lambda batch: {"new": network(batch.x)[:, 0], "old": 0})
    for name in ("loss", "task"):
        with pytest.raises(ValueError, match=f"no term can be named '{name}'"):
            run(network, lambda batch, name=name: {name: network(batch.x)[:, 0]})


def test_terms_that_change_from_step_to_step_are_named():
    network, names = nn.Linear(2, 1), iter("ab")
    with pytest.raises(ValueError, match="the terms b, and a in an earlier step"):
        run(network, lambda batch: {next(names): network(batch.x)[:, 0]})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_network_is_compiled_only_while_it_is_trained():
    """Compiled code is no part of a model: it would not survive a copy or a file."""
    network = Network(Encoder(nn.Linear(2, 3), torch.zeros(1), torch.ones(1)), nn.Linear(3, 1))
    with compiled(network, None):
        assert network.encoder._compiled_call_impl is not None
    assert network.encoder._compiled_call_impl is None
    copy.deepcopy(network)(torch.zeros(1, 2))


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
    data = Batches(x, y, n_known=0, batch_size=2, augment="none", device=CPU)
    network = nn.Linear(1, 1, bias=False)
    start = network.weight.item()
    plan = Optimisation(3, 0.1, (), 0.0, 0.0, schedule="cosine")
    losses = lambda batch: {"new": network(batch.x)[:, 0]}  # noqa: E731  # a slope of 1
    list(train(network, losses, data, plan, seed=lambda epoch: epoch))
    moved = sum(rate for epoch in range(3) for rate in plan.rates(epoch, 4))
    assert start - network.weight.item() == pytest.approx(moved, rel=1e-5)
