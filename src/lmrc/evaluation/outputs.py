"""A learner's outputs for test samples, from as few forward passes as possible."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: Methods that score each class, the preferred one first.
SCORING = ("similarities", "decision_function", "predict_proba")

#: Scores of shape (n, n_classes), and the label of each column.
Scored = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Outputs:
    """The outputs for n samples."""

    predicted: NDArray[Any]  # (n,): what `predict` returns
    #: Scores of shape (n, n_classes) and the label of each column, where there are any.
    scored: Scored | None
    #: The five likeliest labels of each sample, or all, if the learner knows fewer.
    top5: NDArray[Any] | None
    #: Scores by each of the learner's prediction rules, where there are several and they are
    #: wanted.
    by_rule: dict[str, NDArray[Any]] = field(default_factory=dict)


def compute_outputs(learner: Any, X: Any, n_seen: int, *, all_rules: bool = False) -> Outputs:
    """Compute labels and scores: in one forward pass where `predict` is the argmax of the scores.

    A class says so by the attribute ``predict_is_argmax = True``, and its subclasses inherit it. A
    subclass that overrides `predict` or the scores has to say it again; until it does, `predict` is
    called by itself. With `all_rules`, scores by each of the learner's ``prediction_rules_``, too.
    """
    several = all_rules and len(getattr(learner, "prediction_rules_", ())) > 1
    by_rule = learner.similarities_by_rule(X) if several else {}
    is_argmax = _predict_is_argmax(learner, "scores", "similarities_by_rule")
    if is_argmax and (rule := getattr(learner, "prediction_rule_", None)) in by_rule:
        scored: Scored | None = (by_rule[rule], learner.classes_)
    else:
        scored, method = _class_scores(learner, X)
        is_argmax = _predict_is_argmax(learner, method)
    if scored is not None and is_argmax:
        scores, classes = scored
        predicted = classes[scores.argmax(axis=1)]
    else:
        predicted = np.asarray(learner.predict(X))
    return Outputs(predicted, scored, _top5(learner, X, scored, n_seen), by_rule)


def _predict_is_argmax(learner: Any, *scoring: str) -> bool:
    """Tell whether a class says that it predicts the highest of the scores of some methods.

    Where one of these methods, or `predict`, is overridden below that class, it does not count.
    """
    for names in (getattr(learner, "__dict__", {}), *map(vars, type(learner).__mro__)):
        if "predict_is_argmax" in names:
            return bool(names["predict_is_argmax"])
        if any(method in names for method in ("predict", *scoring)):
            return False
    return False


def _class_scores(learner: Any, X: Any) -> tuple[Scored | None, str]:
    """Return scores of shape (n, n_classes) with the label of each column, and their method."""
    if not hasattr(learner, "classes_"):
        return None, ""
    classes = np.asarray(learner.classes_)
    for name in SCORING:
        if (method := getattr(learner, name, None)) is None:
            continue
        scores = np.asarray(method(X))
        if scores.ndim == 1 and len(classes) == 2:
            # scikit-learn's convention for two classes: one column, positive for the second.
            scores = np.column_stack([-scores, scores])
        # Some decision functions are not by class (one-versus-one): those are left out.
        if scores.shape == (len(X), len(classes)):
            return (scores, classes), name
    return None, ""


def _top5(learner: Any, X: Any, scored: Scored | None, n_seen: int) -> NDArray[Any] | None:
    if scored is not None:
        scores, classes = scored
        labels: NDArray[Any] = classes[np.argsort(-scores, axis=1, kind="stable")[:, :5]]
        return labels
    if hasattr(learner, "predict_topk"):
        return np.asarray(learner.predict_topk(X, min(5, n_seen)))
    return None
