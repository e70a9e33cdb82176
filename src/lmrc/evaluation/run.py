"""Learn a stream task by task and yield one record after each."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from lmrc.data.stream import ClassStream
from lmrc.evaluation import metrics
from lmrc.evaluation.outputs import compute_outputs

#: By prediction rule: what `lmrc.evaluation.metrics.score_rule` returns.
RuleScores = dict[str, dict[str, float]]


class Learner(Protocol):
    """Anything that learns in parts: all that `evaluate` needs of a classifier."""

    def partial_fit(self, X: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
        """Learn more samples."""

    def predict(self, X: Any) -> Any:
        """Return one label per sample."""


@dataclass(frozen=True)
class TaskRecord:
    """What `evaluate` measured after one task, on test samples of all seen classes.

    Accuracies are shares from 0 to 1; all values are plain Python ones.

    Attributes
    ----------
    task : int
        Index of the task just learned, from 0.
    classes : list
        Its labels; in a blurry stream those of its major classes.
    n_classes_seen : int
        Number of classes that have arrived so far.
    accuracy : float
        Over all seen classes.
    top5 : float or None
        The true label is among the five likeliest (or all, if the learner knows fewer). None if
        the learner offers neither `similarities`, `decision_function`, `predict_proba` nor
        `predict_topk`.
    task_accuracies : list of float
        One for each task learned so far, over its classes; any seen class may be predicted.
    old_accuracy : float or None
        Over the classes of all earlier tasks that are not in this one; None where there are none.
    new_accuracy : float
        Over the classes of the task just learned.
    task_id_accuracy : float
        Share of samples whose predicted class arrived in the same task as the true one.
    task_aware_accuracy : float or None
        Accuracy if only classes of the true class's task compete; None for a learner without
        scores.
    task_confusion : list of list of int
        Entry [i][j]: how many samples of task i were given a class of task j. It has a row and
        a column for every task of the stream, so that all records are of one shape.
    per_class : dict
        Accuracy by label. A seen class without test samples is missing.
    train_seconds, test_seconds : float
        Wall-clock time of learning the task, and of predicting and scoring the test samples.
    """

    task: int
    classes: list[Any]
    n_classes_seen: int
    accuracy: float
    top5: float | None
    task_accuracies: list[float]
    old_accuracy: float | None
    new_accuracy: float
    task_id_accuracy: float
    task_aware_accuracy: float | None
    task_confusion: list[list[int]]
    per_class: dict[Any, float]
    train_seconds: float
    test_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dict that JSON gives back as it was.

        The labels in `per_class` become text, for JSON knows no other keys.
        """
        per_class = {str(label): accuracy for label, accuracy in self.per_class.items()}
        return {**asdict(self), "per_class": per_class}


def evaluate(
    stream: ClassStream, learner: Learner, announce_classes: bool = False, *, start: int = 0
) -> Iterator[TaskRecord]:
    """Train a classifier on a stream, task by task, and yield a record after each.

    Parameters
    ----------
    stream : ClassStream
        The tasks. Each needs test samples.
    learner : object with `partial_fit` and `predict`
        A fresh one, or one that has learnt `start` tasks. It is trained in place, and
        after the last record holds the final state.
        Where it has `classes_` and `similarities`, `decision_function` or `predict_proba`, or
        else `predict_topk`, the record says more. With the attribute ``predict_is_argmax = True``
        (`predict` returns the class with the highest of these scores), one forward pass does.
    announce_classes : bool, default=False
        Pass ``classes=`` all classes of the stream to the first `partial_fit`, for learners such
        as scikit-learn's `SGDClassifier` that must know them from the start.
    start : int, default=0
        Number of tasks that the learner has learnt already: start with the next.

    Yields
    ------
    TaskRecord
        Accuracy over all seen classes, and more.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> from lmrc.data.datasets import digits
    >>> from lmrc.data.stream import ClassStream
    >>> from lmrc.evaluation.run import evaluate
    >>> stream = ClassStream(digits().as_vectors(), tasks=5)
    >>> learner = SGDClassifier(random_state=0)
    >>> for record in evaluate(stream, learner, announce_classes=True):
    ...     print(f"{record.n_classes_seen} classes: {record.accuracy:.1f}")
    2 classes: 1.0
    4 classes: 0.5
    6 classes: 0.4
    8 classes: 0.4
    10 classes: 0.2
    """
    for record, _ in evaluate_rules(
        stream, learner, announce_classes, start=start, all_rules=False
    ):
        yield record


def evaluate_rules(
    stream: ClassStream,
    learner: Learner,
    announce_classes: bool = False,
    *,
    start: int = 0,
    all_rules: bool = True,
) -> Iterator[tuple[TaskRecord, RuleScores]]:
    """Do as `evaluate`, and score all of the learner's prediction rules in the same forward pass.

    Parameters
    ----------
    stream, learner, announce_classes, start
        As in `evaluate`. A learner has several prediction rules if it has `classes_`,
        `prediction_rules_` and `similarities_by_rule`.
    all_rules : bool, default=True
        Whether they are scored.

    Yields
    ------
    TaskRecord
    dict
        By prediction rule (the value of ``predict_with``): `accuracy`, `task_id_accuracy` and
        `task_aware_accuracy`, as in a `TaskRecord`. Empty for a learner with one rule.
    """
    _check(stream, learner)
    _check_learnt(stream, learner, start)
    for index in range(start, len(stream)):
        task = stream[index]
        announced = (
            {"classes": np.sort(stream.order)} if announce_classes and not task.index else {}
        )
        started = perf_counter()
        learner.partial_fit(task.X_train, task.y_train, **announced)
        train_seconds = perf_counter() - started
        yield _score(stream, task.index, learner, train_seconds, all_rules)


def summarize(records: Iterable[TaskRecord]) -> dict[str, Any]:
    """Return the figures of a whole run.

    Parameters
    ----------
    records : iterable of TaskRecord
        All records of the run so far, from the first: what `evaluate` yields.

    Returns
    -------
    dict
        JSON-ready. ``average_…`` are means over the tasks, `forgetting` and `backward_transfer`
        as in `lmrc.evaluation.metrics`, the seconds are sums, the others are as of the last
        record. None where the learner gave no scores.

    Examples
    --------
    >>> from sklearn.linear_model import SGDClassifier
    >>> from lmrc.data.datasets import digits
    >>> from lmrc.data.stream import ClassStream
    >>> from lmrc.evaluation.run import evaluate, summarize
    >>> stream = ClassStream(digits().as_vectors(), tasks=5)
    >>> learner = SGDClassifier(random_state=0)
    >>> summary = summarize(evaluate(stream, learner, announce_classes=True))
    >>> round(summary["average_incremental_accuracy"], 1), summary["forgetting"] > 0.9
    (0.5, True)
    """
    run = list(records)
    if [record.task for record in run] != list(range(len(run))):
        raise ValueError(
            f"records are of tasks {[record.task for record in run]}; "
            "pass those of one run, in order, from task 0."
        )
    accuracies = [record.accuracy for record in run]
    matrix = [record.task_accuracies for record in run]
    top5 = [record.top5 for record in run if record.top5 is not None]
    return {
        "tasks": len(run),
        "average_incremental_accuracy": metrics.average_incremental_accuracy(accuracies),
        "final_accuracy": accuracies[-1],
        "average_top5": float(np.mean(top5)) if len(top5) == len(run) else None,
        "forgetting": metrics.forgetting(matrix),
        "backward_transfer": metrics.backward_transfer(matrix),
        "task_id_accuracy": run[-1].task_id_accuracy,
        "task_aware_accuracy": run[-1].task_aware_accuracy,
        "train_seconds": sum(record.train_seconds for record in run),
        "test_seconds": sum(record.test_seconds for record in run),
    }


def _check(stream: ClassStream, learner: Learner) -> None:
    """Fail before hours of training, not after."""
    if not isinstance(stream, ClassStream):
        raise TypeError(f"evaluate needs a ClassStream first, not a {type(stream).__name__}")
    if isinstance(learner, type):
        raise TypeError(f"evaluate needs a classifier, not a class: pass {learner.__name__}()")
    missing = [name for name in ("partial_fit", "predict") if not hasattr(learner, name)]
    if missing:
        raise TypeError(f"{learner!r} has no {' and no '.join(missing)}; evaluate needs both.")
    tested = np.unique(stream.dataset.y_test)
    untested = [i for i, own in enumerate(stream.tasks) if not np.isin(own, tested).any()]
    if untested:
        raise ValueError(
            f"tasks {untested} have no test samples; add some for at least one class of "
            "each, or put these classes together with others."
        )


def _check_learnt(stream: ClassStream, learner: Learner, start: int) -> None:
    """Refuse a classifier that knows classes of later tasks, or not those of earlier ones."""
    from lmrc.methods.base import IncrementalClassifier

    if not isinstance(learner, IncrementalClassifier):
        return  # of others it is not known what they have learnt
    known = set(np.asarray(getattr(learner, "classes_", ())).tolist())
    before = set(stream.seen(start - 1).tolist()) if start else set()
    coming = set(stream.order.tolist()) - before
    if known & coming:
        raise ValueError(
            f"the learner knows class {min(known & coming)!r} already, which is still to come: its "
            "accuracy would be meaningless. Pass a fresh one (sklearn.base.clone makes it)."
        )
    if not before <= known:
        raise ValueError(
            f"start={start}, but the learner does not know class {min(before - known)!r} of the "
            "tasks before: pass one that has learnt them, or leave start out."
        )


def _score(
    stream: ClassStream, index: int, learner: Any, train_seconds: float, all_rules: bool
) -> tuple[TaskRecord, RuleScores]:
    X, y = stream.test_up_to(index)
    started = perf_counter()
    outputs = compute_outputs(learner, X, len(stream.seen(index)), all_rules=all_rules)
    test_seconds = perf_counter() - started

    predicted, scored, top5 = outputs.predicted, outputs.scored, outputs.top5
    if predicted.shape != y.shape:
        raise ValueError(
            f"{learner!r} predicted an array of shape {predicted.shape} for {len(y)} samples; "
            "predict must return one label per sample."
        )
    task_of = stream.task_of
    right = predicted == y
    of_task = [np.isin(y, own) for own in stream.tasks[: index + 1]]
    task_accuracies = [float(right[chosen].mean()) for chosen in of_task]
    old = np.logical_or.reduce(of_task[:-1], axis=0) & ~of_task[-1] if index else of_task[0][:0]
    record = TaskRecord(
        task=index,
        classes=stream.tasks[index].tolist(),
        n_classes_seen=len(stream.seen(index)),
        accuracy=float(right.mean()),
        top5=None if top5 is None else metrics.topk_accuracy(y, top5),
        task_accuracies=task_accuracies,
        old_accuracy=float(right[old].mean()) if old.any() else None,
        new_accuracy=task_accuracies[-1],
        task_id_accuracy=metrics.task_id_accuracy(y, predicted, task_of),
        task_aware_accuracy=None
        if scored is None
        else metrics.task_aware_accuracy(y, *scored, task_of),
        task_confusion=metrics.task_confusion(y, predicted, task_of, len(stream)),
        per_class={label: float(right[y == label].mean()) for label in np.unique(y).tolist()},
        train_seconds=train_seconds,
        test_seconds=test_seconds,
    )
    return record, {
        rule: metrics.score_rule(y, scores, learner.classes_, task_of)
        for rule, scores in outputs.by_rule.items()
    }
