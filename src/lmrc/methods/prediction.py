"""Prediction: scores of samples, batch by batch, and labels from them."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmrc.data.validation import read_dataset
from lmrc.methods.reading import read_parts
from lmrc.nets.network import Network
from lmrc.training.device import default_dtype_guard, use_bf16
from lmrc.training.features import for_inference

# Input values per prediction batch: bounded memory, good throughput.
PREDICT_ELEMENTS, PREDICT_ON_GPU = 2**22, 2**24
FEW = 16  # samples for which a backbone is not folded first, which takes longer
MAX_OUTPUTS = 2**26  # and outputs of the network, or scores
MAX_ROWS = 4096  # and rows


class Prediction(ClassifierMixin):
    """Predictions of a classifier that has ``scores``, in bounded memory."""

    network_: Network
    classes_: NDArray[Any]
    precision: Any
    scores: Callable[[Network, Tensor], Tensor]
    #: `predict` returns the class with the highest score: `lmrc.evaluate` then needs one pass.
    #: A subclass that overrides `predict` or public scores says it again, or loses it.
    predict_is_argmax = True

    @property
    def _forward_passes(self) -> int:  # of each sample: rotated, flipped
        return 1

    @property
    def _n_outputs(self) -> int:  # values of each pass
        return 1

    def _score_parts(
        self, X: Any, scores: Callable[[Network, Tensor], Tensor] | None = None
    ) -> Iterator[NDArray[np.float32]]:
        """Yield the scores of all classes for parts of X: (n_part, n_classes), float32.

        Or the values of another function of network and inputs.
        """
        check_is_fitted(self)
        self._check_shape()
        scores = scores or self.scores
        device = self.network_.encoder.mean.device
        bf16 = use_bf16(self.precision, device)
        elements = PREDICT_ON_GPU if device.type == "cuda" else PREDICT_ELEMENTS
        for x in read_parts(self, X):
            n_values = self.network_.encoder.n_values(tuple(x.shape[1:]))
            made = max(self._forward_passes * self._n_outputs, len(self.classes_))
            rows = min(
                elements // (self._forward_passes * n_values),
                MAX_OUTPUTS // made,
                MAX_ROWS,
            )
            network = self._network_for(len(x))
            for part in torch.split(x, max(16, rows)):
                autocast = torch.autocast(device.type, torch.bfloat16, enabled=bf16)
                with torch.inference_mode(), autocast:
                    found = scores(network, part.to(device))
                values = found.float().cpu().numpy()
                if scores == self.scores and values.shape != (len(part), len(self.classes_)):
                    raise ValueError(
                        f"{type(self).__name__}.scores returned the shape {values.shape} for "
                        f"{len(part)} inputs and {len(self.classes_)} classes"
                    )
                if not np.isfinite(values).all():  # the first class would win, whatever X is
                    raise ValueError(
                        "the network's outputs for X are not finite numbers: X holds values far "
                        "from those it was trained on, or the model is damaged"
                    )
                yield values

    def _network_for(self, n: int) -> Network:
        """Return the network that scores n samples: for many, one folded to be faster."""
        network = self.network_
        return network if n <= FEW else Network(for_inference(network.encoder), network.head)

    def _as_it_is(self) -> Self:
        """Return a copy that stays the same while another thread lets this model learn or forget.

        Both replace attributes all at once, and change none in place.
        """
        return copy.copy(self)

    @default_dtype_guard()
    def _all_scores(self, X: Any) -> NDArray[np.float32]:
        """Score all classes; shape (n, n_classes), float32."""
        return np.concatenate(list(self._as_it_is()._score_parts(X)))

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Score samples: (n, n_classes), or (n,) for two classes as scikit-learn has it.

        Columns are in the order of ``classes_``, which is the order of arrival. For two classes:
        the second's score minus the first's. scikit-learn's scorers that take scores ("roc_auc",
        "top_k_accuracy") expect sorted classes: pass their functions ``scores[:, order]``, and
        ``classes_[order]`` as labels, with ``order = np.argsort(classes_)``.
        """
        scores = self._all_scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    @default_dtype_guard()
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each sample."""
        now = self._as_it_is()
        # The highest score wins: Eq. 3 of the paper, for LMRC.
        winners = np.concatenate([scores.argmax(axis=1) for scores in now._score_parts(X)])
        labels: NDArray[Any] = now.classes_[winners]
        return labels

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy on samples; y may be left out where X is a ``Dataset`` of pairs."""
        if y is None and isinstance(X, torch.utils.data.Dataset):
            X, y = read_dataset(X)
        return float(super().score(X, y, sample_weight))

    @default_dtype_guard()
    def predict_topk(self, X: Any, k: int = 5) -> NDArray[Any]:
        """Return the k best classes of each sample, best first: shape (n, min(k, n_classes))."""
        if not isinstance(k, (int, np.integer)) or k < 1:
            raise ValueError(f"k={k!r} is not valid; it must be a whole number of at least 1")
        now = self._as_it_is()
        ranking = [
            np.argsort(-scores, axis=1, kind="stable")[:, :k] for scores in now._score_parts(X)
        ]
        labels: NDArray[Any] = now.classes_[np.concatenate(ranking)]
        return labels
