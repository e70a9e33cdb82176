"""Whether probabilities mean what they say, and whether unknown images are told: pure functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.metrics import roc_auc_score

BINS = 15  # of confidences, as the field has it


class Bin(NamedTuple):
    """Predictions of about the same confidence."""

    n: int
    confidence: float  # mean
    accuracy: float


class Separation(NamedTuple):
    """How well scores tell images of known classes from others."""

    auroc: float  # the chance that an unknown image has a higher score than a known one
    fpr95: float  # share of unknown images taken for known ones where 95 % of the known ones are


def reliability(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> list[Bin]:
    """Return the bins of a reliability diagram, of equal width; those without predictions left out.

    After Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.

    Parameters
    ----------
    confidence : array-like of shape (n,)
        Probability of the predicted class.
    correct : array-like of shape (n,)
        Whether it is the true one.
    bins : int

    Examples
    --------
    >>> reliability([0.9, 0.95, 0.2], [True, False, False], bins=2)
    [Bin(n=1, confidence=0.2, accuracy=0.0), Bin(n=2, confidence=0.925, accuracy=0.5)]
    """
    values, right = _paired(confidence, correct)
    place = np.clip(np.ceil(values * bins).astype(int) - 1, 0, bins - 1)
    return [
        Bin(int(own.sum()), float(values[own].mean()), float(right[own].mean()))
        for own in (place == i for i in range(bins))
        if own.any()
    ]


def expected_calibration_error(
    confidence: ArrayLike, correct: ArrayLike, bins: int = BINS
) -> float:
    """Return the mean gap between confidence and accuracy over the bins, weighted by their size.

    Naeini et al., "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.

    Examples
    --------
    >>> round(expected_calibration_error([0.9, 0.9], [True, False]), 3)
    0.4
    """
    found = reliability(confidence, correct, bins)
    gaps = sum(b.n * abs(b.accuracy - b.confidence) for b in found)
    return gaps / sum(b.n for b in found)


def coverage_curve(confidence: ArrayLike, correct: ArrayLike) -> list[tuple[float, float]]:
    """Return pairs of coverage and accuracy: of the most confident share, how many are correct.

    Predictions of equal confidence are in or out together. After Geifman and El-Yaniv, "Selective
    Classification for Deep Neural Networks", NeurIPS 2017.

    Examples
    --------
    >>> coverage_curve([0.9, 0.8, 0.7, 0.7], [True, True, False, True])
    [(0.25, 1.0), (0.5, 1.0), (1.0, 0.75)]
    """
    values, right = _paired(confidence, correct)
    order = np.argsort(-values, kind="stable")
    values, right = values[order], right[order]
    last = np.append(values[1:] != values[:-1], True)
    n = np.arange(1, len(values) + 1)
    accuracy = right.cumsum() / n
    return [(float(i / len(n)), float(a)) for i, a in zip(n[last], accuracy[last], strict=True)]


def separation(known: ArrayLike, unknown: ArrayLike) -> Separation:
    """Tell how well scores separate known from unknown images.

    Parameters
    ----------
    known, unknown : array-like of shape (n,)
        Scores of images of known classes, and of others: the higher, the less known.

    Examples
    --------
    >>> separation([0.1, 0.2, 0.4], [0.3, 0.5])
    Separation(auroc=0.8333333333333334, fpr95=0.5)
    """
    of_known, of_unknown = (np.asarray(scores, dtype=np.float64) for scores in (known, unknown))
    if not len(of_known) or not len(of_unknown):
        raise ValueError("there must be at least one known and one unknown image")
    truth = np.repeat([0, 1], [len(of_known), len(of_unknown)])
    auroc = roc_auc_score(truth, np.concatenate([of_known, of_unknown]))
    # The lowest threshold with which 95 % of the known images are taken for known.
    threshold = np.quantile(of_known, 0.95, method="inverted_cdf")
    return Separation(float(auroc), float(np.mean(of_unknown <= threshold)))


def _paired(
    confidence: ArrayLike, correct: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    values, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=bool)
    if values.shape != right.shape or values.ndim != 1 or not len(values):
        raise ValueError(
            "confidence and correct must be of the same shape (n,), with at least one prediction; "
            f"got {values.shape} and {right.shape}"
        )
    return values, right
