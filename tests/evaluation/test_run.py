import inspect
import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import GaussianNB

from lmrc import LMRCClassifier, load_dataset
from lmrc.data.datasets import Dataset, digits
from lmrc.data.stream import ClassStream
from lmrc.evaluation.run import TaskRecord, evaluate, summarize


class NearestMean:
    """Remembers one mean per class; knows nothing but partial_fit and predict."""

    def __init__(self):
        self.means = {}

    def partial_fit(self, X, y):
        for label in np.unique(y):
            self.means[label] = X[y == label].mean(axis=0)
        return self

    def _closeness(self, X):
        means = np.array(list(self.means.values()))
        return -((X[:, None] - means) ** 2).sum(axis=2)

    def predict(self, X):
        return np.array(list(self.means))[self._closeness(X).argmax(axis=1)]


class ScoringNearestMean(NearestMean):
    """The same with our classifiers' extras: classes in order of arrival, and similarities."""

    @property
    def classes_(self):
        return np.array(list(self.means))

    def similarities(self, X):
        return self._closeness(X).astype(np.float32)

    def decision_function(self, X):
        scores = self.similarities(X)
        return scores[:, 1] - scores[:, 0] if len(self.means) == 2 else scores


class Script:
    """Predicts each test sample, a vector that holds its number, from a table."""

    def __init__(self, predictions):
        self.predictions = np.array(predictions)
        self.calls = []

    def partial_fit(self, X, y, classes=None):
        self.calls.append((y.tolist(), None if classes is None else classes.tolist()))

    def predict(self, X):
        return self.predictions[X[:, 0].astype(int)]


@pytest.fixture(scope="module")
def vectors():
    return digits().as_vectors()


@pytest.fixture(scope="module")
def six():
    """Six test samples, numbered 0 to 5: classes a a b (first task) and c c d (second)."""
    return Dataset(
        "six",
        np.zeros((4, 1)),
        list("abcd"),
        np.arange(6.0)[:, None],
        list("aabccd"),
    )


def two_tasks(six):
    return ClassStream(six, [["a", "b"], ["c", "d"]])


def test_a_record_by_hand(six):
    # true:             a    a    b    c    c    d
    learner = Script(["a", "b", "c", "c", "d", "a"])
    first, second = evaluate(two_tasks(six), learner)

    assert (first.task, first.classes, first.n_classes_seen) == (0, ["a", "b"], 2)
    assert first.accuracy == first.new_accuracy == pytest.approx(1 / 3)
    assert first.old_accuracy is None
    assert first.task_accuracies == pytest.approx([1 / 3])
    assert first.task_confusion == [[2, 1], [0, 0]]  # "b" was taken for "c", not yet seen
    assert first.per_class == {"a": 0.5, "b": 0.0}

    assert (second.task, second.classes, second.n_classes_seen) == (1, ["c", "d"], 4)
    assert second.accuracy == pytest.approx(2 / 6)
    assert second.task_accuracies == pytest.approx([1 / 3, 1 / 3])
    assert second.old_accuracy == second.new_accuracy == pytest.approx(1 / 3)
    assert second.task_id_accuracy == pytest.approx(4 / 6)
    assert second.task_confusion == [[2, 1], [1, 2]]
    assert second.per_class == {"a": 0.5, "b": 0.0, "c": 0.5, "d": 0.0}
    assert second.top5 is None
    assert second.task_aware_accuracy is None


def test_old_accuracy_weighs_samples_and_new_is_the_last_batch(six):
    stream = ClassStream(six, [["a"], ["b"], ["c", "d"]])
    *_, last = evaluate(stream, Script(["a", "a", "a", "c", "a", "a"]))
    assert last.task_accuracies == pytest.approx([1, 0, 1 / 3])
    assert last.old_accuracy == pytest.approx(2 / 3)  # two of three samples, not half the tasks
    assert last.new_accuracy == pytest.approx(1 / 3)


def test_each_batch_is_taught_once_in_order_and_alone(six):
    learner = Script(["a"] * 6)
    list(evaluate(two_tasks(six), learner))
    assert learner.calls == [(["a", "b"], None), (["c", "d"], None)]


def test_classes_are_announced_at_the_first_batch_only(six):
    learner = Script(["a"] * 6)
    list(evaluate(ClassStream(six, [["d", "c"], ["b"]]), learner, announce_classes=True))
    assert learner.calls == [(["c", "d"], ["b", "c", "d"]), (["b"], None)]


def test_it_is_a_generator_that_learns_only_as_far_as_iterated(six):
    learner = Script(["a"] * 6)
    records = evaluate(two_tasks(six), learner)
    assert inspect.isgenerator(records)
    assert learner.calls == []
    next(records)
    assert len(learner.calls) == 1


def test_predicted_labels_outside_the_stream_are_wrong_but_no_error(six):
    *_, last = evaluate(two_tasks(six), Script(["a", "a", "b", "c", "yeti", "yeti"]))
    assert last.accuracy == last.task_id_accuracy == pytest.approx(4 / 6)
    assert last.task_confusion == [[3, 0], [0, 1]]


def test_plain_learner_with_partial_fit_and_predict(vectors):
    records = list(evaluate(ClassStream(vectors, 5, order=3), NearestMean()))
    assert [record.n_classes_seen for record in records] == [2, 4, 6, 8, 10]
    assert records[-1].accuracy > 0.85
    assert records[-1].top5 is None
    assert sum(map(sum, records[-1].task_confusion)) == len(vectors.y_test)


def test_scores_are_read_by_classes_in_order_of_arrival(vectors):
    stream = ClassStream(vectors, 5, order=3)
    for record in evaluate(stream, ScoringNearestMean()):
        # Means never move, so a head is right at least as often as all heads together.
        assert record.task_aware_accuracy >= record.accuracy > 0.85
        assert record.task_aware_accuracy > 0.95
        assert record.top5 >= record.accuracy
    assert record.top5 < 1
    assert next(evaluate(stream, ScoringNearestMean())).top5 == 1.0  # two classes, five guesses


@pytest.mark.parametrize(
    ("classes", "scores", "right"),
    [
        ("da", [1.0, -1.0, -1.0], 2 / 3),  # a positive value means "a": right, wrong, right
        ("ad", [-1.0, -2.0, 3.0], 1.0),
    ],
)
def test_two_classes_in_one_column(six, classes, scores, right):
    class Binary(Script):
        classes_ = np.array(list(classes))

        def decision_function(self, X):
            return np.array(scores)

    stream = ClassStream(replace_labels(six, "aad"), [["a", "d"]])
    (record,) = evaluate(stream, Binary(["a"] * 3))
    assert record.accuracy == pytest.approx(2 / 3)  # "a" is predicted
    assert record.task_aware_accuracy == pytest.approx(right)
    assert record.top5 == 1.0


def replace_labels(six, y_test):
    return replace(six, X_test=six.X_test[: len(y_test)], y_test=list(y_test))


def test_scores_that_are_not_by_class_are_not_used(six):
    class OneVersusOne(Script):
        classes_ = np.array(list("abcd"))

        def decision_function(self, X):
            return np.zeros((len(X), 6))

    *_, last = evaluate(two_tasks(six), OneVersusOne(["a"] * 6))
    assert last.top5 is None
    assert last.task_aware_accuracy is None


def test_predict_topk_serves_a_learner_without_scores(six):
    class Guesser(Script):
        def predict_topk(self, X, k):
            self.k = k
            return np.tile(np.array(list("dcba"))[:k], (len(X), 1))

    learner = Guesser(["a"] * 6)
    *_, last = evaluate(ClassStream(six, [["c", "d"], ["b"]]), learner)
    assert learner.k == 3  # never more than there are classes
    assert last.top5 == 1.0
    assert next(evaluate(two_tasks(six), Guesser(["a"] * 6))).top5 == 0.0


def test_recurring_classes_count_in_each_of_their_tasks(six):
    data = Dataset("six", np.zeros((8, 1)), list("abcd") * 2, six.X_test, six.y_test)
    learner = Script(["a"] * 6)  # true: a a b c c d
    records = list(evaluate(ClassStream(data, [["a", "c"], ["d"], ["c"]]), learner))
    assert [r.classes for r in records] == [["a", "c"], ["d"], ["c"]]
    assert [r.n_classes_seen for r in records] == [2, 3, 3]
    last = records[-1]
    assert last.task_accuracies == [1 / 2, 0.0, 0.0]
    assert (last.accuracy, last.old_accuracy, last.new_accuracy) == (2 / 5, 2 / 3, 0.0)
    assert last.task_confusion == [[4, 0, 0], [1, 0, 0], [0, 0, 0]]  # by arrival
    assert summarize(records)["tasks"] == 3
    _, last = evaluate(ClassStream(data, [["a"], ["a", "c"]]), Script(["a"] * 6))
    assert last.old_accuracy is None


def test_a_blurry_stream_is_tested_on_all_classes_that_have_been_seen(vectors):
    stream = ClassStream(vectors, 5, blurry=0.2)
    records = list(evaluate(stream, SGDClassifier(random_state=0), announce_classes=True))
    assert [r.n_classes_seen for r in records] == [10] * 5
    assert records[0].classes == [0, 1]
    assert len(records[0].per_class) == 10
    assert [len(r.task_accuracies) for r in records] == [1, 2, 3, 4, 5]
    plain = list(evaluate(ClassStream(vectors, 5), SGDClassifier(random_state=0), True))
    assert records[-1].accuracy > plain[-1].accuracy + 0.1  # samples of all come with each task


def test_sgd_knows_all_classes_from_the_start(vectors):
    stream = ClassStream(vectors, 5, order=0)
    learner = SGDClassifier(random_state=0)
    records = list(evaluate(stream, learner, announce_classes=True))
    assert learner.classes_.tolist() == list(range(10))
    assert (
        records[-1].accuracy < 0.5 < 0.9 < records[-1].task_aware_accuracy
    )  # it forgets the task only
    assert records[-1].top5 > records[-1].accuracy
    assert summarize(records)["forgetting"] > 0.8


def test_probabilities_of_gaussian_naive_bayes_are_scores(vectors):
    stream = ClassStream(vectors, 5)
    learner = GaussianNB(priors=np.full(10, 0.1), var_smoothing=0.05)
    records = list(evaluate(stream, learner, announce_classes=True))
    assert records[-1].accuracy > 0.8
    X, y = stream.test_up_to(4)
    likeliest = np.argsort(-learner.predict_proba(X), axis=1)[:, :5]
    assert records[-1].top5 == np.mean((likeliest == y[:, None]).any(axis=1)) > 0.9
    assert records[-1].task_aware_accuracy > records[-1].accuracy


def test_a_learner_that_must_be_told_says_so_itself(vectors):
    with pytest.raises(ValueError, match="classes must be passed"):
        next(evaluate(ClassStream(vectors, 5), GaussianNB()))


def test_a_learner_without_partial_fit_is_refused(six):
    with pytest.raises(TypeError, match="has no partial_fit and no predict"):
        next(evaluate(two_tasks(six), object()))


def test_other_objects_than_a_stream_and_a_classifier_are_refused(six):
    with pytest.raises(TypeError, match="not a class: pass GaussianNB"):
        list(evaluate(ClassStream(six, 2), GaussianNB))
    with pytest.raises(TypeError, match="needs a ClassStream first, not a Dataset"):
        list(evaluate(six, GaussianNB()))


def test_a_batch_without_test_samples_is_refused_before_training(six):
    learner = Script(["a"] * 6)
    stream = ClassStream(replace_labels(six, "aab"), [["a", "c"], ["b"], ["d"]])
    with pytest.raises(ValueError, match=r"tasks \[2\] have no test samples"):
        next(evaluate(stream, learner))
    assert learner.calls == []


def test_a_class_without_test_samples_is_missing_from_per_class(six):
    (record,) = evaluate(ClassStream(replace_labels(six, "aab"), 1), Script(["a"] * 3))
    assert set(record.per_class) == {"a", "b"}


def test_a_prediction_of_the_wrong_shape_is_named(six):
    with pytest.raises(ValueError, match=r"array of shape \(3, 2\) for 3 samples"):
        next(evaluate(two_tasks(six), Script([["a", "b"]] * 6)))


def test_seconds_are_of_training_and_of_testing(six, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("lmrc.evaluation.run.perf_counter", lambda: clock[0])

    class Slow(Script):
        def partial_fit(self, X, y):
            clock[0] += 5

        def predict(self, X):
            clock[0] += 2
            return super().predict(X)

    records = list(evaluate(two_tasks(six), Slow(["a"] * 6)))
    assert [(r.train_seconds, r.test_seconds) for r in records] == [(5, 2), (5, 2)]
    summary = summarize(records)
    assert (summary["train_seconds"], summary["test_seconds"]) == (10, 4)


@pytest.mark.parametrize("tasks", [5, [[3, 1], [0, 8]]])
def test_a_record_survives_json_unchanged(vectors, tasks):
    for record in evaluate(ClassStream(vectors, tasks), ScoringNearestMean()):
        plain = record.to_dict()
        assert json.loads(json.dumps(plain)) == plain
        assert plain["per_class"] == {str(k): v for k, v in record.per_class.items()}
        assert all(type(label) is int for label in record.per_class)


def make_record(task, **changes):
    record = TaskRecord(
        task=task,
        classes=[task],
        n_classes_seen=task + 1,
        accuracy=0.5,
        top5=0.8,
        task_accuracies=[0.5] * (task + 1),
        old_accuracy=None,
        new_accuracy=0.5,
        task_id_accuracy=0.5,
        task_aware_accuracy=0.9,
        task_confusion=[],
        per_class={},
        train_seconds=1.0,
        test_seconds=0.5,
    )
    return replace(record, **changes)


def test_summary_by_hand():
    records = [
        make_record(0, accuracy=1.0, top5=1.0, task_accuracies=[0.8]),
        make_record(1, accuracy=0.6, top5=0.8, task_accuracies=[0.9, 0.7]),
        make_record(
            2,
            accuracy=0.2,
            top5=0.6,
            task_accuracies=[0.3, 0.1, 1.0],
            task_id_accuracy=0.4,
            task_aware_accuracy=0.7,
        ),
    ]
    summary = summarize(iter(records))
    assert summary == pytest.approx(
        {
            "tasks": 3,
            "average_incremental_accuracy": 0.6,
            "final_accuracy": 0.2,
            "average_top5": 0.8,
            "forgetting": (0.6 + 0.6) / 2,
            "backward_transfer": (-0.5 - 0.6) / 2,
            "task_id_accuracy": 0.4,
            "task_aware_accuracy": 0.7,
            "train_seconds": 3.0,
            "test_seconds": 1.5,
        }
    )
    assert json.loads(json.dumps(summary)) == summary


def test_summary_without_scores_has_no_top5():
    summary = summarize([make_record(0, top5=None, task_aware_accuracy=None)])
    assert summary["average_top5"] is None
    assert summary["task_aware_accuracy"] is None
    # A mean over some tasks would stand beside means over all.
    assert summarize([make_record(0, top5=None), make_record(1)])["average_top5"] is None


def test_summary_wants_the_records_of_one_run_from_the_first():
    with pytest.raises(ValueError, match=r"records are of tasks \[1, 2\]"):
        summarize([make_record(1), make_record(2)])
    with pytest.raises(ValueError, match="at least one task"):
        summarize([])


def test_a_classifier_that_knows_what_is_to_come_is_refused():
    stream = ClassStream(load_dataset("digits", limit=10), tasks=5)
    learner = LMRCClassifier(backbone="cnn", epochs=1, random_state=0)
    list(evaluate(stream[:2], learner))
    with pytest.raises(ValueError, match="knows class 0 already"):
        next(evaluate(stream, learner))
    assert next(evaluate(stream, learner, start=2)).n_classes_seen == 6
    with pytest.raises(ValueError, match="does not know class 0 of the tasks before"):
        next(evaluate(stream, clone(learner), start=3))


def test_a_classifier_that_knows_other_classes_may_go_on_with_a_stream():
    data = load_dataset("digits", limit=10)
    learner = LMRCClassifier(backbone="cnn", epochs=1, random_state=0)
    learner.partial_fit(data.X_train, data.y_train + 100)
    assert next(evaluate(ClassStream(data, tasks=5), learner)).n_classes_seen == 2
