"""What one network comes to in each of the ways in which its learner can predict."""

from __future__ import annotations

from typing import Any

import numpy as np

from lmrc.data.stream import ClassStream
from lmrc.evaluation import metrics


def score_readouts(stream: ClassStream, index: int, learner: Any) -> dict[str, dict[str, float]]:
    """Score all ways to predict after a class batch, on test samples of all seen classes.

    Parameters
    ----------
    stream : ClassStream
    index : int
        The class batch just learnt.
    learner : object
        It is not trained. One that has `classes_`, `readouts_` and `similarities_by_readout`, or
        any other.

    Returns
    -------
    dict
        By the name of the way (the value of ``predict_with``): `accuracy`, `head_choice` and
        `head_given`, as in a `BatchRecord`. Empty for a learner with one way.
    """
    if len(getattr(learner, "readouts_", ())) < 2:
        return {}
    X, y = stream.test_up_to(index)
    classes, batch_of = np.asarray(learner.classes_), stream.batch_of
    found = {}
    for way, scores in learner.similarities_by_readout(X).items():
        predicted = classes[scores.argmax(axis=1)]
        found[way] = {
            "accuracy": float(np.mean(predicted == y)),
            "head_choice": metrics.head_choice_accuracy(y, predicted, batch_of),
            "head_given": metrics.head_given_accuracy(y, scores, classes, batch_of),
        }
    return found
