"""Classes that can be taken out of a model, or get another name."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from lmrc.data.validation import read_labels, shortest_type
from lmrc.methods.base import Fitted
from lmrc.methods.rng import one_way_seeds
from lmrc.nets.erasing import erase_class, remove_head, without_row
from lmrc.training.device import default_dtype_guard


class AmendableClasses(Fitted):
    """A classifier with one head per task whose classes can be forgotten or renamed."""

    labels_: dict[str, Tensor]  # "vectors": the label vectors, (classes[, rotations], dim)
    class_weight: Any
    random_state: Any

    @default_dtype_guard()
    def forget(self, label: Any) -> Self:
        """Take out a class: label vectors, statistics, exemplars, and how its head responds to it.

        The head goes where the class was alone in it. What prediction makes of the statistics is
        made anew from those of the other classes, and the seed moves on (so does an int
        ``random_state``): the class's label vectors cannot be drawn again from it. The class is
        never predicted again. The shared weights still carry what they have learnt from its
        images; ``docs/privacy.md`` says what that means.

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
        """Take out what else is kept of a class; what heads and classifier have is gone already."""

    def _move_seed_on(self) -> int:
        """Let nothing be drawn again from the seed so far; return one that is stored nowhere.

        The same calls give the same seeds. They come of the heads' weights, too, which no one can
        tell once some of them have gone.
        """
        secret = self.network_.head.weight.detach().cpu().numpy().tobytes()
        self.seed_, other = one_way_seeds(self.seed_, secret)
        if isinstance(self.random_state, (int, np.integer)):
            self.random_state = self.seed_
        return other

    def rename(self, label: Any, name: Any) -> Self:
        """Give a class another name: a misspelt one cannot be learnt anew once its data is gone.

        Parameters
        ----------
        label : int or str
            A class of ``classes_``.
        name : int or str
            What it is called from now on: no class yet, and of the same type.
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
