"""What a user gives a classifier, checked against what it was fitted on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from lmrc.data.inputs import (
    is_image_batch,
    items_of,
    read_dataset,
    read_images,
    read_labels,
    read_vectors,
    stack_items,
)
from lmrc.data.streamed import ImageFiles, Streamed

AT_A_TIME = 4096  # items of a Dataset, or images on disk, that are in memory while it is predicted


def read_batch(model: Any, X: Any, y: Any, first: bool) -> tuple[Tensor, NDArray[Any]]:
    """Read a class batch: inputs and labels."""
    if isinstance(X, torch.utils.data.Dataset):
        X, own = read_dataset(X)
        y = own if y is None else y
    if y is None:
        name = type(model).__name__
        raise ValueError(f"{name} requires y to be passed, but the target y is None")
    x = read_inputs(model, X, first)
    return x, read_labels(y, len(x))


def read_inputs(model: Any, X: Any, first: bool = False) -> Tensor:
    """Read inputs of the shape the model was fitted on; the first ones set that shape."""
    if isinstance(X, torch.utils.data.Dataset):
        X, _ = read_dataset(X)
    if isinstance(X, (list, tuple)) and np.ndim(X) > 2:
        X = np.asarray(X)
    if getattr(X, "ndim", 2) > 4:
        raise ValueError(
            f"X has {X.ndim} axes: vectors have two, (n, features), images three or four, "
            "(n, height, width[, channels])"
        )
    if isinstance(X, ImageFiles):
        x = cast(Tensor, Streamed(X))  # used like one
    elif is_image_batch(X):
        x = read_images(X)
    else:
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy()
        if first or len(model.input_shape_) == 1:
            X = validate_data(model, X, dtype=np.float32, reset=first)
        x = read_vectors(np.asarray(X, dtype=np.float32))
    shape = tuple(x.shape[1:])
    if first:
        model.input_shape_ = shape
    elif shape != model.input_shape_:
        raise ValueError(
            f"X holds {_describe(shape)}, but {type(model).__name__} was fitted on "
            f"{_describe(model.input_shape_)}: bring X to that shape"
        )
    return x


def read_parts(model: Any, X: Any) -> Iterator[Tensor]:
    """Read inputs part by part: a ``Dataset`` is never in memory whole."""
    if isinstance(X, ImageFiles):
        for pixels in X.chunks(AT_A_TIME):
            yield read_inputs(model, pixels)
        return
    if not isinstance(X, torch.utils.data.Dataset):
        yield read_inputs(model, X)
        return
    items = items_of(X)
    part = list(itertools.islice(items, AT_A_TIME))
    while True:
        inputs, _ = stack_items(part)  # which refuses an empty one
        yield read_inputs(model, inputs)
        if not (part := list(itertools.islice(items, AT_A_TIME))):
            return


def _describe(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"vectors of {shape[0]} features"
    channels, height, width = shape
    return f"images of {height}×{width} pixels and {channels} channel{'s' * (channels > 1)}"
