"""Classifiers with label vectors: forget and rename classes, check saved models."""

import copy
import itertools
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmrc.data.validation import read_labels, shortest_type
from lmrc.labels import theory
from lmrc.labels.errors import warn_of_capacity
from lmrc.labels.mapping import LabelMapping
from lmrc.methods.base import Fitted
from lmrc.methods.rng import one_way_seeds
from lmrc.nets.erasing import erase_class, remove_head, without_row
from lmrc.training.device import default_dtype_guard

NEARLY_FULL = (4, 5)  # share of the likely capacity at which the user is warned


class LabelVectors(Fitted):
    """What a classifier with label vectors and one head per task does beside learning."""

    labels_: dict[str, Tensor]  # "vectors": the label vectors, (classes[, rotations], dim)
    threshold_: float
    label_dim: int
    parameters: Any
    class_weight: Any
    random_state: Any

    @default_dtype_guard()
    def forget(self, label: Any) -> Self:
        """Delete a class: its label vectors, statistics, exemplars, and its head's response to it.

        A head that had no other class is deleted. Prediction rules are fitted again to the
        statistics of the other classes. The seed changes (so does an int ``random_state``), so that
        the label vectors cannot be sampled again. The class is never predicted again. Shared
        weights still contain what they have learnt from its images: see ``docs/privacy.md``.

        Parameters
        ----------
        label : int or str
            A class of ``classes_``, and not the only one.
        """
        row = self._row_of(label)
        if len(self.classes_) == 1:
            raise ValueError(f"{label!r} is the only class: remove the whole model instead")
        head = int(np.searchsorted(np.cumsum(self._head_sizes), row, side="right"))
        end = sum(self._head_sizes[: head + 1])
        others = [other for other in range(end - self._head_sizes[head], end) if other != row]
        draft = copy.copy(self)  # attributes are replaced, never changed in place
        # Where the caller is in inference mode, there are no gradients.
        with torch.inference_mode(False):
            draft.network_ = copy.deepcopy(self.network_)
            heads = draft.network_.head
            rng = torch.Generator().manual_seed(draft._move_seed_on())
            if others:
                vectors = self.labels_["vectors"].to(heads.weight.device)
                vectors = vectors.view(len(vectors), -1, vectors.shape[-1])  # with rotations or not
                erase_class(heads, head, vectors[row], vectors[others], rng)
            else:
                remove_head(heads, head)
            draft.labels_ = {"vectors": without_row(self.labels_["vectors"], row)}
            sizes = [size - (i == head) for i, size in enumerate(self._head_sizes)]
            draft.classes_ = shortest_type(np.delete(self.classes_, row))
            draft.heads_ = np.split(draft.classes_, np.cumsum([n for n in sizes if n])[:-1])
            draft.class_weight = reweighed(self.class_weight, label)
            draft.memory_ = self.memory_.without(row) if self.memory_ else None
            draft._forget_class(row)
        self.__dict__ = draft.__dict__
        return self

    def _forget_class(self, row: int) -> None:
        """Delete further data of a class, beside label vectors, head and exemplars."""

    def _move_seed_on(self) -> int:
        """Replace the seed, so that no earlier sample can be repeated; return another, to use once.

        Seeds are reproducible, but they also depend on the heads' weights: these cannot be
        reconstructed after a class is erased.
        """
        secret = self.network_.head.weight.detach().cpu().numpy().tobytes()
        self.seed_, other = one_way_seeds(self.seed_, secret)
        if isinstance(self.random_state, (int, np.integer)):
            self.random_state = self.seed_
        return other

    def rename(self, label: Any, name: Any) -> Self:
        """Give a class another name. No data is needed.

        Parameters
        ----------
        label : int or str
            A class of ``classes_``.
        name : int or str
            The new name: of the same type, and not the name of another class.
        """
        row, labels, name = self._row_of(label), self.classes_.tolist(), np.asarray(name).item()
        if name in labels:
            raise ValueError(f"{name!r} is a class already, and two classes cannot become one")
        if type(name) is not type(labels[row]):
            raise ValueError(f"{name!r} is not of the same type as {labels[row]!r}")
        if not str(name).strip():
            raise ValueError("a name of a class cannot be empty")
        labels[row] = name
        draft = copy.copy(self)
        kind = read_labels([name], 1).dtype  # which may be longer
        renamed = np.array(labels, np.promote_types(self.classes_.dtype, kind))
        draft.classes_ = shortest_type(renamed)
        draft.heads_ = np.split(draft.classes_, np.cumsum(self._head_sizes)[:-1])
        draft.class_weight = reweighed(self.class_weight, label, name)
        self.__dict__ = draft.__dict__
        return self

    def _check_prediction_rule(self) -> None:
        """Raise a ValueError for a prediction rule that the model cannot apply."""

    def check_saved(self) -> None:
        """Refuse label vectors and a threshold that do not fit."""
        vectors = self.labels_.get("vectors", torch.zeros(0))
        wanted = self._label_vectors_shape()
        if tuple(vectors.shape) != wanted or vectors.dtype != torch.float32:
            raise ValueError(f"its label vectors are not of shape {wanted} in float32")
        constraint = self.parameters["threshold"].constraint
        if constraint and not constraint.test(self.threshold_):
            raise ValueError(f"its threshold is {self.threshold_!r}")

    def _label_vectors_shape(self) -> tuple[int, ...]:
        return (len(self.classes_), self.label_dim)

    @property
    def label_vectors_(self) -> NDArray[np.float32]:
        """Label vectors, rows as ``classes_``."""
        if "network_" not in vars(self):
            raise AttributeError("label_vectors_ exists once a task has been learnt")
        return np.array(self.labels_["vectors"].cpu().numpy())

    @property
    def _n_outputs(self) -> int:  # values of a forward pass
        return len(self.heads_) * self.label_dim

    def _with_exemplars(self, k: int) -> list[bool]:
        """Return for each of the first k heads whether there are exemplars of all its classes."""
        stored = self.memory_.classes if self.memory_ else frozenset()
        sizes = self._head_sizes[:k]
        ends = itertools.accumulate(sizes)
        return [stored.issuperset(range(end - n, end)) for n, end in zip(sizes, ends, strict=True)]

    @property
    def _head_sizes(self) -> list[int]:  # classes of each head
        return [len(head) for head in getattr(self, "heads_", ())]

    def _row_of(self, label: Any) -> int:
        check_is_fitted(self)
        truth = np.asarray(label).dtype.kind == "b"
        is_label = np.ndim(label) == 0 and truth == (self.classes_.dtype.kind == "b")
        if not is_label or not (found := self.classes_ == label).any():
            raise ValueError(f"{label!r} is none of the classes {self.classes_.tolist()}")
        return int(found.argmax())


def reweighed(weights: Any, label: Any, name: Any = None) -> Any:
    """Return ``class_weight`` without a class, or with it under another name."""
    if not isinstance(weights, Mapping):
        return weights
    kept = {of: weight for of, weight in weights.items() if of != label or name is not None}
    return {name if of == label else of: weight for of, weight in kept.items()}


def warn_if_nearly_full(mapping: LabelMapping, n_new: int, threshold: float, on_full: str) -> None:
    """Warn at the task that passes the mark; never after the mapping was relaxed.

    Parameters
    ----------
    mapping : LabelMapping
        With the new label vectors.
    n_new : int
        Their number.
    threshold, on_full
        As the classifier has them.
    """
    likely = theory.likely(mapping.dim, mapping.threshold, mapping.max_tries)
    share, of = NEARLY_FULL
    mark = -(-share * likely // of)  # in whole numbers: there may be more than a float holds
    n_vectors = len(mapping)
    if mapping.threshold == threshold and n_vectors - n_new < mark <= n_vectors:
        relax = on_full == "relax"
        end = "the threshold will be raised bit by bit" if relax else "CapacityError is raised"
        warn_of_capacity(
            f"{n_vectors} label vectors of about {likely} that label_dim={mapping.dim} holds "
            f"under threshold={mapping.threshold:g} are in use. Once it is full, {end}; a new "
            "model with a larger label_dim has more room"
        )
