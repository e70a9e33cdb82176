"""Validation of what users pass as X and y.

Vectors become float32 (n, features); images become (n, channels, height, width), uint8 or float32
in 0…1. Copies are avoided: a NumPy image batch becomes a channels-last view.
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from sklearn.utils import assert_all_finite, column_or_1d
from torch import Tensor

from lmrc.data.dataset import as_label_array, text_labels
from lmrc.data.images import pixels_of

CHANNELS = (1, 3, 4)

_WORDS = {"U": ("text", "text"), "b": ("True and False", "a truth value")}  # many labels, and one
_NUMBERS = ("numbers", "a number")


def is_image_batch(X: Any) -> bool:
    """Tell images (three or four axes) from vectors (two)."""
    return getattr(X, "ndim", 2) in (3, 4)


def read_images(X: NDArray[Any] | Tensor) -> Tensor:
    """Check a batch of images and view it as (n, channels, height, width), uint8 or float32."""
    images = X.detach().cpu() if isinstance(X, Tensor) else as_tensor(np.asarray(X))
    if len(images) == 0:
        raise ValueError("Found array with 0 sample(s): pass at least one image")
    if images.ndim == 3:
        images = images[:, None]
    elif not isinstance(X, Tensor):
        images = images.permute(0, 3, 1, 2)
    _check_channels(X, images)
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise ValueError(
            f"images of dtype {X.dtype} are not understood: pass uint8 in 0…255 or floats in 0…1"
            f"{_remedy(images)}"
        )
    images = images.float()
    low, high = (value.item() for value in images.aminmax())
    if not np.isfinite(low + high):
        raise ValueError("Input X contains NaN or infinity: remove or replace such pixels")
    if low < 0 or high > 1:
        raise ValueError(
            f"float images must lie in 0…1, but X spans {low:g}…{high:g}: pass uint8, or rescale; "
            "lmrc normalises by itself"
        )
    return images


def _remedy(images: Tensor) -> str:
    """Return how to convert pixels of another type; a plain cast would wrap large values."""
    if images.dtype == torch.bool:
        return ", such as X.astype(float)"
    if images.is_complex():
        return ""
    values = images.numpy()  # torch cannot compare unsigned numbers of 16 bits and more
    low, high = int(values.min()), int(values.max())
    if low >= 0 and high <= 255:
        return ", such as X.astype('uint8')"
    return f"; X spans {low}…{high}, so scale it, as X / 65535 does for 16 bits a pixel"


def as_tensor(array: NDArray[Any]) -> Tensor:
    """View an array as a tensor; it is only ever read, so a read-only one is fine."""
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable.*")
            return torch.from_numpy(array)
    except TypeError as error:
        raise ValueError(
            f"X of dtype {array.dtype} is not numeric: pass uint8 or floats"
        ) from error


def _check_channels(X: NDArray[Any] | Tensor, images: Tensor) -> None:
    if images.shape[1] in CHANNELS:
        return
    is_tensor = isinstance(X, Tensor)
    last, first = "(n, height, width, channels)", "(n, channels, height, width)"
    kind, wanted, other = ("torch tensors", first, last) if is_tensor else ("arrays", last, first)
    fix = "X.permute(0, 3, 1, 2)" if is_tensor else "np.moveaxis(X, 1, -1)"
    swapped = X.shape[-1 if is_tensor else 1] in CHANNELS
    raise ValueError(
        f"images as {kind} have shape {wanted} with 1, 3 or 4 channels, but X has shape "
        f"{tuple(X.shape)}: " + (f"it looks like {other}, use {fix}" if swapped else "reshape it")
    )


def read_labels(y: Any, n_samples: int) -> NDArray[Any]:
    """Check labels (ints, strings, bools; one per sample) and return them as an array.

    Numbers become int64, whatever type they have: from one task to the next it may change.
    """
    if isinstance(y, Tensor):
        y = y.detach().cpu().numpy()
    elif hasattr(y, "to_numpy"):
        y = y.to_numpy()  # whole numbers of pandas that may be missing would become floats
    labels: NDArray[Any] = column_or_1d(as_label_array(y), warn=True)
    if len(labels) != n_samples:
        raise ValueError(
            f"X and y have inconsistent numbers of samples: {n_samples} in X, {len(labels)} in y; "
            "pass one label per sample"
        )
    if labels.dtype.kind == "O":
        labels = _of_one_kind(labels)
    if labels.dtype.kind == "f":
        assert_all_finite(labels, input_name="y")
        if (labels != np.round(labels)).any():
            raise ValueError(
                "Unknown label type: continuous values such as "
                f"{labels[labels != np.round(labels)][0]:g}; labels are ints or strings"
            )
    elif labels.dtype.kind not in "biuU":
        raise ValueError(f"Unknown label type: {labels.dtype}; labels are ints or strings")
    return _whole_numbers(labels) if labels.dtype.kind in "iuf" else labels


def shortest_type(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels in the shortest type: text of a slice keeps the length of the whole array's.

    >>> shortest_type(np.array(["cat", "hippopotamus"])[:1]).dtype.str
    '<U3'
    """
    return np.array(labels.tolist(), dtype=str) if labels.dtype.kind == "U" else labels


def _whole_numbers(labels: NDArray[Any]) -> NDArray[np.int64]:
    """Return numbers in the one type that has room for all: 3.0 is the class 3, and 256 not 0."""
    if labels.dtype.kind == "f":
        beyond = labels[np.abs(labels) >= 2.0**63]
    else:
        beyond = labels[labels > np.uint64(2**63 - 1)] if labels.dtype.kind == "u" else labels[:0]
    if len(beyond):
        raise ValueError(f"the label {beyond[0]} is too large for a number of 64 bits: use text")
    return labels.astype(np.int64)


def _of_one_kind(labels: NDArray[Any]) -> NDArray[Any]:
    """Return an array of objects as one of text, truth values or whole numbers."""
    kinds = {type(label) for label in labels}
    for types, dtype in (((str,), str), ((bool, np.bool_), bool), ((int, np.integer), np.int64)):
        # In Python True is a number; as labels, True and 1 together are a mistake.
        if all(issubclass(k, types) and (dtype is bool or k is not bool) for k in kinds):
            return text_labels(labels) if dtype is str else labels.astype(dtype)
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise ValueError(
        f"Unknown label type: labels are ints or strings, all of one type, but y holds {names}"
    )


def encode_labels(
    y: NDArray[Any], known: NDArray[Any], allowed: Any = None
) -> tuple[NDArray[Any], Tensor]:
    """Find the new classes of y, sorted, and each sample's index into (known, new).

    >>> new, index = encode_labels(np.array(["fox", "ant", "cat"]), np.array(["dog", "cat"]))
    >>> new.tolist(), index.tolist()
    (['ant', 'fox'], [3, 2, 1])
    """
    present = np.unique(y)
    if allowed is not None:
        unexpected = np.setdiff1d(present, np.asarray(allowed))
        if len(unexpected):
            raise ValueError(
                f"y holds {unexpected[0].item()!r}, which is not in classes={allowed!r}"
            )
    was, now = (_WORDS.get(labels.dtype.kind, _NUMBERS) for labels in (known, present))
    if was != now:
        raise ValueError(
            f"labels so far were {was[0]}, but {present[0].item()!r} is {now[1]}: keep to one kind"
        )
    new = np.setdiff1d(present, known)
    classes = np.concatenate([known, new])
    by_label = np.argsort(classes)
    return new, torch.from_numpy(by_label[np.searchsorted(classes, y, sorter=by_label)])


def read_dataset(dataset: torch.utils.data.Dataset[Any]) -> tuple[Any, list[Any] | None]:
    """Read a torch ``Dataset`` into memory: stacked inputs, and labels where it has them.

    Items are inputs or (input, label) pairs; an input is a tensor (channels, height, width) or
    (features,), an array (height, width[, channels]) or (features,), or a PIL image.
    """
    return stack_items(list(items_of(dataset)))


def items_of(dataset: torch.utils.data.Dataset[Any]) -> Iterator[Any]:
    """Iterate over a ``Dataset`` of either kind."""
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return (dataset[i] for i in range(len(dataset)))
    return iter(dataset)  # an IterableDataset


def stack_items(items: list[Any]) -> tuple[Any, list[Any] | None]:
    """Stack items of a ``Dataset``: inputs, and labels where it has them."""
    if not items:
        raise ValueError("the dataset is empty: a task needs at least one sample")
    if isinstance(items[0], (tuple, list)) and len(items[0]) == 1:
        items = [item[0] for item in items]
    pairs = isinstance(items[0], (tuple, list)) and len(items[0]) == 2
    inputs = [item[0] for item in items] if pairs else items
    labels = None
    if pairs:
        labels = [y.item() if isinstance(y, (Tensor, np.generic)) else y for _, y in items]
    tensors = isinstance(inputs[0], Tensor)
    if not tensors:
        inputs = [pixels_of(x) if isinstance(x, Image) else np.asarray(x) for x in inputs]
    shapes = {tuple(x.shape) for x in inputs}
    if len(shapes) > 1:
        a, b = sorted(shapes)[:2]
        remedy = "resize" if len({shape[:2] for shape in shapes}) > 1 or tensors else "convert"
        raise ValueError(f"the inputs differ in shape ({a}, {b}): {remedy} them to one")
    return (torch.stack(inputs) if tensors else np.stack(inputs)), labels
