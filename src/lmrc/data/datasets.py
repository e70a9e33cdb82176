"""Named data sets, all of one type: one function each."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lmrc.data.arrays import npz
from lmrc.data.dataset import Array, Dataset, check_limit
from lmrc.data.folders import folder
from lmrc.data.public import cifar100, imagenet200, mnist

__all__ = ["Array", "Dataset", "digits", "load_dataset"]


def digits() -> Dataset:
    """Return scikit-learn's embedded digits: 1,797 grey images of 8×8 pixels, ten classes.

    Their pixels count ink from 0 to 16; here they are uint8, round(ink × 255 / 16), so that 16
    becomes 255. A quarter of them is the test part, stratified by class and always the same.

    Returns
    -------
    Dataset
        Images of shape (8, 8), labels 0 to 9.

    Examples
    --------
    >>> from lmrc.data.datasets import digits
    >>> digits()
    Dataset('digits': 1347 training and 450 test samples of shape (8, 8), uint8, 10 classes)
    """
    # Here, since they take a second to import, which all commands would.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    X_train, X_test, y_train, y_test = train_test_split(
        images, bunch.target, test_size=0.25, stratify=bunch.target, random_state=0
    )
    return Dataset("digits", X_train, y_train, X_test, y_test)


_LOADERS: dict[str, Callable[[str | os.PathLike[str] | None], Dataset]] = {
    "digits": lambda data_dir: digits(),
    "mnist": mnist,
    "cifar100": cifar100,
    "imagenet200": imagenet200,
}
_FOLDER, _NPZ = "folder:", "npz:"


def load_dataset(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    size: int | tuple[int, int] | None = None,
) -> Dataset:
    """Return the data set of this name.

    Parameters
    ----------
    name : str
        ``"digits"``: scikit-learn's embedded set, see `digits`. ``"mnist"``, ``"cifar100"``,
        ``"imagenet200"`` (Tiny-ImageNet): the public sets, see `lmrc.data.public`.
        ``"folder:PATH"``: your own images, one sub-folder per class, see
        `lmrc.data.folders.folder`. ``"npz:PATH"``: your own arrays, see `lmrc.data.arrays.npz`.
    data_dir : path or None, default=None
        The folder that holds the public sets, as archives or unpacked, and into which they are
        downloaded where they are missing. None: the environment variable ``LMRC_DATA``, or else
        a cache folder of the user's.
    limit : int or None, default=None
        Take only the first `limit` images of each class, of the training and of the test part
        alike, so that a quick trial is quick.
    size : int, (height, width) or None, default=None
        For ``"folder:PATH"`` only: the size to which images are brought.

    Returns
    -------
    Dataset
        Training and test part. The images of the public sets are memory-mapped.

    Raises
    ------
    DatasetNotFoundError
        If files are missing and cannot be downloaded: names each, its address and its place.

    Examples
    --------
    >>> from lmrc.data.datasets import load_dataset
    >>> load_dataset("digits").classes
    array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    >>> load_dataset("digits", limit=20)
    Dataset('digits': 200 training and 200 test samples of shape (8, 8), uint8, 10 classes)
    """
    if limit is not None:
        check_limit(limit)
    check_name(name)
    if name.startswith(_FOLDER):
        # Limited while reading: of a million photos, only those are decoded that are used.
        return folder(name.removeprefix(_FOLDER), size=size, limit=limit)
    if size is not None:
        raise ValueError(
            f"size={size!r} is for folder:PATH; the images of {name!r} have a size: leave it out."
        )
    own_file = name.startswith(_NPZ)
    dataset = npz(name.removeprefix(_NPZ)) if own_file else _LOADERS[name](data_dir)
    return dataset if limit is None else dataset.first_per_class(limit)


def check_name(name: str) -> None:
    """Refuse a name that `load_dataset` does not know."""
    if name in (_FOLDER, _NPZ):
        raise ValueError(f"the data set {name!r} lacks its path; write {name}PATH.")
    if name not in _LOADERS and not name.startswith((_FOLDER, _NPZ)):
        known = ", ".join([*_LOADERS, "folder:PATH", "npz:PATH"])
        own = "For your own arrays use Dataset(name, X_train, y_train, X_test, y_test)."
        if Path(name).exists():
            prefix = _FOLDER if Path(name).is_dir() else _NPZ
            own = f"For your own, in {name}, write {prefix}{name}."
        raise ValueError(f"unknown data set {name!r}; known are: {known}. {own}")
