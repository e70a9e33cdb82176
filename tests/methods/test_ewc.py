"""EWC: its penalty, and the Fisher information."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lmrc import EWCClassifier
from lmrc.checks import blobs
from lmrc.methods.ewc import fisher_diagonal
from lmrc.nets.growing import GrowingLinear
from lmrc.nets.network import Encoder, Frozen, Network
from lmrc.training.memory import Memory
from lmrc.training.objective import Objective

(X, Y), (X2, Y2), _ = blobs()


def quick(cls, **settings):
    return cls(**{"epochs": 3, "random_state": 0} | settings)


def test_the_penalty_has_a_gradient(assert_gradient):
    assert_gradient(quick(EWCClassifier), "ewc")


def test_penalty_is_zero_at_the_old_weights_and_grows_with_distance_and_fisher(second_step):
    model = quick(EWCClassifier, penalty_weight=1.0).partial_fit(X, Y)
    network, frozen, _ = second_step(model)
    same = copy.deepcopy(frozen)
    same.head.add_classes(2)
    assert model.penalty(same, frozen)["ewc"].item() == 0
    near = model.penalty(network, frozen)["ewc"].item()
    assert near > 0
    model.fisher_ = {name: 2 * f for name, f in model.fisher_.items()}
    assert model.penalty(network, frozen)["ewc"].item() == pytest.approx(2 * near, rel=1e-4)


def test_penalty_by_hand(linear):
    old, new = linear(torch.tensor([[1.0], [2.0]])), linear(torch.tensor([[1.5], [4.0], [9.0]]))
    model = quick(EWCClassifier, penalty_weight=10.0, learning_rate=1e-3)
    fisher = {"head.weight": torch.tensor([[1.0], [3.0]]), "head.bias": torch.ones(2)}
    model.fisher_ = fisher
    # ½ · 10 · (1 · 0.5² + 3 · 2²); the third class is new and free.
    assert model.penalty(new, old)["ewc"].item() == pytest.approx(5 * 12.25)
    model.set_params(learning_rate=0.1)  # stiffness is held to 1 / learning rate = 10
    assert model.penalty(new, old)["ewc"].item() == pytest.approx(0.5 * (10 * 0.25 + 10 * 4))


def test_the_penalty_holds_where_samples_of_known_classes_are_at_hand_too(second_step):
    """Exemplars, or a known class that comes again."""
    model = quick(EWCClassifier).partial_fit(X, Y)
    network, frozen, batch = second_step(model)
    objective = Objective(model, network, Frozen(frozen))
    term = objective(batch)["ewc"]
    assert term > 0
    assert torch.equal(objective(replace(batch, n_known=3, reviews=True))["ewc"], term)


def test_fisher_is_the_mean_of_squared_gradients_per_sample(linear):
    torch.manual_seed(0)
    network, x = linear(torch.randn(3, 1)), torch.randn(50, 1)
    labels = torch.multinomial(
        network(x).softmax(1).detach(), 1, generator=torch.Generator().manual_seed(3)
    )[:, 0]
    expected = torch.zeros(3, 1)
    for sample, label in zip(x, labels, strict=True):
        network.zero_grad()
        F.cross_entropy(network(sample[None]), label[None]).backward()
        expected += network.head.weight.grad.square() / 50
    got = fisher_diagonal(network, x, torch.Generator().manual_seed(3))
    torch.testing.assert_close(got["head.weight"], expected)


def test_fisher_is_that_of_theory_for_a_softmax_layer(linear):
    """For logits z = b the Fisher information of bᵢ is pᵢ (1 − pᵢ)."""
    network = linear(torch.zeros(2, 1))
    network.head.bias.data = torch.tensor([1.0, 0.0])
    p = torch.tensor([1.0, 0.0]).softmax(0)
    got = fisher_diagonal(network, torch.zeros(20_000, 1), torch.Generator().manual_seed(0))
    torch.testing.assert_close(got["head.bias"], p * (1 - p), rtol=0.03, atol=0)


def test_the_fisher_information_is_of_all_samples_of_the_task(linear):
    """Of two equally likely classes log p has the slope ± x / 2, whichever is drawn."""
    model, x = quick(EWCClassifier), torch.arange(1.0, 8.0)[:, None]
    model.seed_, model.n_tasks_ = 0, 0
    model.after_task(linear(torch.zeros(2, 1)), Memory(x, torch.zeros(7, dtype=torch.long)))
    expected = (x / 2).square().mean()
    torch.testing.assert_close(model.fisher_["head.weight"], expected.expand(2, 1))


def test_fisher_is_of_the_network_as_it_predicts():
    """Dropout is off and BatchNorm's statistics stand still while it is measured."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    network = Network(Encoder(backbone, torch.zeros(4), torch.ones(4)), GrowingLinear(8))
    network.head.add_classes(3)
    x = torch.randn(40, 4)
    twice = [
        fisher_diagonal(network.train(), x, torch.Generator().manual_seed(1)) for _ in range(2)
    ]
    for name, once in twice[0].items():
        assert torch.equal(once, twice[1][name])
    assert backbone[1].num_batches_tracked == 0


def test_fisher_accumulates_over_tasks():
    model = quick(EWCClassifier).partial_fit(X, Y)
    first = model.fisher_
    model.partial_fit(X2, Y2)
    assert model.fisher_["head.weight"].shape[0] == 4
    for name, earlier in first.items():
        assert (model.fisher_[name][: len(earlier)] >= earlier).all()
    assert (
        model.fisher_["encoder.backbone.1.weight"].sum() > first["encoder.backbone.1.weight"].sum()
    )


def test_the_fisher_information_goes_where_the_network_is():
    """From a file it comes on the CPU; a step on a GPU must not fetch it each time."""
    model = quick(EWCClassifier).partial_fit(X, Y)
    kept = model.fisher_
    model.init_network(copy.deepcopy(model.network_).to("meta"), torch.from_numpy(X2))
    assert {f.device.type for f in model.fisher_.values()} == {"meta"}
    assert {f.device.type for f in kept.values()} == {"cpu"}  # replaced, not changed


class Scaled(nn.Module):
    """A backbone with a weight that is a single number."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(X.shape[1], 8), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.scale * torch.relu(self.layer(x))


def test_ewc_holds_weights_that_are_single_numbers():
    model = quick(EWCClassifier, backbone=Scaled).partial_fit(X, Y)
    before = model.fisher_["encoder.backbone.scale"].item()
    assert model.partial_fit(X2, Y2).fisher_["encoder.backbone.scale"].item() > before > 0


def test_ewc_holds_the_weights_that_matter():
    moved = {}
    for penalty in (0.0, 1e5):
        model = quick(EWCClassifier, penalty_weight=penalty).partial_fit(X, Y)
        before, fisher = model.network_.encoder.backbone[3].weight.clone(), model.fisher_
        model.set_params(epochs=20).partial_fit(X2, Y2)
        change = (model.network_.encoder.backbone[3].weight - before).square()
        moved[penalty] = (fisher["encoder.backbone.3.weight"] * change).sum().item()
    assert moved[1e5] < 0.2 * moved[0.0]
