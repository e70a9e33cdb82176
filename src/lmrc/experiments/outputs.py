"""Mean outputs at each position, for the softmax suppression of Fig. 1."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from lmrc.data.stream import ClassStream
from lmrc.methods.lwf import LwFClassifier

SIMILARITY, PROBABILITY, WITHIN_HEAD = "similarity", "probability", "probability within a head"


def mean_outputs(stream: ClassStream, learner: Any) -> dict[str, Any]:
    """Return a learner's outputs, on average over the test samples of each class of its stream.

    Returns JSON values. ``kind``: "similarity", "probability" or "probability within a head" (where
    each head's outputs sum to 1); ``classes``: the labels of the positions, in order of arrival;
    ``means``: one row per class, of the mean output at each position.
    """
    if not hasattr(learner, "classes_"):
        raise ValueError(
            f"{type(learner).__name__} has no classes_, which says which output belongs to which "
            "class: set it in partial_fit"
        )
    known = np.asarray(learner.classes_).tolist()
    positions = [known.index(label) for label in stream.order.tolist()]
    means: dict[Any, NDArray[np.float64]] = {}
    for task in stream:
        outputs = _outputs(learner, task.X_test)[:, positions]
        means |= {label: outputs[task.y_test == label].mean(axis=0) for label in task.classes}
    return {
        "kind": _kind(learner),
        "classes": stream.order.tolist(),
        "means": [means[label].tolist() for label in stream.order],
    }


def _kind(learner: Any) -> str:
    if hasattr(learner, "similarities"):
        return SIMILARITY
    multi = isinstance(learner, LwFClassifier) and learner.heads == "multi"
    return WITHIN_HEAD if multi else PROBABILITY


def _outputs(learner: Any, X: Any) -> NDArray[np.float64]:
    if hasattr(learner, "similarities_by_rule"):
        scores = learner.similarities_by_rule(X)["wta"]  # cosines, whatever the rule in use
    elif hasattr(learner, "similarities"):
        scores = learner.similarities(X)
    elif hasattr(learner, "predict_proba"):
        scores = learner.predict_proba(X)
    elif isinstance(learner, LwFClassifier):  # its scores are probabilities already
        scores = learner.decision_function(X)
    elif hasattr(learner, "decision_function"):
        scores = softmax(np.asarray(learner.decision_function(X), dtype=np.float64), axis=1)
    else:
        raise ValueError(
            f"{type(learner).__name__} has neither similarities, predict_proba nor "
            "decision_function: its outputs cannot be shown"
        )
    return np.asarray(scores, dtype=np.float64)
