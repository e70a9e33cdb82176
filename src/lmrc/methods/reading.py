"""What a user gives a classifier, checked against what it was fitted on."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data
from torch import Tensor

from lmrc.data.image_files import ImageFiles
from lmrc.data.inputs import Inputs, Streamed
from lmrc.data.validation import (
    as_tensor,
    is_image_batch,
    items_of,
    read_dataset,
    read_images,
    read_labels,
    stack_items,
)

AT_A_TIME = 4096  # items of a Dataset, or images on disk, that are in memory while it is predicted


def read_task(model: Any, X: Any, y: Any, first: bool) -> tuple[Inputs, NDArray[Any]]:
    """Read a task's inputs and labels."""
    _refuse_loader(X)
    if isinstance(X, torch.utils.data.Dataset):
        X, own = read_dataset(X)
        y = own if y is None else y
    if y is None:
        name = type(model).__name__
        raise ValueError(f"{name} requires y to be passed, but the target y is None")
    x = read_inputs(model, X, first)
    return x, read_labels(y, len(x))


def read_inputs(model: Any, X: Any, first: bool = False) -> Inputs:
    """Read inputs of the shape the model was fitted on; the first ones set that shape."""
    _refuse_loader(X)
    if isinstance(X, torch.utils.data.Dataset):
        X, _ = read_dataset(X)
    if isinstance(X, (list, tuple)) and not len(X):
        raise ValueError("X is empty: at least one sample is needed")
    if isinstance(X, (list, tuple)):
        if not isinstance(X[0], (list, tuple)) and np.ndim(X[0]):  # arrays, tensors, images
            X, _ = stack_items(list(X))
        elif np.ndim(X) > 2:
            X = np.asarray(X)
    if getattr(X, "ndim", 2) > 4:
        raise ValueError(
            f"X has {X.ndim} axes: vectors have two, (n, features), images three or four, "
            "(n, height, width[, channels])"
        )
    x: Inputs
    if isinstance(X, ImageFiles):
        x = Streamed(X)
    elif is_image_batch(X):
        x = read_images(X)
    else:
        if isinstance(X, Tensor):
            X = X.detach().cpu()
            X = (X.float() if X.dtype == torch.bfloat16 else X).numpy()  # NumPy has no such type
        if first or len(model.input_shape_) == 1:
            X = validate_data(model, X, dtype=np.float32, reset=first)
        x = as_tensor(np.asarray(X, dtype=np.float32))
    shape = tuple(x.shape[1:])
    if first:
        model.input_shape_ = shape
    elif shape != model.input_shape_:
        one = _is_one(X, model.input_shape_)
        raise ValueError(
            f"X holds {_describe(shape)}, but {type(model).__name__} was fitted on "
            f"{_describe(model.input_shape_)}: "
            + ("one image alone is passed as X[None]" if one else "bring X to that shape")
        )
    return x


def read_parts(model: Any, X: Any) -> Iterator[Tensor]:
    """Read inputs part by part: a ``Dataset`` is never in memory whole."""
    if isinstance(X, ImageFiles):
        for pixels in X.chunks(AT_A_TIME):
            yield read_inputs(model, pixels)[:]
        return
    if not isinstance(X, torch.utils.data.Dataset):
        yield read_inputs(model, X)[:]
        return
    items = items_of(X)
    part = list(itertools.islice(items, AT_A_TIME))
    while True:
        inputs, _ = stack_items(part)  # which refuses an empty one
        yield read_inputs(model, inputs)[:]
        if not (part := list(itertools.islice(items, AT_A_TIME))):
            return


def _refuse_loader(X: Any) -> None:
    if isinstance(X, torch.utils.data.DataLoader):
        raise ValueError(
            "X is a DataLoader: pass its dataset (loader.dataset); mini-batches are made here"
        )


def _is_one(X: Any, input_shape: tuple[int, ...]) -> bool:
    """Tell whether X is a single image, without the axis that counts them."""
    if len(input_shape) != 3:
        return False
    channels, height, width = input_shape
    whole = input_shape if isinstance(X, Tensor) else (height, width, channels)
    return tuple(np.shape(X)) in (whole, (height, width))


def _describe(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"vectors of {shape[0]} features"
    channels, height, width = shape
    return f"images of {height}×{width} pixels and {channels} channel{'s' * (channels > 1)}"
