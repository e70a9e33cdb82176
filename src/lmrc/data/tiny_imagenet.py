"""The layout of Tiny-ImageNet, as an archive or as the folder unpacked from it.

::

    tiny-imagenet-200/
      wnids.txt                                the classes
      words.txt                                what they mean
      train/<class>/images/<class>_<n>.JPEG
      val/val_annotations.txt                  file, class and box, separated by tabs
      val/images/val_<n>.JPEG
"""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lmrc.data.cache import save_class_names, save_images
from lmrc.data.images import UnreadableImageError, read_image
from lmrc.data.progress import progress

SIZE = 64

_LARGEST_MEMBER = 2**26  # words.txt has 2.7 MB, an image 2 KB
_LIST = re.compile(r"(?P<top>[^/]+/)?wnids\.txt")
_TRAIN = re.compile(r"train/(?P<label>n\d+)/images/(?P=label)_(?P<number>\d+)\.JPEG")

_Labelled = list[tuple[str, str]]  # the name of an image, and its class
_Read = Callable[[str], bytes]


def tiny_imagenet_files(source: Path) -> list[Path]:
    """Return all files the data set is decoded from: the archive, or those in the folder."""
    if source.is_file():
        return [source]
    patterns = ("wnids.txt", "words.txt", "train/n*/images/*", "val/*.txt", "val/images/*")
    return [path for pattern in patterns for path in source.glob(pattern)]


def decode_tiny_imagenet(source: Path, out: Path) -> None:
    """Decode an archive or a folder into the arrays of the cache.

    Training images come in the order of ``wnids.txt`` and of their numbers, validation images in
    that of their list. Classes that ``wnids.txt`` lacks are passed over.

    Parameters
    ----------
    source : Path
        The archive, or the folder that has ``wnids.txt``.
    out : Path
        An empty folder.
    """
    try:
        with _opened(source) as (names, read):
            classes = read("wnids.txt").decode("ascii").split()
            train = _train_images(names, classes)
            test = _validation_images(read("val/val_annotations.txt").decode("ascii"), classes)
            for part, labelled in (("train", train), ("test", test)):
                shape = (len(labelled), SIZE, SIZE, 3)
                images = _decoded([name for name, _ in labelled], read, part)
                save_images(out / f"X_{part}.npy", shape, images)
                np.save(out / f"y_{part}.npy", np.array([label for _, label in labelled], str))
            words = read("words.txt").decode("utf-8") if "words.txt" in names else ""
            save_class_names(out, _meanings(words, set(classes)))
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, FileNotFoundError) as error:
        raise ValueError(
            f"{source} is damaged or not in the official layout ({error}); get it anew."
        ) from error


@contextmanager
def _opened(source: Path) -> Iterator[tuple[list[str], _Read]]:
    """Give the names of all files below the top folder, and a function that reads one of them."""
    if source.is_dir():
        names = [path.relative_to(source).as_posix() for path in tiny_imagenet_files(source)]
        yield names, lambda name: (source / name).read_bytes()
        return
    with zipfile.ZipFile(source) as archive:
        match = next(filter(None, map(_LIST.fullmatch, archive.namelist())), None)
        if match is None:
            raise ValueError("no wnids.txt in it")
        top = match["top"] or ""

        def read(name: str) -> bytes:
            size = archive.getinfo(top + name).file_size
            if size > _LARGEST_MEMBER:
                raise ValueError(f"{name} has {size} bytes")
            return archive.read(top + name)

        yield [n.removeprefix(top) for n in archive.namelist() if n.startswith(top)], read


def _train_images(names: Sequence[str], classes: Sequence[str]) -> _Labelled:
    rank = {label: position for position, label in enumerate(classes)}
    matches = [m for m in map(_TRAIN.fullmatch, names) if m and m["label"] in rank]
    empty = rank.keys() - {m["label"] for m in matches}
    if empty or not matches:
        raise ValueError(f"no training images of {sorted(empty)[:5]}")
    matches.sort(key=lambda m: (rank[m["label"]], int(m["number"])))
    return [(m[0], m["label"]) for m in matches]


def _validation_images(annotations: str, classes: Sequence[str]) -> _Labelled:
    rows = [line.split("\t") for line in annotations.splitlines() if line]
    known = set(classes)
    return [(f"val/images/{Path(row[0]).name}", row[1]) for row in rows if row[1] in known]


def _meanings(words: str, classes: set[str]) -> dict[str, str]:
    rows = (line.split("\t", 1) for line in words.splitlines() if "\t" in line)
    return {label: meaning for label, meaning in rows if label in classes}


def _decoded(names: Sequence[str], read: _Read, part: str) -> Iterator[NDArray[np.uint8]]:
    for name in progress(names, f"decoding Tiny-ImageNet, {part}", len(names)):
        try:
            yield read_image(io.BytesIO(read(name)), size=SIZE)
        except UnreadableImageError as error:
            raise ValueError(f"{name}: {error}") from error
