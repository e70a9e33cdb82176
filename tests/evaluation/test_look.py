"""One look at the test samples is enough, and says what several would."""

import numpy as np
import pytest
from sklearn.base import clone

from lmrc import FineTuneClassifier, LMRCClassifier, LMRCPlusClassifier
from lmrc.data.datasets import load_dataset
from lmrc.data.stream import ClassStream
from lmrc.evaluation.look import look
from lmrc.evaluation.run import evaluate, evaluate_readouts
from lmrc.methods import prediction
from lmrc.methods.lwf import LwFClassifier
from lmrc.statistics import prediction_rules

SETTINGS = {"epochs": 1, "batch_size": 16, "random_state": 0, "device": "cpu", "backbone": "mlp"}
VECTORS = SETTINGS | {"rotations": "none", "first_epochs": 1}


class OwnPlus(LMRCPlusClassifier):
    """Of a class of one's own nothing is taken for granted: it is asked for everything."""


@pytest.fixture
def stream(monkeypatch):
    """Three tasks; of the first, there are two classes."""
    monkeypatch.setattr(prediction_rules, "STEPS", 5)
    return ClassStream(load_dataset("digits", limit=12).as_vectors(), [[0, 1], [2, 3, 4], [5, 6]])


@pytest.fixture
def looks(monkeypatch):
    """The number of samples of each look."""
    seen = []

    def read_parts(model, X, read=prediction.read_parts):
        seen.append(len(X))
        return read(model, X)

    monkeypatch.setattr(prediction, "read_parts", read_parts)
    return seen


def measured(records):
    """What was measured, but for the time that it took."""
    return [
        ({k: v for k, v in record.to_dict().items() if not k.endswith("_seconds")}, readouts)
        for record, readouts in records
    ]


@pytest.mark.parametrize(
    "learner",
    [
        LMRCPlusClassifier(**VECTORS),
        LMRCPlusClassifier(**VECTORS, predict_with="lda"),
        LMRCClassifier(**SETTINGS),
        FineTuneClassifier(**SETTINGS),
        LwFClassifier(**SETTINGS, heads="multi"),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_test_samples_are_looked_at_once(learner, stream, looks):
    learner = clone(learner)  # those of the list are shared
    found = list(evaluate_readouts(stream, learner))
    assert looks == [len(stream.test_up_to(i)[1]) for i in range(3)]
    record, readouts = found[-1]
    X, y = stream.test_up_to(2)
    assert record.accuracy == np.mean(learner.predict(X) == y)
    if isinstance(learner, LMRCPlusClassifier):
        assert readouts[learner.predict_with]["accuracy"] == record.accuracy
    else:
        assert readouts == {}


def test_one_look_gives_the_records_of_several(stream, looks):
    in_one = measured(evaluate_readouts(stream, LMRCPlusClassifier(**VECTORS)))
    several = measured(evaluate_readouts(stream, OwnPlus(**VECTORS)))
    assert in_one == several
    assert [list(readouts) for _, readouts in in_one] == [[*prediction_rules.RULES]] * 3
    assert len(looks) == 3 + 3 * 3
    plain = [(record, {}) for record in evaluate(stream, LMRCPlusClassifier(**VECTORS))]
    assert measured(plain) == [(record, {}) for record, _ in in_one]


def test_a_class_of_ones_own_predicts_as_it_says(stream):
    class Always(LMRCClassifier):
        def predict(self, X):
            return np.full(len(X), 1)

    for record in evaluate(stream, Always(**SETTINGS)):
        assert record.per_class[1] == 1
        assert sum(record.per_class.values()) == 1


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
    found = look(learner, np.zeros((2, 1)), 7)
    assert found.top5.tolist() == [[6, 5, 4, 3, 2]] * 2
