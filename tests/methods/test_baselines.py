"""Each baseline gets the care of our own method: its regulariser is there, and does its work."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lmrc import (
    EWCClassifier,
    FineTuneClassifier,
    JointClassifier,
    LwFClassifier,
    ModelFileError,
    load,
)
from lmrc.checks import blobs
from lmrc.methods.ewc import fisher_diagonal
from lmrc.nets.growing import GrowingLinear
from lmrc.nets.network import Encoder, Frozen, Network
from lmrc.training.batches import MiniBatch
from lmrc.training.memory import Memory
from lmrc.training.objective import Objective

(X, Y), (X2, Y2), _ = blobs()


def quick(cls, **settings):
    return cls(**{"epochs": 3, "random_state": 0} | settings)


def second_step(model):
    """The networks and the first mini-batch of a second task, moved a little."""
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


def gradient_norms(term, network):
    network.zero_grad()
    term.mean().backward()
    return {
        name: p.grad.norm().item() for name, p in network.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (quick(EWCClassifier), "ewc"),
        (quick(LwFClassifier), "distillation"),
        (quick(LwFClassifier, heads="multi"), "distillation"),
    ],
)
def test_the_regulariser_has_a_gradient(model, name):
    network, frozen, batch = second_step(model.partial_fit(X, Y))
    norms = gradient_norms(Objective(model, network, Frozen(frozen))(batch)[name], network)
    assert norms["encoder.backbone.1.weight"] > 1e-6
    assert norms["head.weight"] > 1e-6
    assert all(p.grad is None for p in frozen.parameters())


# --- EWC ------------------------------------------------------------------------------------------


def test_penalty_is_zero_at_the_old_weights_and_grows_with_distance_and_fisher():
    model = quick(EWCClassifier, penalty_weight=1.0).partial_fit(X, Y)
    network, frozen, _ = second_step(model)
    same = copy.deepcopy(frozen)
    same.head.add_classes(2)
    assert model.penalty(same, frozen)["ewc"].item() == 0
    near = model.penalty(network, frozen)["ewc"].item()
    assert near > 0
    model.fisher_ = {name: 2 * f for name, f in model.fisher_.items()}
    assert model.penalty(network, frozen)["ewc"].item() == pytest.approx(2 * near, rel=1e-4)


def test_penalty_by_hand():
    old, new = linear(torch.tensor([[1.0], [2.0]])), linear(torch.tensor([[1.5], [4.0], [9.0]]))
    model = quick(EWCClassifier, penalty_weight=10.0, learning_rate=1e-3)
    fisher = {"head.weight": torch.tensor([[1.0], [3.0]]), "head.bias": torch.ones(2)}
    model.fisher_ = fisher
    # ½ · 10 · (1 · 0.5² + 3 · 2²); the third class is new and free.
    assert model.penalty(new, old)["ewc"].item() == pytest.approx(5 * 12.25)
    model.set_params(learning_rate=0.1)  # stiffness is held to 1 / learning rate = 10
    assert model.penalty(new, old)["ewc"].item() == pytest.approx(0.5 * (10 * 0.25 + 10 * 4))


def test_the_penalty_holds_where_samples_of_known_classes_are_at_hand_too():
    """Exemplars, or a known class that comes again."""
    model = quick(EWCClassifier).partial_fit(X, Y)
    network, frozen, batch = second_step(model)
    objective = Objective(model, network, Frozen(frozen))
    term = objective(batch)["ewc"]
    assert term > 0
    assert torch.equal(objective(replace(batch, n_known=3, reviews=True))["ewc"], term)


def linear(weight):
    head = GrowingLinear(1, len(weight))
    head.weight.data = weight
    return Network(Encoder(nn.Flatten(), torch.zeros(1), torch.ones(1)), head)


def test_fisher_is_the_mean_of_squared_gradients_per_sample():
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


def test_fisher_is_that_of_theory_for_a_softmax_layer():
    """For logits z = b the Fisher information of bᵢ is pᵢ (1 − pᵢ)."""
    network = linear(torch.zeros(2, 1))
    network.head.bias.data = torch.tensor([1.0, 0.0])
    p = torch.tensor([1.0, 0.0]).softmax(0)
    got = fisher_diagonal(network, torch.zeros(20_000, 1), torch.Generator().manual_seed(0))
    torch.testing.assert_close(got["head.bias"], p * (1 - p), rtol=0.03, atol=0)


def test_the_fisher_information_is_of_all_samples_of_the_task():
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


# --- LwF ------------------------------------------------------------------------------------------


def test_single_head_distillation_by_hand():
    model = quick(LwFClassifier, distillation_weight=3.0)
    old, new = linear(torch.tensor([[1.0], [2.0]])), linear(torch.tensor([[0.5], [1.0], [4.0]]))
    x = torch.tensor([[2.0]])
    terms = model.losses(new(x), old(x), MiniBatch(x, torch.tensor([2]), torch.ones(3), 2))
    logits = torch.tensor([1.0, 2.0, 8.0])
    torch.testing.assert_close(terms["new"], -logits.log_softmax(0)[2:])
    taught = torch.tensor([2.0, 4.0]).div(2).softmax(0)
    expected = -3 * (taught * logits[:2].div(2).log_softmax(0)).sum()
    torch.testing.assert_close(terms["distillation"][0], expected)


def test_multi_head_losses_and_scores_by_hand():
    model = quick(LwFClassifier, heads="multi")
    model.heads_ = [np.array([0, 1]), np.array([2]), np.array([3, 4])]
    old, new = linear(torch.tensor([[1.0], [2.0], [3.0]])), linear(torch.arange(5.0)[:, None])
    x = torch.tensor([[2.0]])
    terms = model.losses(new(x), old(x), MiniBatch(x, torch.tensor([4]), torch.ones(5), 3))
    torch.testing.assert_close(terms["new"], -torch.tensor([6.0, 8.0]).log_softmax(0)[1:])
    first = -(torch.tensor([1.0, 2.0]).softmax(0) * torch.tensor([0.0, 1.0]).log_softmax(0)).sum()
    # A head of one class has nothing to distil: its softmax is 1 whatever it says.
    torch.testing.assert_close(terms["distillation"][0], first)
    expected = [
        torch.tensor([0.0, 2.0]).softmax(0),
        torch.ones(1),
        torch.tensor([6.0, 8.0]).softmax(0),
    ]
    torch.testing.assert_close(model.scores(new, x)[0], torch.cat(expected))


@pytest.mark.parametrize("heads", ["single", "multi"])
def test_lwf_keeps_old_outputs_closer_than_fine_tuning(heads):
    """Both from the same first network; the old classes' softmax on the new data is compared."""
    drift = {}
    for weight in (0.0, 1.0):
        model = quick(LwFClassifier, heads=heads, distillation_weight=weight, epochs=20)
        model.partial_fit(X, Y)
        x = torch.from_numpy(X2).float()
        with torch.no_grad():
            before = model.network_(x).softmax(1)
            model.partial_fit(X2, Y2)
            after = model.network_(x)[:, :2].softmax(1)
        drift[weight] = (after - before).abs().mean().item()
    assert drift[1.0] < 0.5 * drift[0.0]


def test_lwf_without_distillation_is_fine_tuning():
    models = [quick(LwFClassifier, distillation_weight=0.0), quick(FineTuneClassifier)]
    answers = [m.partial_fit(X, Y).partial_fit(X2, Y2).predict(X) for m in models]
    np.testing.assert_array_equal(*answers)


# --- Joint ----------------------------------------------------------------------------------------


def test_joint_remembers_all_and_begins_anew():
    model = quick(JointClassifier, epochs=20).partial_fit(X, Y)
    before = model.network_.encoder.backbone[1].weight
    model.partial_fit(X2, Y2)
    assert len(model.memory_) == len(X) + len(X2)
    correlation = torch.corrcoef(
        torch.stack([before.flatten(), model.network_.encoder.backbone[1].weight.flatten()])
    )[0, 1]
    assert abs(correlation) < 0.2, "the new network must not start from the old one's weights"
    assert model.score(np.concatenate([X, X2]), np.concatenate([Y, Y2])) > 0.97


def test_joint_begins_with_its_weights_after_load_too(tmp_path):
    quick(FineTuneClassifier).fit(X, Y).save(tmp_path / "teacher")
    (file,) = (tmp_path / "teacher").glob("weights-*")
    model = quick(JointClassifier, weights=file, learning_rate=1e-9).partial_fit(X, Y)
    model.save(tmp_path / "model")
    began_with = model.network_.encoder.backbone[1].weight
    model.partial_fit(X2, Y2)
    file.unlink()
    for part in ("once", "twice"):  # what was read is written again
        read = load(tmp_path / "model").partial_fit(X2, Y2)
        torch.testing.assert_close(read.network_.encoder.backbone[1].weight, began_with)
        np.testing.assert_array_equal(read.decision_function(X), model.decision_function(X), part)
        load(tmp_path / "model").save(tmp_path / "model")


def test_weights_to_begin_with_that_do_not_fit_are_refused(tmp_path):
    model = quick(JointClassifier).fit(X, Y)
    model.start_ = {"0.weight": torch.zeros(2, 2)}
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="weights to begin with are not of the network's"):
        load(tmp_path / "model")


@pytest.mark.parametrize("model", [quick(LwFClassifier, heads="multi"), quick(JointClassifier)])
def test_no_exemplars_where_they_have_no_use(model):
    with pytest.raises(ValueError, match="memory_per_class=5 has no use here"):
        model.set_params(memory_per_class=5).fit(X, Y)
