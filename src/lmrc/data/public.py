"""The public data sets: MNIST, CIFAR-100, Tiny-ImageNet. One function each.

The data folder that it is given is as in `lmrc.data.datasets.load_dataset`.

Each finds its files, as official archives or unpacked, or downloads them; decodes them once; and
opens them memory-mapped from then on. Nothing is ever unpacked under a name that an archive
chooses: members are read into memory by their known names.
"""

import gzip
import os
import struct
import tarfile
import zlib
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmrc.data.cache import cached_dataset, save_class_names, save_images
from lmrc.data.dataset import Dataset
from lmrc.data.sources import RemoteFile, data_folder, download, find_first
from lmrc.data.tiny_imagenet import decode_tiny_imagenet, tiny_imagenet_files
from lmrc.data.unpickle import PlainPickleError, load_plain_pickle
from lmrc.text import brief, shorten

DataDir = str | os.PathLike[str] | None

_MNIST_ADDRESSES = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "http://yann.lecun.com/exdb/mnist/",
)
MNIST = {
    part: RemoteFile(
        f"{name}.gz", tuple(f"{place}{name}.gz" for place in _MNIST_ADDRESSES), f"md5:{md5}"
    )
    for part, name, md5 in (
        ("X_train", "train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("y_train", "train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("X_test", "t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3"),
        ("y_test", "t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c"),
    )
}
CIFAR100 = RemoteFile(
    "cifar-100-python.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
    "md5:eb9058c3a382ffc7106e4002c42a8d85",
)
TINY_IMAGENET = RemoteFile(
    "tiny-imagenet-200.zip",
    ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
    "md5:90528d7ca1a48142e341f4ef8d21d0de",
)

_CIFAR_MEMBERS = ("train", "test", "meta")
#: Errors of damaged archives.
_DAMAGED = (ValueError, EOFError, zlib.error, struct.error, gzip.BadGzipFile, tarfile.TarError)


def mnist(data_dir: DataDir = None) -> Dataset:
    """Return MNIST: 60,000 training and 10,000 test images of shape (28, 28), labels 0 to 9.

    Reads the four IDX files, compressed (.gz) or not, in the data folder or in its sub-folder
    ``mnist``, ``MNIST`` or ``MNIST/raw``.
    """
    folder = data_folder(data_dir)
    files = {part: _find_idx(folder, remote.name) for part, remote in MNIST.items()}
    missing = [MNIST[part] for part, path in files.items() if path is None]
    if missing:
        download("MNIST", missing, folder)
    paths = {part: path or folder / MNIST[part].name for part, path in files.items()}

    def decode(out: Path) -> None:
        for part, path in paths.items():
            array = _read_idx(path, axes=3 if part.startswith("X") else 1)
            np.save(out / f"{part}.npy", array if array.ndim == 3 else array.astype(np.int64))

    return cached_dataset("mnist", paths.values(), decode)


def cifar100(data_dir: DataDir = None) -> Dataset:
    """Return CIFAR-100: 50,000 training and 10,000 test images of shape (32, 32, 3), 100 classes.

    Reads ``cifar-100-python.tar.gz`` (the version for Python) or, unpacked from it,
    ``cifar-100-python/train``, ``test`` and ``meta``, in the data folder or in its sub-folder
    ``cifar100`` or ``cifar-100``. Labels are the official numbers of the fine classes, 0 to 99;
    `class_names` has their names.
    """
    folder = data_folder(data_dir)
    places = (".", "cifar100", "cifar-100")
    archive = find_first(folder, places, [CIFAR100.name])
    meta = find_first(folder, places, ["cifar-100-python/meta", "meta"])
    unpacked = [meta.with_name(name) for name in _CIFAR_MEMBERS] if meta else []
    if archive is None and not (unpacked and all(path.is_file() for path in unpacked)):
        download("CIFAR-100", [CIFAR100], folder)
        archive = folder / CIFAR100.name
    sources = [archive] if archive else unpacked

    def decode(out: Path) -> None:
        if archive:
            contents, origin = _read_tar(archive, "cifar-100-python/", _CIFAR_MEMBERS), archive
        else:
            contents = {path.name: path.read_bytes() for path in unpacked}
            origin = unpacked[0].parent
        _decode_cifar100(contents, origin, out)

    return cached_dataset("cifar100", sources, decode)


def imagenet200(data_dir: DataDir = None) -> Dataset:
    """Return Tiny-ImageNet: 100,000 training and 10,000 test images of 64×64 pixels, 200 classes.

    Reads ``tiny-imagenet-200.zip`` or, unpacked from it, the folder ``tiny-imagenet-200``, in the
    data folder or in its sub-folder ``tiny-imagenet``; where neither is there, an archive
    ``tiny-imagenet-*.zip`` of the same layout with fewer classes. The official validation images
    are the test part, since the labels of the official test images were never published. Labels are
    WordNet's numbers, such as ``"n01443537"``; `class_names` has their meaning.
    """
    folder = data_folder(data_dir)
    source = _find_tiny_imagenet(folder)
    if source is None:
        download("Tiny-ImageNet", [TINY_IMAGENET], folder)
        source = folder / TINY_IMAGENET.name
    decode = partial(decode_tiny_imagenet, source)
    dataset = cached_dataset("imagenet200", tiny_imagenet_files(source), decode)
    classes = len(dataset.classes)
    if classes == 200:
        return dataset
    return replace(dataset, note=f"{classes} of the 200 classes, from {source.name}.")


def _find_tiny_imagenet(folder: Path) -> Path | None:
    places = (".", "tiny-imagenet")
    full = TINY_IMAGENET.name.removesuffix(".zip")
    names = [f"{full}.zip", f"{full}/wnids.txt", "wnids.txt", "tiny-imagenet-*.zip"]
    found = find_first(folder, places, names)
    return found.parent if found and found.name == "wnids.txt" else found


def _find_idx(folder: Path, archive: str) -> Path | None:
    plain = archive.removesuffix(".gz")
    dotted = plain.replace("-idx", ".idx")  # as some programs unpack it
    names = [archive, plain, dotted]
    return find_first(folder, (".", "mnist", "MNIST", "MNIST/raw"), names)


def _read_tar(path: Path, folder: str, names: Collection[str]) -> dict[str, bytes]:
    """Read files of a folder in a tar, by their names; links are passed over."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = member.name.removeprefix("./").removeprefix(folder)
                if name in names and member.isreg() and (file := archive.extractfile(member)):
                    found[name] = file.read()
        if missing := sorted(set(names) - found.keys()):
            raise ValueError(f"it has no {folder}{missing[0]}")
    except _DAMAGED as error:
        raise _damaged(path, error) from error
    return found


def _read_idx(path: Path, axes: int) -> NDArray[np.uint8]:
    """Read the format of http://yann.lecun.com/exdb/mnist: 0, 0, type, axes; lengths; bytes."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        if content[:4] != bytes([0, 0, 8, axes]):
            raise ValueError(f"not an IDX file of bytes with {axes} axes")
        shape = struct.unpack_from(f">{axes}I", content, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except _DAMAGED as error:
        raise _damaged(path, error) from error


def _decode_cifar100(contents: dict[str, bytes], origin: Path, out: Path) -> None:
    names: list[str] = []
    for name in ("meta", "train", "test"):
        try:
            # Popped one after another: unpickling doubles the memory of each.
            record = load_plain_pickle(contents.pop(name))
            if not isinstance(record, dict):
                raise ValueError("no dict")
            if name == "meta":
                names = [_text(text) for text in _field(record, "fine_label_names")]
            else:
                _save_cifar100(record, len(names), name, out)
        except PlainPickleError as error:
            raise PlainPickleError(f"{origin}, {name}: {error}") from error
        except (TypeError, ValueError, OverflowError) as error:
            why = f"{name} is not a record of CIFAR-100: {error}"
            raise _damaged(origin, why) from error
    save_class_names(out, dict(enumerate(names)))


def _save_cifar100(record: dict[Any, Any], n_classes: int, part: str, out: Path) -> None:
    pixels, labels = _field(record, "data"), _field(record, "fine_labels")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
        raise ValueError("wrong type of pixels")
    images = np.asarray(pixels).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    # One by one: NumPy would descend into nested lists, however many there are.
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError("labels that are no numbers")
    if not labels or len(labels) != len(images) or min(labels) < 0 or max(labels) >= n_classes:
        raise ValueError("labels without a name, or not one for each image")
    chunks = (images[i : i + 1000] for i in range(0, len(images), 1000))
    save_images(out / f"X_{part}.npy", images.shape, chunks)
    np.save(out / f"y_{part}.npy", np.array(labels, dtype=np.int64))


def _field(record: dict[Any, Any], name: str) -> Any:
    """Return what stands under a name; Python 2 wrote it as bytes, Python 3 may have as text."""
    for key in (name, name.encode()):
        if key in record:
            return record[key]
    raise ValueError(f"it has no {name}")


def _text(value: Any) -> str:
    text = value.decode("latin1") if isinstance(value, bytes) else value
    if not isinstance(text, str) or len(text) > 1000:
        raise ValueError(f"{brief(value)} is no name of a class")
    return text


def _damaged(path: Path, why: object) -> ValueError:
    said = shorten(str(why), 300)
    return ValueError(f"{path} is damaged or something else ({said}); remove it and get it anew.")
