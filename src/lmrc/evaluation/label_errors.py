"""Find labels that are probably wrong, and confused classes, by cross-validation.

A sample's label is suspicious if a classifier trained without the sample finds another label much
more likely. Samples are ranked by the margin of these out-of-sample probabilities, as in confident
learning (Northcutt, Jiang, Chuang, Confident Learning: Estimating Uncertainty in Dataset Labels,
JAIR 2021).
"""

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FOLDS = 5
LOGIT_SCALE = 20.0  # of features of unit length, for a logistic regression
CONFUSED = 0.15  # share of a class's images that others take


class CrossValidated(NamedTuple):
    """Of each sample: the class that the others suggest, and the margin by which they do."""

    suggested: NDArray[np.str_]  # (n,): the likeliest class
    #: (n,): probability of the label less that of the likeliest other class, from −1 to 1: the
    #: lower, the more suspicious.
    margin: NDArray[np.float64]


def cross_validate(features: NDArray[np.float32], labels: NDArray[np.str_]) -> CrossValidated:
    """Cross-validate labels on features; classes need two samples or more each, and two of them."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    names, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if len(names) < 2 or counts.min() < 2:
        raise ValueError("at least two classes with two images each are needed")
    unit = LOGIT_SCALE * features / np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12)
    folds = StratifiedKFold(min(FOLDS, int(counts.max())), shuffle=True, random_state=0)
    learner = LogisticRegression(class_weight="balanced", max_iter=200)
    with warnings.catch_warnings():
        # Two samples of a class are in two folds: each classifier is fitted to one of them.
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)
        found = cross_val_predict(learner, unit, numbers, cv=folds, method="predict_proba")
    own = found[np.arange(len(numbers)), numbers]
    others = found.copy()
    others[np.arange(len(numbers)), numbers] = -1
    return CrossValidated(names[found.argmax(axis=1)], own - others.max(axis=1))


def confused_pairs(
    labels: NDArray[np.str_], suggested: NDArray[np.str_]
) -> list[tuple[str, str, float]]:
    """Return pairs (class, other, share) of which much is taken for the other, the worst first."""
    pairs = []
    for name in np.unique(labels):
        others, counts = np.unique(suggested[labels == name], return_counts=True)
        shares = counts / counts.sum()
        pairs += [
            (str(name), str(other), float(share))
            for other, share in zip(others, shares, strict=True)
            if other != name and share >= CONFUSED
        ]
    return sorted(pairs, key=lambda pair: -pair[2])
