"""What one network comes to in each of the ways in which its learner can predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmrc.evaluation import metrics

#: By the name of the way: what `score_readout` returns.
Readouts = dict[str, dict[str, float]]


def score_readout(
    y: NDArray[Any], scores: NDArray[Any], labels: Any, batch_of: Mapping[Any, int]
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
    batch_of : mapping
        The class batch of each label.

    Returns
    -------
    dict
        `accuracy`, `head_choice` and `head_given`, as in a `BatchRecord`.
    """
    classes = np.asarray(labels)
    predicted = classes[scores.argmax(axis=1)]
    return {
        "accuracy": float(np.mean(predicted == y)),
        "head_choice": metrics.head_choice_accuracy(y, predicted, batch_of),
        "head_given": metrics.head_given_accuracy(y, scores, classes, batch_of),
    }
