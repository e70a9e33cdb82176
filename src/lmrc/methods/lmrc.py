"""LMRC: Label Mapping with Response Consolidation. LM is LMRC with λ = 0."""

import itertools
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrc.data.inputs import Inputs
from lmrc.labels.mapping import LabelMapping
from lmrc.methods.base import IncrementalClassifier
from lmrc.methods.declared import LMRCParameters
from lmrc.methods.label_vectors import LabelVectors, warn_if_nearly_full
from lmrc.methods.rng import LABELS
from lmrc.nets.multihead import MultiHead, cosines
from lmrc.nets.network import Network
from lmrc.training.batches import MiniBatch
from lmrc.training.step import Losses


class LMRCClassifier(LMRCParameters, LabelVectors, IncrementalClassifier):
    """Label Mapping with Response Consolidation, as in the paper.

    Every class has a random unit vector, its label vector. Every task gets a head of its own,
    trained to respond with the label vector of the sample's class (New Classes Loss), while the
    older heads keep their responses (Response Loss). At prediction all heads respond, and the class
    whose label vector is nearest to its own head's response wins.

    There is no ``predict_proba``: similarities are not calibrated, so that a softmax over them
    is not a probability. Rank with ``similarities``, or calibrate on data of all classes.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        Class labels in order of arrival, sorted within a task.
    heads_ : list of arrays
        The classes of each head.
    label_vectors_ : array of shape (n_classes, label_dim)
        Label vectors, rows as ``classes_``. They never change.
    threshold_ : float
        The present threshold: higher than ``threshold`` once the mapping was relaxed.
    input_shape_ : tuple of int
        (features,) or (channels, height, width).
    history_ : list of dict
        Per epoch: task, learning rate, and the loss terms as minimised.
    network_ : nn.Module
        The network, in evaluation mode. Takes raw inputs, returns (batch, heads, label_dim).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from lmrc import LMRCClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = LMRCClassifier(random_state=0)
    >>> clf.partial_fit(X[y < 2], y[y < 2]).classes_
    array([0, 1])
    >>> clf.partial_fit(X[y == 2], y[y == 2]).classes_  # without the data of the other classes
    array([0, 1, 2])
    """

    predict_is_argmax = True  # of `scores`, which are the similarities
    saved_values: ClassVar[tuple[str, ...]] = (*IncrementalClassifier.saved_values, "threshold_")
    saved_tensors: ClassVar[tuple[str, ...]] = ("labels_",)

    def make_head(self, width: int, n_heads: int = 0, n_classes: int = 0) -> MultiHead:
        """Return the heads M₁ … M_k: normalised linear layers."""
        return MultiHead(width, self.label_dim, n_heads)

    def expand(self, network: Network, n_new: int) -> None:
        """Sample label vectors for the new classes (Algorithm 1), and open a head for them."""
        new = self._new_label_vectors(n_new).to(network.head.weight)
        known = [self.labels_["vectors"].to(new)] if hasattr(self, "labels_") else []
        self.labels_ = {"vectors": torch.cat([*known, new])}
        network.head.add_head()

    def _new_label_vectors(self, n_new: int) -> Tensor:
        """Return the label vectors of new classes, (n_new, d): far from those of all others."""
        mapping = LabelMapping(
            self.label_dim,
            max(self.threshold, getattr(self, "threshold_", self.threshold)),
            self.max_tries,
            self._seed(LABELS),
            vectors=self.labels_["vectors"].cpu().numpy() if hasattr(self, "labels_") else None,
        )
        vectors = mapping.extend(n_new, on_full=self.on_full)
        warn_if_nearly_full(mapping, n_new, self.threshold, self.on_full)
        self.threshold_: float = mapping.threshold
        return torch.from_numpy(vectors)

    def init_network(self, frozen: Network | None, x: Inputs) -> Network:
        """Return the network to train; put the label vectors on its device."""
        if frozen is not None:
            self.labels_ = {"vectors": self.labels_["vectors"].to(frozen.head.weight.device)}
        return super().init_network(frozen, x)

    @property
    def needs_old_outputs(self) -> bool:  # type: ignore[override]
        """Whether there is a Response Loss."""
        return self.response_weight > 0

    def losses(self, outputs: Tensor, old_outputs: Tensor | None, batch: MiniBatch) -> Losses:
        """Return the terms of Eq. 8; with samples of known classes, those of Eq. 10."""
        # The k old heads: all their classes were known before this task.
        k = sum(end <= batch.n_known for end in itertools.accumulate(self._head_sizes))
        # Responses o, (n, heads, d). Split once: its backward pass is one kernel.
        old, new = torch.split(outputs, [k, outputs.shape[1] - k], dim=1)
        terms = dict(self._class_losses(old, new, batch))
        if old_outputs is not None:  # the response vectors v̂, (n, k, d): Eq. 6
            response = (old * old_outputs).sum(dim=(1, 2))
            terms["response"] = -self.response_weight * response  # −λ Σᵢ Lᵢ, Eq. 7
        return terms  # their sum is Eq. 8; with "review", Eq. 10

    def _class_losses(self, old: Tensor, new: Tensor, batch: MiniBatch) -> Losses:
        """Return New Classes Loss and Review Loss; ``old`` are the responses of the k old heads."""
        vectors = self.labels_["vectors"].flatten(0, -2)
        c = self._expected(batch.targets, vectors)  # label vectors of the samples, (n, 1, d)
        terms, k = {}, old.shape[1]
        if new.shape[1]:
            terms["new"] = -(new * c).sum(dim=(1, 2))  # −Eq. 1
        if k and (reviewed := self._reviewed(batch, c, vectors, k)) is not None:
            terms["review"] = -(old * reviewed).sum(dim=-1).sum(dim=1)  # −Σᵢ L′ᵢ, Eq. 9
        return terms

    def _reviewed(self, batch: MiniBatch, c: Tensor, vectors: Tensor, k: int) -> Tensor | None:
        """Return the targets of the old heads, (n, 1 or k, d); None for no Review Loss.

        With exemplars, every head learns every class (Eq. 9). Beyond the paper: an old head without
        exemplars of all its classes learns only samples of known classes, where they come again;
        samples of new ones would overwrite it.
        """
        with_exemplars = self._with_exemplars(k)
        if all(with_exemplars):
            return c
        if not batch.reviews:
            return None
        n = batch.n_known * batch.n_rotations
        known = self._expected(batch.targets[:, :n], vectors[:n])
        if not any(with_exemplars):
            return known
        return torch.cat([c if has else known for has in with_exemplars], dim=1)

    @staticmethod
    def _expected(targets: Tensor, vectors: Tensor) -> Tensor:
        """Return the label vector of each sample's class, (n, 1, d): a mixture with CutMix."""
        with torch.autocast(targets.device.type, enabled=False):
            return (targets @ vectors)[:, None]

    def scores(self, network: Network, x: Tensor) -> Tensor:
        """Return the similarity of each class's label vector to its head's response (Eq. 2).

        `predict` takes the class with the highest (Eq. 3, Winner-Take-All).
        """
        o = network(x)
        vectors = self.labels_["vectors"].to(o.device)
        return torch.cat([part.flatten(1) for part in cosines(o, vectors, self._head_sizes)], dim=1)

    def similarities(self, X: Any) -> NDArray[np.float32]:
        """Return the cosine of each class's label vector to its head's response.

        Parameters
        ----------
        X : array, tensor or torch Dataset
            As in `partial_fit`.

        Returns
        -------
        array of shape (n, n_classes)
            Columns as ``classes_``, in −1 … 1. `predict` takes the highest (Eq. 3).
        """
        return self._all_scores(X)
