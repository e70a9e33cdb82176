import numpy as np
import pytest
import torch
from torch import nn

from lmrc import LMRCClassifier, load
from lmrc.nets.network import Encoder, Frozen, Network
from lmrc.training.batches import MiniBatch
from lmrc.training.class_weight import class_weights
from lmrc.training.objective import Objective


class Method:
    """One whose losses are ones, and which notes its mini-batches."""

    needs_old_outputs = needs_features = False

    def __init__(self):
        self.seen = []

    def losses(self, outputs, old_outputs, batch):
        self.seen.append(batch)
        return {"new": torch.ones(len(batch.y)), "mean": torch.tensor(2.0)}

    def penalty(self, network, old_network):
        return {"held": torch.tensor(3.0)}


def terms_of(method, weights, y, **more):
    network = Network(Encoder(nn.Identity(), torch.zeros(1), torch.ones(1)), nn.Linear(1, 2))
    objective = Objective(method, network, Frozen(network), weights)
    return objective(MiniBatch(torch.zeros(len(y), 1), y, torch.bincount(y), **more))


def test_terms_per_sample_are_weighted_and_scalars_are_not():
    y = torch.tensor([0, 0, 0, 1])
    terms = terms_of(Method(), class_weights("balanced", y, [0, 1]), y)
    assert torch.allclose(terms["new"], torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0]))
    assert (terms["mean"], terms["held"]) == (2, 3)


def test_with_cutmix_a_sample_weighs_as_both_its_classes():
    weights, y = torch.tensor([1.0, 2.0]), torch.tensor([0, 0, 0, 1])
    terms = terms_of(Method(), weights, y, lam=torch.full((4,), 0.75))
    expected = 0.75 * weights[y] + 0.25 * weights[y.flip(0)]
    torch.testing.assert_close(terms["new"], expected)


def test_a_class_that_counts_more_counts_as_more_samples():
    method, y = Method(), torch.tensor([0, 0, 0, 1])
    terms_of(method, torch.tensor([1.0, 3.0]), y)
    assert method.seen[0].counts.tolist() == [3, 3]


def test_a_rare_class_is_found_more_often():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [300, 6])
    X = (rng.normal(size=(306, 5)) + 1.2 * y[:, None]).astype(np.float32)
    rare = (rng.normal(size=(200, 5)) + 1.2).astype(np.float32)

    def found(class_weight):
        model = LMRCClassifier(epochs=10, class_weight=class_weight, random_state=0).fit(X, y)
        return (model.predict(rare) == 1).mean()

    assert found("balanced") > found(None) + 0.2


def test_weights_by_label_are_in_the_model_file(tmp_path):
    X, y = np.zeros((4, 2), np.float32), np.array([7, 7, 9, 9])
    LMRCClassifier(epochs=1, class_weight={7: 2.0}).fit(X, y).save(tmp_path / "m")
    assert load(tmp_path / "m").class_weight == {7: 2.0}


@pytest.mark.parametrize(
    ("weights", "labels", "problem"),
    [
        ({"0": 5}, [0, 1], r"names '0', but the classes are 0, 1: write it as a number"),
        ({0: 2, "1": 5}, [0, 1], r"names '1', but the classes are 0, 1"),
        ({7: 5}, ["7", "9"], r"names 7, but the classes are '7', '9': write it as text"),
        ({"catt": 5}, ["cat", "dog"], r"none of the classes .* names 'catt', and the classes are"),
    ],
)
def test_weights_that_would_be_passed_over_are_refused(weights, labels, problem):
    X, y = np.zeros((4, 2), np.float32), np.repeat(labels, 2)
    model = LMRCClassifier(epochs=1, class_weight=weights)
    with pytest.raises(ValueError, match=problem):
        model.fit(X, y)
    assert not hasattr(model, "classes_")


@pytest.mark.parametrize("weights", [{}, {0: 2, 9: 5}, {np.int64(1): 2}, {5: 2, 1: 3}])
def test_weights_may_be_of_some_classes_and_of_classes_yet_to_come(weights):
    X, y = np.zeros((4, 2), np.float32), np.array([0, 0, 1, 1])
    model = LMRCClassifier(epochs=1, class_weight=weights, random_state=0).fit(X, y)
    model.partial_fit(X, y + 8)  # of the classes named, some may be old ones alone
    assert model.classes_.tolist() == [0, 1, 8, 9]
