"""Your own arrays: NumPy's ``.npz`` files."""

import os
import zipfile
import zlib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lmrc.data.dataset import Array, Dataset
from lmrc.data.folders import TEST_SHARE, held_out
from lmrc.text import shorten

_TEST_PARTS = ("test", "val")  # the first that is there counts


def npz(path: str | os.PathLike[str]) -> Dataset:
    """Return the arrays X, images (n, height, width[, channels]) or vectors, and y of a file.

    Samples to test with are in X_test and y_test (or X_val and y_val). Where they are not, a fifth
    of each class's samples (at least one; chosen at random, but the same every time) is set aside.
    `note` of the data set says which.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.savez(f"{place}/own.npz", X=np.zeros((20, 3)), y=np.repeat([0, 1], 10))
    ...     npz(f"{place}/own.npz")
    Dataset('own': 16 training and 4 test samples of shape (3,), float64, 2 classes)
    """
    file = Path(path).expanduser()
    X, y, X_test, y_test, place = load_parts(file, _TEST_PARTS)
    if place:
        return Dataset(file.stem, X, y, X_test, y_test, note=f"Test samples from {place}.")
    if y.ndim != 1 or len(X) != len(y) or not len(y):
        return Dataset(file.stem, X, y, X[:0], y[:0])  # raises the error
    labels, counts = np.unique(y, return_counts=True)
    if counts.min() < 2:
        raise ValueError(
            f"class {labels[counts.argmin()].item()!r} of {file} has a single sample; add at least "
            "one, since one is kept for testing, or put X_test and y_test into the file."
        )
    kept, held = rows_held_out(y, TEST_SHARE)
    note = f"Test samples: {100 * TEST_SHARE:.0f} % of each class, drawn once and for all."
    return Dataset(file.stem, X[kept], y[kept], X[held], y[held], note=note)


def load_parts(source: Path, parts: Sequence[str]) -> tuple[Array, Array, Array, Array, str]:
    """Read X and y, X and y of the first of the `parts` in the file, and the name of its X.

    Without such a part, such as X_test and y_test, its arrays have no rows and the name is empty.
    """
    pairs = [(f"X_{part}", f"y_{part}") for part in parts]
    arrays = load_arrays(source, "X", "y", more=[*chain(*pairs)])
    X, y = arrays["X"], arrays["y"]
    for in_X, in_y in pairs:
        if in_X in arrays and in_y in arrays:
            return X, y, arrays[in_X], arrays[in_y], in_X
    return X, y, X[:0], y[:0], ""


def rows_held_out(y: Array, share: float) -> tuple[list[int], list[int]]:
    """Split rows by class: the training rows, and a share of each class that is held out."""
    parts = [held_out(np.flatnonzero(y == label).tolist(), share) for label in np.unique(y)]
    kept, held = (sorted(chain(*rows)) for rows in zip(*parts, strict=True))
    return kept, held


def load_arrays(source: Path, *needed: str, more: Sequence[str] = ()) -> dict[str, Array]:
    """Read arrays of an ``.npz`` file by name: those needed, and others if present."""
    try:
        if source.exists() and not source.is_file():
            raise ValueError("it is not a file")
        with np.load(source, allow_pickle=False) as arrays:
            names = [*needed, *(name for name in more if name in arrays)]
            found = {name: arrays[name] for name in names}
            for name, array in found.items():
                if not isinstance(array, np.ndarray):
                    raise ValueError(f"{name} is no array")
                if array.ndim and len(array) and not array.size:
                    raise ValueError(f"{name} has the shape {array.shape}: samples without values")
            return found
    except (ValueError, KeyError, OSError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{source} cannot be read as an .npz file with {' and '.join(needed)}: {_words(error)}"
        ) from error
    except (zlib.error, NotImplementedError, RuntimeError, TypeError, OverflowError) as error:
        raise ValueError(f"{source} is damaged: {_words(error)}") from error


def _words(error: Any) -> str:
    if "Object arrays" in str(error):
        return "it holds Python objects: store text as text, y.astype(str), and X as numbers"
    return shorten(str(error) or type(error).__name__, 300)


def shape_of_samples(path: Path) -> tuple[int, ...]:
    """Return the shape of X in an ``.npz`` file, by its header alone; (0,) if it cannot be read."""
    try:
        with zipfile.ZipFile(path) as file, file.open("X.npy") as array:
            version = np.lib.format.read_magic(array)
            read = np.lib.format.read_array_header_1_0
            read = read if version == (1, 0) else np.lib.format.read_array_header_2_0
            return read(array)[0] or (0,)
    except (OSError, LookupError, ValueError, EOFError, zipfile.BadZipFile, NotImplementedError):
        return (0,)  # who reads the arrays says what is wrong
