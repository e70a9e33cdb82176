"""What is measured over a stream of tasks: pure functions on arrays.

Accuracies are shares from 0 to 1. In a `matrix`, a[i][j] is the accuracy on the test samples of
task j after learning task i, for j ≤ i. Entries above the diagonal are not read, so rows may
be ragged: row i needs i + 1 entries.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def average_incremental_accuracy(accuracies: Sequence[float]) -> float:
    """Return the mean over all tasks of the accuracy on all classes seen so far.

    (1/K) Σᵢ aᵢ, where aᵢ is the accuracy over all seen classes after task i. The first task
    counts like the others, as in iCaRL (Rebuffi et al., 2017).

    Examples
    --------
    >>> average_incremental_accuracy([1.0, 0.75, 0.5])
    0.75
    """
    if not len(accuracies):
        raise ValueError("accuracies is empty; learn and score at least one task first.")
    return float(np.mean(accuracies))


def forgetting(matrix: Sequence[Sequence[float]] | NDArray[Any]) -> float:
    """Return how far the old tasks have fallen from their best, on average.

    (1/(K−1)) Σ_{j<K} (max_{j≤l<K} a[l][j] − a[K][j]) for the last task K; 0.0 where nothing is
    old yet. Negative if old tasks got better. After Chaudhry et al., Riemannian Walk for
    Incremental Learning, 2018.

    Examples
    --------
    >>> forgetting([[1.0], [0.75, 1.0], [0.5, 0.75, 1.0]])  # 1.0 → 0.5 and 1.0 → 0.75
    0.375
    """
    rows = _lower_triangle(matrix)
    last = len(rows) - 1
    drops = [max(rows[i][j] for i in range(j, last)) - rows[last][j] for j in range(last)]
    return float(np.mean(drops)) if drops else 0.0


def backward_transfer(matrix: Sequence[Sequence[float]] | NDArray[Any]) -> float:
    """Return how much the old tasks have changed since they were learned, on average.

    (1/(K−1)) Σ_{j<K} (a[K][j] − a[j][j]) for the last task K; 0.0 where nothing is old yet.
    Negative means forgetting. After Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual
    Learning, 2017.

    Examples
    --------
    >>> backward_transfer([[0.75], [1.0, 1.0], [0.5, 0.75, 1.0]])  # 0.75 → 0.5 and 1.0 → 0.75
    -0.25
    """
    rows = _lower_triangle(matrix)
    last = len(rows) - 1
    changes = [rows[last][j] - rows[j][j] for j in range(last)]
    return float(np.mean(changes)) if changes else 0.0


def topk_accuracy(y_true: ArrayLike, topk_labels: ArrayLike) -> float:
    """Return the share of samples whose true label is among the k labels proposed for it.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        True labels.
    topk_labels : array-like of shape (n, k)
        Proposed labels, in any order.

    Examples
    --------
    >>> topk_accuracy(["cat", "dog"], [["dog", "cat"], ["cat", "fish"]])
    0.5
    """
    proposed = np.asarray(topk_labels)
    if proposed.ndim != 2:
        raise ValueError(f"topk_labels must be of shape (n, k), got {proposed.shape}.")
    true, proposed = _paired(y_true, proposed, "topk_labels")
    return float(np.mean((proposed == true[:, None]).any(axis=1)))


def task_id_accuracy(y_true: ArrayLike, y_pred: ArrayLike, task_of: Mapping[Any, int]) -> float:
    """Return the share of samples whose predicted class arrived in the true class's task.

    With one head per task this is how often the head of the true class wins, whether or not it
    then predicts the true class.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n,)
        True and predicted labels.
    task_of : mapping from label to int
        The task (head) of each class, such as ``ClassStream.task_of``. Predicted labels that
        are not in it count as wrong.

    Examples
    --------
    >>> task_of = {"cat": 0, "dog": 0, "bird": 1, "fish": 1}
    >>> task_id_accuracy(["cat", "bird"], ["dog", "cat"], task_of)
    0.5
    """
    true, predicted = _paired(y_true, y_pred, "y_pred")
    return float(np.mean(_true_tasks(true, task_of) == tasks_of(predicted, task_of)))


def task_aware_accuracy(
    y_true: ArrayLike, scores: ArrayLike, classes: ArrayLike, task_of: Mapping[Any, int]
) -> float:
    """Return the accuracy when only the classes of the true class's task compete.

    This is the accuracy with the task known: the highest score among the classes that arrived
    together with the true one wins.

    Parameters
    ----------
    y_true : array-like of shape (n,)
        True labels.
    scores : array-like of shape (n, n_classes)
        Higher is likelier.
    classes : array-like of shape (n_classes,)
        The label of each column of `scores`, in any order.
    task_of : mapping from label to int
        The task (head) of each class, such as ``ClassStream.task_of``.

    Examples
    --------
    >>> task_of = {"cat": 0, "dog": 0, "bird": 1, "fish": 1}
    >>> scores = [[0.2, 0.1, 0.9, 0.0], [0.1, 0.2, 0.3, 0.4]]  # "bird" and "fish" win overall
    >>> task_aware_accuracy(["cat", "bird"], scores, ["cat", "dog", "bird", "fish"], task_of)
    0.5
    """
    columns = np.asarray(classes)
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] != len(columns):
        raise ValueError(
            f"scores must have one column for each of the {len(columns)} classes, "
            f"got shape {values.shape}."
        )
    true, values = _paired(y_true, values, "scores")
    competes = _true_tasks(true, task_of)[:, None] == tasks_of(columns, task_of)
    winners = columns[np.where(competes, values, -np.inf).argmax(axis=1)]
    return float(np.mean(winners == true))


def score_rule(
    y_true: NDArray[Any], scores: NDArray[Any], classes: ArrayLike, task_of: Mapping[Any, int]
) -> dict[str, float]:
    """Score one prediction rule, by which the highest score wins.

    Parameters
    ----------
    y_true, scores, classes, task_of
        As in `task_aware_accuracy`.

    Returns
    -------
    dict
        `accuracy`, `task_id_accuracy` and `task_aware_accuracy`, as in a `TaskRecord`.
    """
    predicted = np.asarray(classes)[scores.argmax(axis=1)]
    return {
        "accuracy": float(np.mean(predicted == y_true)),
        "task_id_accuracy": task_id_accuracy(y_true, predicted, task_of),
        "task_aware_accuracy": task_aware_accuracy(y_true, scores, classes, task_of),
    }


def task_confusion(
    y_true: ArrayLike, y_pred: ArrayLike, task_of: Mapping[Any, int], n_tasks: int
) -> list[list[int]]:
    """Count samples by true task (rows) and task of the predicted class (columns).

    Predicted labels that are in no task are left out.
    """
    true, predicted = tasks_of(y_true, task_of), tasks_of(y_pred, task_of)
    counts = np.zeros((n_tasks, n_tasks), dtype=int)
    np.add.at(counts, (true[predicted >= 0], predicted[predicted >= 0]), 1)
    rows: list[list[int]] = counts.tolist()
    return rows


def tasks_of(labels: ArrayLike, task_of: Mapping[Any, int]) -> NDArray[np.intp]:
    """Return the task of each label, −1 for those that are in none.

    Examples
    --------
    >>> tasks_of(["dog", "bird", "yeti"], {"dog": 0, "bird": 1})
    array([ 0,  1, -1])
    """
    unique, inverse = np.unique(np.asarray(labels), return_inverse=True)
    tasks = np.array([task_of.get(label, -1) for label in unique.tolist()], dtype=np.intp)
    return tasks[inverse]


def _true_tasks(true: NDArray[Any], task_of: Mapping[Any, int]) -> NDArray[np.intp]:
    tasks = tasks_of(true, task_of)
    if (tasks < 0).any():
        unknown = np.unique(true[tasks < 0]).tolist()
        raise ValueError(
            f"y_true holds labels that task_of does not, such as {unknown[:5]}; "
            "name the task of each class."
        )
    return tasks


def _paired(y_true: ArrayLike, others: ArrayLike, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    true, rows = np.asarray(y_true), np.asarray(others)
    if len(true) != len(rows):
        raise ValueError(f"y_true holds {len(true)} labels but {name} {len(rows)} rows.")
    if len(true) == 0:
        raise ValueError("y_true is empty; accuracy is defined over at least one sample.")
    return true, rows


def _lower_triangle(matrix: Sequence[Sequence[float]] | NDArray[Any]) -> list[list[float]]:
    rows = [[float(accuracy) for accuracy in row] for row in matrix]
    for i, row in enumerate(rows):
        if len(row) <= i:
            raise ValueError(
                f"row {i} of the matrix holds {len(row)} accuracies; "
                f"it needs one for each of the tasks 0 to {i}."
            )
    return rows
