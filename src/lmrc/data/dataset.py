"""The one type of all data sets: labelled samples, split into a training and a test part."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from lmrc.data.image_files import ImageFiles

Array = NDArray[Any]


@dataclass(frozen=True, eq=False, repr=False)  # arrays neither compare nor print usefully
class Dataset:
    """Labelled samples, split into a training and a test part.

    Memory-mapped arrays stay memory-mapped: nothing is copied here.

    Parameters
    ----------
    name : str
        What to call the data set in records and reports.
    X_train, X_test : ndarray of shape (n, height, width[, channels]) or (n, features)
        Images (uint8) or vectors (float); both parts alike but for `n`. Images as tensors are of
        shape (n, channels, height, width).
    y_train, y_test : ndarray of shape (n,)
        Class labels, ints or strings. Each class of the test part occurs in the training part.
    class_names : mapping of label to str, default={}
        What to call a class where its label says little, as for the numbers of CIFAR-100.
    note : str, default=""
        What a reader of a report must know about how these samples were chosen.

    Examples
    --------
    >>> from lmrc.data.datasets import Dataset
    >>> pets = Dataset("pets", [[0.0], [1.0]], ["cat", "dog"], [[0.9]], ["dog"])
    >>> pets
    Dataset('pets': 2 training and 1 test samples of shape (1,), float64, 2 classes)
    >>> pets.classes.tolist()
    ['cat', 'dog']
    """

    name: str
    X_train: Array
    y_train: Array
    X_test: Array
    y_test: Array
    class_names: Mapping[Any, str] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            X = _checked_samples(getattr(self, f"X_{part}"), f"X_{part}")
            y = _checked_labels(getattr(self, f"y_{part}"), f"y_{part}")
            if len(X) != len(y):
                raise ValueError(
                    f"X_{part} holds {len(X)} samples but y_{part} {len(y)} labels; "
                    "give one label per sample."
                )
            # The dataclass is frozen for its users, not for its own conversion of lists.
            object.__setattr__(self, f"X_{part}", X)
            object.__setattr__(self, f"y_{part}", y)
        if len(self.y_train) == 0:
            raise ValueError("X_train holds 0 samples; a data set needs at least one to learn.")
        self._check_parts_agree()

    def _check_parts_agree(self) -> None:
        train, test = self.X_train, self.X_test
        if (train.shape[1:], train.dtype) != (test.shape[1:], test.dtype):
            raise ValueError(
                f"X_train holds samples of shape {train.shape[1:]} and type {train.dtype}, X_test "
                f"of shape {test.shape[1:]} and type {test.dtype}; prepare both parts alike."
            )
        if (self.y_train.dtype.kind == "U") != (self.y_test.dtype.kind == "U"):
            raise ValueError(
                f"y_train has type {self.y_train.dtype}, y_test {self.y_test.dtype}; "
                "use ints in both or strings in both."
            )
        unknown = np.setdiff1d(self.y_test, self.y_train).tolist()
        if unknown:
            raise ValueError(
                "y_test holds classes that y_train does not, such as "
                f"{unknown[:5]}; remove their samples or add some to the training part."
            )

    @classmethod
    def from_torch(cls, train: Any, test: Any, name: str = "data") -> Dataset:
        """Return a data set of two torch ``Dataset``, read into memory.

        Parameters
        ----------
        train, test : torch.utils.data.Dataset
            Of (input, label) items, as `partial_fit` takes them.
        name : str, default="data"
            What to call it in records and reports.
        """
        from lmrc.data.validation import read_dataset  # imports this module

        parts = []
        for part in (train, test):
            if not isinstance(part, TorchDataset):
                raise TypeError(f"a torch Dataset is needed, got {type(part).__name__}")
            X, y = read_dataset(part)
            if y is None:
                raise ValueError("the items of the torch Dataset are not (input, label) pairs")
            parts += [X, y]
        return cls(name, *parts)

    @property
    def classes(self) -> Array:
        """The class labels in natural order: sorted, each once."""
        return np.unique(self.y_train)

    @cached_property
    def digest(self) -> str | None:
        """A digest of all samples; None if images stay on disk, as they may on small machines."""
        arrays: list[Any] = [self.X_train, self.y_train, self.X_test, self.y_test]
        return None if any(isinstance(a, ImageFiles) for a in arrays) else digest(*arrays)

    def as_vectors(self) -> Dataset:
        """Return the data set with each sample as one float32 vector, uint8 scaled to 0…1.

        For learners that take vectors only, as most of scikit-learn's do. This copies the samples.

        Examples
        --------
        >>> from lmrc.data.datasets import digits
        >>> digits().as_vectors()
        Dataset('digits': 1347 training and 450 test samples of shape (64,), float32, 10 classes)
        """
        scale = np.float32(255 if self.X_train.dtype == np.uint8 else 1)
        X_train, X_test = (
            np.asarray(X).reshape(len(X), int(np.prod(X.shape[1:]))).astype(np.float32) / scale
            for X in (self.X_train, self.X_test)
        )
        return replace(self, X_train=X_train, X_test=X_test)

    def first_per_class(self, limit: int) -> Dataset:
        """Return the data set with no more than the first `limit` samples of each class.

        The training and the test part are limited alike; the order stays. This copies the samples
        it keeps.

        Examples
        --------
        >>> from lmrc.data.datasets import digits
        >>> digits().first_per_class(5)
        Dataset('digits': 50 training and 50 test samples of shape (8, 8), uint8, 10 classes)
        """
        check_limit(limit)
        train, test = (_first_per_class(y, limit) for y in (self.y_train, self.y_test))
        return replace(
            self,
            X_train=self.X_train[train],
            y_train=self.y_train[train],
            X_test=self.X_test[test],
            y_test=self.y_test[test],
            note=f"{self.note} {limit_note(limit)}".strip(),
        )

    def validation_split(self, fraction: float) -> Dataset:
        """Return the data set with some of its training samples in the place of the test part.

        For choosing settings: what is chosen by the test part cannot be tested on it any more.
        The samples are chosen class by class, the same every time. This copies the samples.

        Parameters
        ----------
        fraction : float
            Share of each class's training samples, between 0 and 1; at least one of them is held
            out, and at least one is left to learn.

        Examples
        --------
        >>> from lmrc.data.datasets import digits
        >>> digits().validation_split(0.1)
        Dataset('digits': 1211 training and 136 test samples of shape (8, 8), uint8, 10 classes)
        """
        if not 0 < fraction < 1:
            raise ValueError(f"fraction must lie between 0 and 1, got {fraction!r}.")
        held_out = np.zeros(len(self.y_train), dtype=bool)
        for label in self.classes.tolist():
            of_class = np.flatnonzero(self.y_train == label)
            if len(of_class) < 2:
                raise ValueError(
                    f"class {label!r} has a single training sample, so none can be held out; add "
                    "some, or leave the class out."
                )
            held_out[of_class[sample_share(len(of_class), fraction)]] = True
        return replace(
            self,
            X_train=self.X_train[~held_out],
            y_train=self.y_train[~held_out],
            X_test=self.X_train[held_out],
            y_test=self.y_train[held_out],
            note=f"{self.note} {validation_note(fraction)}".strip(),
        )

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name!r}: {len(self.y_train)} training and {len(self.y_test)} test "
            f"samples of shape {self.X_train.shape[1:]}, {self.X_train.dtype}, "
            f"{len(self.classes)} classes)"
        )


def _checked_samples(values: Any, name: str) -> Array:
    if isinstance(values, ImageFiles):
        return values  # type: ignore[return-value]  # behaves as an array, never in memory whole
    if isinstance(values, Tensor):  # of which images have their channels first
        values = values.detach().cpu()
        values = (values.permute(0, 2, 3, 1) if values.ndim == 4 else values).numpy()
        values = values[..., 0] if values.ndim == 4 and values.shape[-1] == 1 else values
    X: Array = np.asanyarray(values)  # asarray would strip np.memmap of its type
    if X.ndim < 2 or X.dtype.kind not in "buif":
        raise ValueError(
            f"{name} must be numbers of shape (n, features) or (n, height, width[, channels]), "
            f"got shape {X.shape} and type {X.dtype}."
        )
    return X


def digest(*arrays: Any) -> str:
    """Return a digest of arrays; of image files, names and sizes count."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.shape} {array.dtype}".encode())
        if isinstance(array, ImageFiles):
            for i in range(len(array)):
                file = array.path(i)
                size = file.stat().st_size if isinstance(file, Path) else file.seek(0, os.SEEK_END)
                found.update(f"{file.name} {size}\n".encode(errors="replace"))
            continue
        for part in np.array_split(array, max(1, array.nbytes >> 26)):  # 64 MiB at a time
            found.update(np.ascontiguousarray(part).tobytes())
    return found.hexdigest()


def as_label_array(labels: Any) -> Any:
    """Return a list of text, or with True among others, as an array of objects; else as it is.

    NumPy would make text of the numbers in it: [1, "a"] is a mistake, not the classes "1" and "a".
    """
    if isinstance(labels, list | tuple) and (
        any(isinstance(label, str) for label in labels)
        or len({isinstance(label, bool | np.bool_) for label in labels}) > 1
    ):
        return np.array(labels, dtype=object)
    return labels


def text_labels(labels: Iterable[str]) -> Array:
    """Return text as an array; refuse trailing zeros: NumPy drops them, and classes could merge."""
    names = list(labels)
    for name in names:
        if name.endswith("\0"):
            raise ValueError(f"the label {name!r:.100} ends in a zero character: remove that")
    return np.array(names, dtype=str)


def _checked_labels(values: Any, name: str) -> Array:
    y: Array = np.asanyarray(as_label_array(values))
    if y.dtype.kind == "O" and all(isinstance(label, str) for label in y.flat):
        y = text_labels(y.flat).reshape(y.shape)  # what pandas makes of a column of text
    if y.ndim != 1:
        raise ValueError(f"{name} must be of shape (n,), got {y.shape}; pass one label per sample.")
    if y.dtype.kind not in "iuU" and len(y):
        raise ValueError(
            f"{name} must hold ints or strings, got type {y.dtype}; convert it, for example with "
            f"{name}.astype(int) or {name}.astype(str)."
        )
    return y


def check_limit(limit: Any) -> None:
    """Reject an invalid number of samples per class."""
    if isinstance(limit, bool) or not isinstance(limit, Integral) or int(limit) < 1:
        raise ValueError(
            f"limit must be a number of images per class of at least 1, got {limit!r}; "
            "leave it out (None) to take them all."
        )


def limit_note(limit: int) -> str:
    """Return a note for reports: only some samples are used."""
    return f"Only the first {limit} images of each class, for training and for testing alike."


def validation_note(fraction: float) -> str:
    """Return a note for reports: scores are of a validation split."""
    return (
        f"A validation split: {100 * fraction:.3g} % of each class's training images (one at "
        "least, and not all), drawn once and for all, are not learnt but scored on, in the place "
        "of the test images; these are not looked at."
    )


def sample_share(n: int, share: float) -> Array:
    """Sample a share of n positions, the same every time: at least one, never all of several.

    The seed is the same for each class, so that more classes do not change the sample of one.
    """
    chosen = min(max(1, round(share * n)), max(1, n - 1))
    return np.random.default_rng(0).permutation(n)[:chosen]


def _first_per_class(y: Array, limit: int) -> Array:
    by_class = [np.flatnonzero(y == label)[:limit] for label in np.unique(y)]
    return np.sort(np.concatenate(by_class)) if by_class else np.arange(0)
