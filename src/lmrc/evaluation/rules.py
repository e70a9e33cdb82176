"""What one network comes to in each of the ways in which its learner can predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmrc.evaluation import metrics

#: By the name of the way: what `score_rule` returns.
RuleScores = dict[str, dict[str, float]]


def score_rule(
    y: NDArray[Any], scores: NDArray[Any], labels: Any, task_of: Mapping[Any, int]
) -> dict[str, float]:
    """Score one way to predict.

    Parameters
    ----------
    y : array of shape (n,)
        True labels.
    scores : array of shape (n, n_classes)
        The highest wins.
    labels : array of shape (n_classes,)
        Of the columns.
    task_of : mapping
        The task of each label.

    Returns
    -------
    dict
        `accuracy`, `task_id_accuracy` and `task_aware_accuracy`, as in a `TaskRecord`.
    """
    classes = np.asarray(labels)
    predicted = classes[scores.argmax(axis=1)]
    return {
        "accuracy": float(np.mean(predicted == y)),
        "task_id_accuracy": metrics.task_id_accuracy(y, predicted, task_of),
        "task_aware_accuracy": metrics.task_aware_accuracy(y, scores, classes, task_of),
    }
