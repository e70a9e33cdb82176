"""Prediction: what every classifier makes of its scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmrc.data.inputs import read_dataset
from lmrc.methods.reading import read_inputs
from lmrc.nets.network import Network
from lmrc.training.device import use_bf16

PREDICT_ELEMENTS = 2**22  # input values per prediction batch: bounded memory, good throughput
MOST_ROWS = 4096  # and rows, as each has an answer from every head


class Predictor(ClassifierMixin, BaseEstimator, ABC):
    """A classifier that scores every class and lets the highest score win."""

    classes_: NDArray[Any]
    network_: Network
    precision: str

    @abstractmethod
    def scores(self, network: Network, x: Tensor) -> Tensor:
        """Return one score per class, (n, n_classes): the highest wins."""

    def _all_scores(self, X: Any) -> NDArray[np.float32]:
        """Score all classes, batch by batch; shape (n, n_classes), float32."""
        check_is_fitted(self)
        x = read_inputs(self, X)
        device = self.network_.trunk.mean.device
        size = max(16, min(MOST_ROWS, PREDICT_ELEMENTS // x[0].numel()))
        bf16 = use_bf16(self.precision, device)
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            parts = [
                self.scores(self.network_, part.to(device)).cpu() for part in torch.split(x, size)
            ]
        return torch.cat(parts).float().numpy()

    def decision_function(self, X: Any) -> NDArray[np.float32]:
        """Score samples: (n, n_classes), or (n,) for two classes as scikit-learn has it.

        Columns are as ``classes_``. For two classes: the second's score less the first's.
        """
        scores = self._all_scores(X)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each sample."""
        winners = self._all_scores(X).argmax(axis=1)
        labels: NDArray[Any] = self.classes_[winners]
        return labels

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy on samples; y may be left out where X is a ``Dataset`` of pairs."""
        if y is None and isinstance(X, torch.utils.data.Dataset):
            X, y = read_dataset(X)
        return float(super().score(X, y, sample_weight))

    def predict_topk(self, X: Any, k: int = 5) -> NDArray[Any]:
        """Return the k best classes of each sample, best first: shape (n, min(k, n_classes))."""
        if not isinstance(k, (int, np.integer)) or k < 1:
            raise ValueError(f"k={k!r} is not valid; it must be a whole number of at least 1")
        ranking = np.argsort(-self._all_scores(X), axis=1, kind="stable")
        labels: NDArray[Any] = self.classes_[ranking[:, :k]]
        return labels
