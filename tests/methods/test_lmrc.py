"""LMRC against the paper's equations, by hand."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from lmrc import CapacityError, CapacityWarning, LMRCClassifier, load
from lmrc.checks import blobs
from lmrc.nets.multihead import MultiHead
from lmrc.nets.network import Encoder, Frozen, Network
from lmrc.training.batches import MiniBatch
from lmrc.training.memory import Memory
from lmrc.training.objective import Objective


def approx(expected):
    return pytest.approx(expected, abs=1e-5)


def quick(**settings):
    return LMRCClassifier(**{"epochs": 3, "random_state": 0} | settings)


def taught(n_tasks, **settings):
    model = quick(**settings)
    for X, y in blobs()[:n_tasks]:
        model.partial_fit(X, y)
    return model


# --- The losses, on a network whose outputs are known: the input is the feature vector ------------


def network(*heads):
    """A network in R² whose heads respond with x, rotated: each by a (cos, sin)."""
    head = MultiHead(2, 2, n_heads=len(heads))
    for weight, (cos, sin) in zip(head.weight.data, heads, strict=True):
        weight.copy_(torch.tensor([[cos, -sin], [sin, cos]]))
    return Network(Encoder(nn.Identity(), torch.zeros(2), torch.ones(2)), head)


VECTORS = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
STRAIGHT, A_BIT_LEFT, MORE_LEFT, BACK = (1, 0), (0.8, 0.6), (0.6, 0.8), (-1, 0)
EAST = torch.tensor([[3.0, 0.0]])  # a head responds with its own rotation; length does not matter


def learning(model, trained, buffer=()):
    """The model as it is while it learns, with samples of these classes in its exemplar buffer."""
    model.heads_ = [np.array([i]) for i in range(len(trained.head))]
    model.labels_ = {"vectors": VECTORS}
    model.memory_ = Memory(torch.zeros(len(buffer), 2), torch.tensor(buffer)) if buffer else None
    return model


def objective(model, trained, frozen):
    return Objective(model, trained, None if frozen is None else Frozen(frozen))


def mini_batch(x, y, frozen):
    """One of a task after so many heads of a class each."""
    y, n_known = torch.tensor(y), 0 if frozen is None else len(frozen.head)
    return MiniBatch(x, y, torch.ones(3), n_known, bool((y < n_known).any()))


def terms(model, trained, frozen, x=EAST, y=(1,), buffer=()):
    learning(model, trained, buffer)
    found = objective(model, trained, frozen)(mini_batch(x, y, frozen))
    return {name: term.tolist() for name, term in found.items()}


def test_first_batch_has_the_new_classes_loss_alone():
    assert terms(quick(), network(MORE_LEFT), None) == {"new": approx([-0.8])}  # Eq. 1


def test_response_loss_compares_each_old_head_with_its_frozen_self():
    trained = network(MORE_LEFT, STRAIGHT, A_BIT_LEFT)  # the last head is the new one
    frozen = network(A_BIT_LEFT, BACK)
    got = terms(quick(response_weight=5.0), trained, frozen, y=(2,))
    # Eq. 1: the new head's (0.8, 0.6) against the label vector (-1, 0).
    # Eq. 7: (0.6, 0.8)·(0.8, 0.6) = 0.96 and (1, 0)·(-1, 0) = -1.
    assert got == {"new": approx([0.8]), "response": approx([-5 * (0.96 - 1)])}


def test_total_is_equation_8():
    trained, frozen = network(MORE_LEFT, A_BIT_LEFT), network(A_BIT_LEFT)
    batch = mini_batch(EAST.repeat(2, 1), [1, 2], frozen)
    model = learning(quick(response_weight=2.0), trained)
    loss = sum(map(torch.mean, objective(model, trained, frozen)(batch).values()))
    assert loss.item() == approx(-((0.6 - 0.8) / 2 + 2 * 0.96))


def test_lm_is_without_response_loss():
    got = terms(quick(response_weight=0.0), network(MORE_LEFT, A_BIT_LEFT), network(STRAIGHT))
    assert got == {"new": approx([-0.6])}


def test_with_exemplars_every_head_learns_every_class():
    trained, frozen = network(MORE_LEFT, STRAIGHT, A_BIT_LEFT), network(A_BIT_LEFT, BACK)
    got = terms(quick(), trained, frozen, EAST.repeat(2, 1), (0, 2), buffer=(0, 1))
    assert got["new"] == approx([-0.8, 0.8])
    assert got["review"] == approx([-(0.6 + 1), 0.6 + 1])  # Eq. 9
    assert got["response"] == approx([-(0.96 - 1)] * 2)  # Eq. 10: over all samples


def test_without_exemplars_only_known_classes_are_reviewed():
    trained, frozen = network(MORE_LEFT, STRAIGHT, A_BIT_LEFT), network(A_BIT_LEFT, BACK)
    got = terms(quick(), trained, frozen, EAST.repeat(2, 1), (0, 2))
    assert got["new"] == approx([-0.8, 0.8])
    assert got["review"] == approx([-(0.6 + 1), 0])


def test_a_batch_without_new_classes_has_no_new_classes_loss():
    trained, frozen = network(MORE_LEFT, A_BIT_LEFT), network(MORE_LEFT, A_BIT_LEFT)
    got = terms(quick(), trained, frozen, EAST, (1,))
    assert got == {"review": approx([-(0.8 + 0.6)]), "response": approx([-2])}


def test_the_winner_takes_all():
    model = quick()
    model.heads_ = [np.array([0, 1]), np.array([2])]
    model.labels_ = {"vectors": VECTORS}
    # Eq. 2: head 1 responds (0.6, 0.8) has the classes (1, 0) and (0, 1); head 2 responds (-1, 0).
    got = model.scores(network(MORE_LEFT, BACK), EAST)
    torch.testing.assert_close(got, torch.tensor([[0.6, 0.8, 1.0]]))


def test_scores_of_uneven_heads_are_each_heads_own():
    sizes = [2, 2, 1, 3, 3]
    torch.manual_seed(0)
    head = MultiHead(4, 6)
    for _ in sizes:
        head.add_head()
    vectors = nn.functional.normalize(torch.randn(sum(sizes), 6))
    net = Network(Encoder(nn.Identity(), torch.zeros(4), torch.ones(4)), head)
    model = quick()
    model.labels_, model.heads_ = {"vectors": vectors}, [np.zeros(size) for size in sizes]
    x = torch.randn(7, 4)
    head_of = np.repeat(np.arange(5), sizes)
    one_by_one = [net(x)[:, h] @ c for h, c in zip(head_of, vectors, strict=True)]
    torch.testing.assert_close(model.scores(net, x), torch.stack(one_by_one, dim=1))


# --- Where gradients flow -------------------------------------------------------------------------


def gradients(model, jolt=0.0):
    """Gradients of one step of the second task, by name, heads apart.

    A jolt takes the old head off its old responses, where the Response Loss is at its best.
    """
    frozen = model.network_
    trained = copy.deepcopy(frozen).train()
    trained.head.add_head()
    with torch.no_grad():
        trained.head.weight[0] += jolt * torch.randn_like(trained.head.weight[0])
    model.heads_ = [*model.heads_, np.array([8, 9])]
    model.labels_ = {"vectors": torch.cat([model.labels_["vectors"], torch.eye(100)[:2]])}
    X, _ = blobs()[1]
    x = torch.from_numpy(X).float()
    batch = MiniBatch(x, torch.full((len(x),), 3), torch.ones(4), 2)
    sum(map(torch.mean, objective(model, trained, frozen)(batch).values())).backward()
    assert all(p.grad is None for p in frozen.parameters())
    first = trained.encoder.backbone[1].weight.grad
    old, new = trained.head.weight.grad
    return {"backbone": first.norm().item(), "old": old.norm().item(), "new": new.norm().item()}


def test_gradients_reach_backbone_old_heads_and_new_head():
    assert all(norm > 1e-4 for norm in gradients(taught(1), jolt=0.1).values())


def test_lm_leaves_old_heads_alone():
    norms = gradients(taught(1, response_weight=0.0))
    assert norms["old"] == 0
    assert norms["new"] > 0 < norms["backbone"]


def test_response_loss_is_at_its_best_where_nothing_has_moved():
    norms = gradients(taught(1, response_weight=1.0))
    assert norms["old"] < 1e-6 < norms["new"]


def test_a_later_batch_changes_the_backbone_but_not_label_vectors_nor_the_frozen_copy():
    model = taught(1)
    before = model.network_
    weights = copy.deepcopy(before.state_dict())
    vectors = model.label_vectors_
    model.partial_fit(*blobs()[1])
    assert model.network_ is not before
    for name, tensor in before.state_dict().items():
        assert torch.equal(tensor, weights[name]), f"the frozen copy's {name} moved"
    moved = model.network_.encoder.backbone[1].weight - before.encoder.backbone[1].weight
    assert moved.norm() > 1e-3
    np.testing.assert_array_equal(model.label_vectors_[:2], vectors)


def test_the_frozen_copy_is_in_evaluation_mode_and_the_network_in_training_mode():
    modes = []

    class Watched(LMRCClassifier):
        def penalty(self, network, old_network):
            modes.append((network.training, old_network.training))
            return super().penalty(network, old_network)

    backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
    model = Watched(backbone=backbone, epochs=1, random_state=0).partial_fit(*blobs()[0])
    statistics = model.network_.encoder.backbone[1].running_mean.clone()
    before = model.network_
    model.partial_fit(*blobs()[1])
    assert modes == [(True, False)]
    assert torch.equal(before.encoder.backbone[1].running_mean, statistics)
    assert not before.training
    assert not model.network_.training


# --- What it does -------------------------------------------------------------------------------


def test_consolidation_keeps_old_responses():
    """On the new data the old head moves less with the Response Loss than without."""
    X_new, y_new = blobs()[1]
    moved = {}
    for weight in (0.0, 1.0):
        model = taught(1, response_weight=weight, epochs=20)
        before = model.similarities(X_new)
        after = model.partial_fit(X_new, y_new).similarities(X_new)[:, :2]
        moved[weight] = np.abs(after - before).mean()
    assert moved[1.0] < 0.5 * moved[0.0]


def test_learns_small_tables_with_its_defaults():
    X, y = (np.concatenate(part) for part in zip(*blobs(30), strict=True))
    test_X, test_y = (np.concatenate(part) for part in zip(*blobs(30, seed=1), strict=True))
    assert LMRCClassifier(random_state=0).fit(X, y).score(test_X, test_y) > 0.95


def test_history_holds_loss_terms_as_minimised():
    model = taught(2, response_weight=3.0)
    assert [(r["task"], r["epoch"]) for r in model.history_] == [
        (b, e) for b in (0, 1) for e in range(3)
    ]
    first, last = model.history_[0], model.history_[-1]
    assert first.keys() == {"task", "epoch", "learning_rate", "new", "loss"}
    assert -3 <= last["response"] < -2.5
    assert last["loss"] == approx(last["new"] + last["response"])


def test_exemplars_are_stored_with_rehearsal_alone():
    assert taught(2).memory_ is None
    memory = taught(2, memory_per_class=4).memory_
    assert torch.bincount(memory.y).tolist() == [4, 4, 4, 4]
    known = {tuple(row) for X, _ in blobs()[:2] for row in X.astype(np.float32).tolist()}
    assert {tuple(row) for row in memory.x.tolist()} <= known


def test_rehearsal_remembers_more():
    X, y = (np.concatenate(part) for part in zip(*blobs(seed=1), strict=True))
    assert taught(3, memory_per_class=5, epochs=30).score(X, y) > taught(3, epochs=30).score(X, y)


def with_buffers(*memory):
    """Tasks, each learnt with an exemplar buffer of its own size."""
    model = quick(epochs=30)
    for per_class, (X, y) in zip(memory, blobs(), strict=True):
        model.set_params(memory_per_class=per_class).partial_fit(X, y)
    return model


def test_an_exemplar_buffer_that_begins_later_costs_no_class_that_it_lacks():
    later, never = with_buffers(0, 0, 5), with_buffers(0, 0, 0)
    for X, _ in blobs(seed=1)[:2]:
        np.testing.assert_array_equal(later.predict(X), never.predict(X))
    X, y = blobs(seed=1)[0]
    assert with_buffers(0, 5, 5).score(X, y) >= never.score(X, y)


@pytest.mark.parametrize("per_class", [5, 2, 0])
def test_a_model_with_fewer_exemplars_continues_as_the_saved_one(tmp_path, per_class):
    model = taught(2, memory_per_class=5).set_params(memory_per_class=per_class)
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    for one in (model, loaded):
        one.partial_fit(*blobs()[2])
    X = blobs(seed=1)[0][0]
    np.testing.assert_array_equal(loaded.similarities(X), model.similarities(X))
    assert len(loaded.memory_ or ()) == len(model.memory_ or ()) == 6 * per_class


@pytest.mark.parametrize(("per_class", "stored"), [(5, 20), (2, 8), (0, 0)])
def test_no_more_exemplars_are_saved_than_memory_per_class_says_now(tmp_path, per_class, stored):
    model = taught(2, memory_per_class=5)
    samples = [row.numpy().tobytes() for row in model.memory_.x]
    model.set_params(memory_per_class=per_class).save(tmp_path / "m")
    files = b"".join(path.read_bytes() for path in (tmp_path / "m").iterdir())
    assert sum(sample in files for sample in samples) == stored
    assert len(load(tmp_path / "m").memory_ or ()) == stored


def test_label_vectors_are_unit_and_apart():
    vectors = taught(3).label_vectors_.astype(np.float64)
    assert vectors.shape == (6, 100)
    cosines = vectors @ vectors.T
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-6)
    assert (cosines - np.eye(6)).max() <= 0.15 + 1e-6


def test_no_label_vectors_before_the_first_batch():
    with pytest.raises(AttributeError, match="once a task"):
        _ = quick().label_vectors_
    assert not hasattr(quick(), "label_vectors_")


def many_classes(n, first=0):
    y = np.arange(first, first + n)
    return np.random.default_rng(first).standard_normal((n, 8)), y


def test_a_full_mapping_is_relaxed_with_a_warning():
    model = quick(label_dim=5, epochs=1, max_tries=200)
    with pytest.warns(CapacityWarning, match="threshold") as caught:
        model.partial_fit(*many_classes(30))
    assert caught[0].filename == __file__, "it points at the user's line"
    assert "label_dim" in str(caught[0].message)
    assert model.threshold_ > model.threshold == 0.15
    cosines = model.label_vectors_.astype(np.float64) @ model.label_vectors_.T
    assert np.triu(cosines, 1).max() <= model.threshold_ + 1e-6
    relaxed = model.threshold_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CapacityWarning)
        model.partial_fit(*many_classes(2, first=30))
    assert model.threshold_ >= relaxed, "what was relaxed stays relaxed"


def test_a_relaxed_threshold_stays_in_force(monkeypatch):
    import lmrc.methods.lmrc as module

    model = quick().partial_fit(*blobs()[0])
    model.threshold_ = 0.3
    used = []

    class Spied(module.LabelMapping):
        def __init__(self, dim, threshold, *args, **kwargs):
            used.append(threshold)
            super().__init__(dim, threshold, *args, **kwargs)

    monkeypatch.setattr(module, "LabelMapping", Spied)
    model.partial_fit(*blobs()[1])
    assert used == [0.3]


def test_a_full_mapping_can_be_an_error_that_changes_nothing():
    model = quick(label_dim=5, on_full="raise", max_tries=200, epochs=1).partial_fit(
        *many_classes(2)
    )
    with pytest.raises(CapacityError, match="30"):
        model.partial_fit(*many_classes(30, first=2))
    assert len(model.classes_) == len(model.label_vectors_) == 2


def test_it_warns_once_when_nearly_full():
    model = quick(epochs=1)  # about 104 label vectors fit, the mark is at 84
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(*many_classes(83))
    said = r"84 label vectors of about 104 .* are in use"
    with pytest.warns(CapacityWarning, match=said) as caught:
        model.partial_fit(*many_classes(1, first=83))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(*many_classes(1, first=84))
