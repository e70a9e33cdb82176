"""Calibration of probabilities, and recognition of unknown images: pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

BINS = 15  # of confidences, as the field has it
HISTOGRAM_BINS = 40


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
    from sklearn.metrics import roc_auc_score  # takes a while to import

    if not len(of_known) or not len(of_unknown):
        raise ValueError("there must be at least one known and one unknown image")
    truth = np.repeat([0, 1], [len(of_known), len(of_unknown)])
    auroc = roc_auc_score(truth, np.concatenate([of_known, of_unknown]))
    # The lowest threshold with which 95 % of the known images are taken for known.
    threshold = np.quantile(of_known, 0.95, method="inverted_cdf")
    return Separation(float(auroc), float(np.mean(of_unknown <= threshold)))


class Threshold(NamedTuple):
    """The model's own threshold for unknown images, and the share of known ones it is to lose."""

    value: float
    share: float


def score_unknown(
    known: Mapping[str, NDArray[Any]],
    unknown: Mapping[str, NDArray[Any]],
    threshold: Threshold | None,
) -> dict[str, Any]:
    """Compare scores of images of known classes and of others; all values are plain ones.

    Parameters
    ----------
    known, unknown : mapping
        Scores by name, the higher the less known; the first is the one that the threshold and the
        histogram are of.
    threshold : Threshold or None

    Returns
    -------
    dict
        ``n``, of unknown images; ``scores``, by name ``auroc`` and ``fpr95``; ``histogram``, with
        ``edges`` of the bins, ``known`` and ``unknown``, the share of images in each; with a
        threshold, ``threshold``, ``share``, ``lost``, the share of known images above it, and
        ``found``, that of unknown ones.
    """
    first = next(iter(known))
    values = [np.asarray(scores[first], dtype=np.float64) for scores in (known, unknown)]
    low, high = np.quantile(np.concatenate(values), [0.005, 0.995])
    edges = np.linspace(low, max(high, low + 1e-6), HISTOGRAM_BINS + 1)
    shares = [np.histogram(np.clip(v, low, edges[-1]), edges)[0] / len(v) for v in values]
    found: dict[str, Any] = {
        "n": len(values[1]),
        "scores": {name: separation(known[name], unknown[name])._asdict() for name in known},
        "histogram": {
            "edges": edges.tolist(),
            "known": shares[0].tolist(),
            "unknown": shares[1].tolist(),
        },
    }
    if threshold is not None:
        lost, rejected = (float(np.mean(v > threshold.value)) for v in values)
        found |= {"threshold": threshold.value, "share": threshold.share}
        found |= {"lost": lost, "found": rejected}
    return found


def thinned(curve: Sequence[tuple[float, float]], most: int = 200) -> list[list[float]]:
    """Return about as many points of a curve as a figure can show; the last one is kept.

    >>> thinned([(0.25, 1.0), (0.5, 0.9), (0.75, 0.8), (1.0, 0.7)], most=2)
    [[0.5, 0.9], [1.0, 0.7]]
    """
    step = -(-len(curve) // most)
    return [[*point] for point in curve[::-1][::step][::-1]]


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
