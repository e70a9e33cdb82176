"""One forward pass over the test samples is enough, and gives what several would."""

import numpy as np
import pytest
from sklearn.base import clone

from lmrc import FineTuneClassifier, LMRCClassifier, LMRCPlusClassifier
from lmrc.data.datasets import load_dataset
from lmrc.data.stream import ClassStream
from lmrc.evaluation.outputs import compute_outputs
from lmrc.evaluation.run import evaluate, evaluate_rules
from lmrc.methods import prediction
from lmrc.methods.lwf import LwFClassifier
from lmrc.statistics.prediction_rules import RULES

SETTINGS = {"epochs": 1, "batch_size": 16, "random_state": 0, "device": "cpu", "backbone": "mlp"}
VECTORS = SETTINGS | {"rotations": "none", "first_epochs": 1}


class Inheriting(LMRCPlusClassifier):
    """Overrides nothing: it predicts as its base class does."""


class Overriding(LMRCPlusClassifier):
    """Overrides `predict`, and does not say that it is still the argmax: each method is called."""

    def predict(self, X):
        return super().predict(X)


@pytest.fixture
def stream():
    """Three tasks; of the first, there are two classes."""
    return ClassStream(load_dataset("digits", limit=12).as_vectors(), [[0, 1], [2, 3, 4], [5, 6]])


@pytest.fixture
def passes(monkeypatch):
    """The number of samples of each forward pass."""
    seen = []

    def read_parts(model, X, read=prediction.read_parts):
        seen.append(len(X))
        return read(model, X)

    monkeypatch.setattr(prediction, "read_parts", read_parts)
    return seen


def measured(records):
    """What was measured, but for the time that it took."""
    return [
        ({k: v for k, v in record.to_dict().items() if not k.endswith("_seconds")}, rules)
        for record, rules in records
    ]


@pytest.mark.parametrize(
    "learner",
    [
        LMRCPlusClassifier(**VECTORS),
        LMRCPlusClassifier(**VECTORS, predict_with="lda"),
        Inheriting(**VECTORS),
        LMRCClassifier(**SETTINGS),
        FineTuneClassifier(**SETTINGS),
        LwFClassifier(**SETTINGS, heads="multi"),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_one_forward_pass_over_the_test_samples(learner, stream, passes):
    learner = clone(learner)  # those of the list are shared
    found = list(evaluate_rules(stream, learner))
    assert passes == [len(stream.test_up_to(i)[1]) for i in range(3)]
    record, rules = found[-1]
    X, y = stream.test_up_to(2)
    assert record.accuracy == np.mean(learner.predict(X) == y)
    if isinstance(learner, LMRCPlusClassifier):
        assert rules[learner.prediction_rule_]["accuracy"] == record.accuracy
    else:
        assert rules == {}


def test_one_forward_pass_gives_the_records_of_several(stream, passes):
    in_one = measured(evaluate_rules(stream, LMRCPlusClassifier(**VECTORS)))
    several = measured(evaluate_rules(stream, Overriding(**VECTORS)))
    assert in_one == several
    usual = [rule for rule in RULES if rule not in ("snapshots", "ridge")]
    assert [list(rules) for _, rules in in_one] == [usual] * 3
    assert len(passes) == 3 + 3 * 3
    plain = [(record, {}) for record in evaluate(stream, LMRCPlusClassifier(**VECTORS))]
    assert measured(plain) == [(record, {}) for record, _ in in_one]


def test_a_subclass_may_override_predict(stream):
    class Always(LMRCClassifier):
        def predict(self, X):
            return np.full(len(X), 1)

    for record in evaluate(stream, Always(**SETTINGS)):
        assert record.per_class[1] == 1
        assert sum(record.per_class.values()) == 1


@pytest.mark.parametrize(
    ("base", "name"), [(LMRCClassifier, "similarities"), (LMRCPlusClassifier, "scores")]
)
def test_a_subclass_may_override_its_scores(base, name, stream):
    """Labels are those of `predict`, whether or not it goes by the overridden scores."""

    def negated(self, *args):
        return -getattr(super(cls, self), name)(*args)

    cls = type("Negated", (base,), {name: negated})
    learner = cls(**(VECTORS if base is LMRCPlusClassifier else SETTINGS))
    *_, (record, _) = evaluate_rules(stream, learner)
    X, y = stream.test_up_to(2)
    assert record.accuracy == np.mean(learner.predict(X) == y)


@pytest.mark.parametrize("says", [True, False])
def test_a_learner_may_say_that_predict_is_argmax(says):
    learner = Ranked()
    learner.predict_is_argmax = says
    learner.predict = lambda X: np.full(len(X), 0)
    assert compute_outputs(learner, np.zeros((2, 1)), 7).predicted.tolist() == [6 * says] * 2


class Ranked:
    """Scores its seven classes the same for all samples: the last is the likeliest."""

    classes_ = np.arange(7)

    def predict(self, X):
        return np.full(len(X), 6)

    def decision_function(self, X):
        return np.tile([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4], (len(X), 1))


class Named:
    """The same, with the likeliest classes in place of scores."""

    predict = Ranked.predict

    def predict_topk(self, X, k):
        return np.tile(np.arange(6, 6 - k, -1), (len(X), 1))


@pytest.mark.parametrize("learner", [Ranked(), Named()], ids=lambda learner: type(learner).__name__)
def test_the_five_likeliest_classes_are_five(learner):
    outputs = compute_outputs(learner, np.zeros((2, 1)), 7)
    assert outputs.top5.tolist() == [[6, 5, 4, 3, 2]] * 2
