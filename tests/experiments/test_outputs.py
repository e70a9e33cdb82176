import numpy as np
import pytest

from lmrc import FineTuneClassifier, LMRCPlusClassifier
from lmrc.data.dataset import Dataset
from lmrc.data.stream import ClassStream
from lmrc.experiments.outputs import mean_outputs
from lmrc.methods.lwf import LwFClassifier
from lmrc.statistics import classifiers


@pytest.fixture
def stream():
    """Classes 0 to 3, two at a time; sample x is its class."""
    X = np.repeat(np.arange(4.0), 5)[:, None]
    y = np.repeat(np.arange(4), 5)
    return ClassStream(Dataset("four", X, y, X, y), tasks=2)


class Fixed:
    """Answers e^(the class) to one at the position of its own class, in another column order."""

    classes_ = np.array([3, 1, 0, 2])

    def decision_function(self, X):
        return np.where(self.classes_ == X, X, 0.0)


class Similar(Fixed):
    def similarities(self, X):
        return np.where(self.classes_ == X, 0.9, -0.1)


def test_logits_become_probabilities_in_the_order_of_arrival(stream):
    outputs = mean_outputs(stream, Fixed())
    assert outputs["kind"] == "probability"
    assert outputs["classes"] == [0, 1, 2, 3]
    of_0 = np.full(4, 0.25)
    of_1 = np.array([1, np.e, 1, 1]) / (3 + np.e)
    assert outputs["means"][:2] == [pytest.approx(of_0), pytest.approx(of_1)]
    assert [sum(row) for row in outputs["means"]] == pytest.approx([1] * 4)


def test_similarities_are_left_as_they_are(stream):
    outputs = mean_outputs(stream, Similar())
    assert outputs["kind"] == "similarity"
    own = np.eye(4) * 1.0 - 0.1
    assert outputs["means"] == [pytest.approx(row) for row in own.tolist()]


def test_outputs_of_lmrc_plus_are_cosines_though_it_predicts_by_other_scores(stream, monkeypatch):
    monkeypatch.setattr(classifiers, "STEPS", 20)
    settings = {"rotations": "none", "objective": "cosine", "first_epochs": 20, "batch_size": 4}
    learner = LMRCPlusClassifier(**settings, random_state=0, device="cpu")
    for task in stream:
        learner.partial_fit(task.X_train, task.y_train)
    X = stream.dataset.X_test
    assert learner.similarities(X).max() > 1
    outputs = mean_outputs(stream, learner)
    wta = learner.similarities_by_rule(X)["wta"]
    assert outputs["means"][0] == pytest.approx(wta[:5].mean(axis=0).tolist(), abs=1e-6)
    assert np.abs(outputs["means"]).max() <= 1


@pytest.mark.parametrize("classifier", [FineTuneClassifier, LwFClassifier])
def test_outputs_of_a_softmax_sum_to_one_and_agree_with_predict(stream, classifier):
    learner = classifier(epochs=20, batch_size=4, random_state=0, device="cpu")
    for task in stream:
        learner.partial_fit(task.X_train, task.y_train)
    outputs = mean_outputs(stream, learner)["means"]
    assert [sum(row) for row in outputs] == pytest.approx([1] * 4)
    # Softmax suppression itself: even old samples raise the new classes. A softmax over
    # probabilities (rather than logits) could not exceed e / (e + 3) ≈ 0.475 at one position.
    assert max(outputs[0][2:] + outputs[1][2:]) > 0.6


def test_outputs_of_one_softmax_per_head_sum_to_one_in_each(stream):
    learner = LwFClassifier(heads="multi", epochs=2, batch_size=4, random_state=0, device="cpu")
    for task in stream:
        learner.partial_fit(task.X_train, task.y_train)
    outputs = mean_outputs(stream, learner)
    assert outputs["kind"] == "probability within a head"
    sums = [sum(half) for row in outputs["means"] for half in (row[:2], row[2:])]
    assert sums == pytest.approx([1] * 8)


def test_a_learner_without_outputs_is_named(stream):
    class Mute:
        classes_ = np.arange(4)

    with pytest.raises(ValueError, match="Mute has neither similarities"):
        mean_outputs(stream, Mute())
    with pytest.raises(ValueError, match="object has no classes_"):
        mean_outputs(stream, object())
