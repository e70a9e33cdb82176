import numpy as np
import pytest
import torch
from sklearn.base import clone

from lmrc import FineTuneClassifier, JointClassifier, LMRCClassifier, LwFClassifier, load
from lmrc.checks import blobs
from lmrc.methods.exemplars import herding

QUICK = {"backbone": "mlp", "epochs": 2, "random_state": 0, "device": "cpu"}


def taught(n_tasks, cls=FineTuneClassifier, **settings):
    model = cls(**QUICK, **settings)
    for X, y in blobs()[:n_tasks]:
        model.partial_fit(X, y)
    return model


def counts(model):
    return torch.bincount(model.memory_.y, minlength=len(model.classes_)).tolist()


def nearest_step_by_step(features, n):
    """iCaRL's Algorithm 4, word for word."""
    features = features / np.linalg.norm(features, axis=1, keepdims=True)
    chosen = []
    for k in range(1, n + 1):
        rest = [i for i in range(len(features)) if i not in chosen]
        far = [
            np.linalg.norm(features.mean(0) - (features[i] + features[chosen].sum(0)) / k)
            for i in rest
        ]
        chosen.append(rest[int(np.argmin(far))])
    return chosen


def test_herding_is_that_of_icarl():
    features = np.random.default_rng(0).normal(1, 1, (30, 5))
    assert herding(torch.from_numpy(features), 9).tolist() == nearest_step_by_step(features, 9)
    assert sorted(herding(torch.from_numpy(features), 99).tolist()) == list(range(30))


def test_exemplars_are_herded_by_the_features_of_the_network_that_has_learnt_them():
    model = taught(1, memory_per_class=4, exemplars="herding")
    X, y = blobs()[0]
    x = torch.from_numpy(X.astype(np.float32))
    for index, label in enumerate(model.classes_):
        rows = np.flatnonzero(y == label)
        with torch.no_grad():
            features = model.network_.encoder(x[rows]).double().numpy()
        wanted = x[rows[nearest_step_by_step(features, 4)]]
        assert torch.equal(model.memory_.x[model.memory_.y == index], wanted)


@pytest.mark.parametrize("exemplars", ["random", "herding"])
def test_a_total_is_shared_by_the_classes_and_the_best_stay(exemplars, tmp_path):
    one, three = (taught(n, memory_total=20, exemplars=exemplars) for n in (1, 3))
    assert (counts(one), counts(three)) == ([10, 10], [3] * 6)
    for index in range(2):
        first = one.memory_.x[one.memory_.y == index][:3]
        assert torch.equal(three.memory_.x[three.memory_.y == index], first)
    one.save(tmp_path / "m")
    assert counts(load(tmp_path / "m").partial_fit(*blobs()[1])) == [5] * 4
    one.set_params(memory_total=6).save(tmp_path / "m")
    assert counts(load(tmp_path / "m")) == [3, 3]


def test_a_total_without_room_is_refused_before_training():
    model = taught(1, memory_total=3)
    before = model.memory_
    with pytest.raises(ValueError, match=r"memory_total=3 has no room .* each of 4 classes"):
        model.partial_fit(*blobs()[1])
    assert model.memory_ is before


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LMRCClassifier(memory_per_class=2, memory_total=20), "contradict each other"),
        (LMRCClassifier(memory_total=-1), "memory_total=-1"),
        (LMRCClassifier(exemplars="best"), "exemplars='best'"),
        (JointClassifier(memory_per_class=5), "memory_per_class=5 has no use here"),
        (LwFClassifier(heads="multi", memory_total=20), "memory_total=20 has no use here"),
    ],
)
def test_settings_that_cannot_be_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        clone(model).fit(*blobs()[0])


class Last(FineTuneClassifier):
    """Keeps those that came last."""

    def choose_exemplars(self, network, x, y, per_class):
        assert not network.training
        assert per_class == self.exemplars_per_class
        return torch.arange(len(y)).flip(0)


class Twice(FineTuneClassifier):
    def choose_exemplars(self, network, x, y, per_class):
        return [0, 0]


class Beyond(FineTuneClassifier):
    def choose_exemplars(self, network, x, y, per_class):
        return [len(y)]


def test_a_class_of_ones_own_chooses_its_exemplars():
    model = taught(2, Last, memory_per_class=3)
    X, y = blobs()[0]
    kept = model.memory_.x[model.memory_.y == 0]
    wanted = X[y == model.classes_[0]][::-1][:3].astype(np.float32)
    np.testing.assert_array_equal(kept, wanted)
    for wrong in (Twice, Beyond):
        with pytest.raises(ValueError, match="choose_exemplars must return positions of samples"):
            taught(1, wrong, memory_per_class=3)
