"""What a learner answers to test samples, from as few looks at them as it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmrc.methods.persistence import CLASSES


@dataclass(frozen=True)
class Look:
    """The answers to n samples.

    Attributes
    ----------
    predicted : array of shape (n,)
        What `predict` returns.
    scored : tuple of arrays, or None
        Scores of shape (n, n_classes) and the label of each column, where there are any.
    top5 : array or None
        The five likeliest labels of each sample, or all, if the learner knows fewer.
    by_readout : dict of arrays
        Scores in each of the ways in which the learner can predict, where there are several and
        they were asked for.
    """

    predicted: NDArray[Any]
    scored: tuple[NDArray[Any], NDArray[Any]] | None
    top5: NDArray[Any] | None
    by_readout: dict[str, NDArray[Any]] = field(default_factory=dict)


def look(learner: Any, X: Any, n_seen: int, *, readouts: bool = False) -> Look:
    """Ask a learner for labels and scores: our own classifiers in one look, others in several.

    Of ours it is known that the highest score wins, and that scores by readout hold those that
    decide; a class of one's own may mean something else by each of its methods.

    Parameters
    ----------
    learner : object with `predict`
    X : array
        The samples.
    n_seen : int
        Number of classes that have arrived.
    readouts : bool, default=False
        Whether scores are wanted in all ways in which the learner can predict.
    """
    ours = type(learner) in CLASSES.values()
    several = readouts and len(getattr(learner, "prediction_rules_", ())) > 1
    by_readout = learner.similarities_by_rule(X) if several else {}
    decides = by_readout.get(learner.predict_with) if ours and by_readout else None
    scored = _class_scores(learner, X) if decides is None else (decides, learner.classes_)
    if ours and scored:
        scores, classes = scored
        predicted = classes[scores.argmax(axis=1)]
    else:
        predicted = np.asarray(learner.predict(X))
    return Look(predicted, scored, _top5(learner, X, scored, n_seen), by_readout)


def _class_scores(learner: Any, X: Any) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return scores of shape (n, n_classes) and the label of each column, if there are any."""
    if not hasattr(learner, "classes_"):
        return None
    classes = np.asarray(learner.classes_)
    for name in ("similarities", "decision_function", "predict_proba"):
        if (method := getattr(learner, name, None)) is None:
            continue
        scores = np.asarray(method(X))
        if scores.ndim == 1 and len(classes) == 2:
            # scikit-learn's convention for two classes: one column, positive for the second.
            scores = np.column_stack([-scores, scores])
        # Some decision functions are not by class (one-versus-one): those are left out.
        if scores.shape == (len(X), len(classes)):
            return scores, classes
    return None


def _top5(
    learner: Any, X: Any, scored: tuple[NDArray[Any], NDArray[Any]] | None, n_seen: int
) -> NDArray[Any] | None:
    if scored is not None:
        scores, classes = scored
        labels: NDArray[Any] = classes[np.argsort(-scores, axis=1, kind="stable")[:, :5]]
        return labels
    if hasattr(learner, "predict_topk"):
        return np.asarray(learner.predict_topk(X, min(5, n_seen)))
    return None
