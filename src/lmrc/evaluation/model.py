"""Score one model on labelled images."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmrc.evaluation import metrics

NAMED = 3  # most frequent mistakes


@dataclass(frozen=True)
class ModelScore:
    """Scores of a model on labelled images. Shares from 0 to 1; all values are plain ones."""

    n: int  # number of images
    #: The true class is first, or among the first five (or all, if there are fewer).
    accuracy: float
    top5: float
    #: How often the predicted class is of the true class's task; accuracy with the task known.
    task_id_accuracy: float
    task_aware_accuracy: float
    heads: list[list[str]]  # the classes of each head
    #: Entry [i][j]: how many images of head i's classes were predicted as a class of head j.
    task_confusion: list[list[int]]
    #: Class, number of images and accuracy; in order of arrival, those without images left out.
    per_class: list[list[Any]]
    #: True class, predicted class and number of images, most frequent first.
    mistakes: list[list[Any]]
    seconds: float = 0.0  # time that predicting took
    settings: dict[str, Any] = field(default_factory=dict)  # of the model
    made_with: str = ""  # versions and hardware, in words
    #: Bins of predictions by confidence: their number, mean confidence and accuracy; empty for a
    #: model without probabilities.
    reliability: list[list[Any]] = field(default_factory=list)
    #: Share of the images, the most confident first, and accuracy on them. Confidence is the
    #: probability of the predicted class, or its similarity where there are no probabilities.
    coverage: list[list[float]] = field(default_factory=list)
    ece: float | None = None  # expected calibration error; None for a model without probabilities
    #: What `score_unknown` returns; None if there were no images of unknown classes.
    unknown: dict[str, Any] | None = None
    #: By "mistakes", the most confident ones, "doubtful", the hits of lowest confidence, and
    #: "taken", the unknown images that look most known: a list of [name, true class (empty for
    #: unknown), predicted class, confidence, thumbnail].
    images: dict[str, list[list[Any]]] = field(default_factory=dict)

    def most_frequent_mistakes(self) -> str:
        """Return the mistakes that are made most often in words; empty if there are none."""
        images = {label: n for label, n, _ in self.per_class}
        named = [
            f"{n:,} of {images.get(true, n):,} {true} taken for {taken}"
            for true, taken, n in self.mistakes[:NAMED]
        ]
        return f"Most frequent mistakes: {'; '.join(named)}." if named else ""

    def to_json(self) -> str:
        """Return the score as one line of JSON, without its end of line."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)


def score_model(
    similarities: NDArray[Any], heads: Sequence[NDArray[Any]], y: NDArray[Any], seconds: float = 0.0
) -> ModelScore:
    """Compare a model's predictions with the true classes.

    Columns of `similarities`, (n, n_classes), are in the order of the heads' classes.

    >>> heads = [np.array(["cat", "dog"]), np.array(["fox"])]
    >>> score = score_model(np.array([[0.9, 0.1, 0.2], [0.3, 0.2, 0.7]]), heads, ["cat", "dog"])
    >>> score.accuracy, score.task_id_accuracy, score.mistakes
    (0.5, 0.5, [['dog', 'fox', 1]])
    """
    classes, y = np.concatenate(list(heads)), np.asarray(y)
    head_of = {label: i for i, head in enumerate(heads) for label in head.tolist()}
    predicted = classes[similarities.argmax(axis=1)]
    best = classes[np.argsort(-similarities, axis=1, kind="stable")[:, :5]]
    right = predicted == y
    wrong = Counter(zip(y[~right].tolist(), predicted[~right].tolist(), strict=True))
    return ModelScore(
        n=len(y),
        accuracy=float(right.mean()),
        top5=metrics.topk_accuracy(y, best),
        task_id_accuracy=metrics.task_id_accuracy(y, predicted, head_of),
        task_aware_accuracy=metrics.task_aware_accuracy(y, similarities, classes, head_of),
        heads=[[str(label) for label in head.tolist()] for head in heads],
        task_confusion=metrics.task_confusion(y, predicted, head_of, len(heads)),
        per_class=[
            [str(label), int((y == label).sum()), float(right[y == label].mean())]
            for label in classes.tolist()
            if (y == label).any()
        ],
        mistakes=[[str(true), str(taken), n] for (true, taken), n in wrong.most_common()],
        seconds=seconds,
    )


def reject_threshold(known: NDArray[Any], unknown: NDArray[Any]) -> tuple[float, float, float]:
    """Find the similarity below which to predict "unknown", by the best similarity of images.

    Returns the threshold for which the mean of two shares is highest, and these: that of known
    images at or above it, and that of unknown ones below.

    >>> reject_threshold(np.array([0.9, 0.8, 0.7]), np.array([0.2, 0.5]))
    (0.6, 1.0, 1.0)
    """
    values = np.unique(np.concatenate([known, unknown]).astype(np.float64))
    # Half way between two images, so that neither is on the edge; rounded as it will be written.
    middles = (values[:-1] + values[1:]) / 2
    candidates = np.concatenate([values[:1] - 1e-3, middles, values[-1:] + 1e-3]).round(6)
    kept = 1 - np.searchsorted(np.sort(known), candidates) / len(known)
    rejected = np.searchsorted(np.sort(unknown), candidates) / len(unknown)
    best = int((kept + rejected).argmax())
    return float(candidates[best]), float(kept[best]), float(rejected[best])
