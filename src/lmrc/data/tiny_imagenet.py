"""The layout of Tiny-ImageNet, as an archive or as the folder unpacked from it.

::

    tiny-imagenet-200/
      wnids.txt                                the classes
      words.txt                                what they mean
      train/<class>/images/<class>_<n>.JPEG
      val/val_annotations.txt                  file, class and box, separated by tabs
      val/images/val_<n>.JPEG
"""

import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from lmrc.data.cache import save_class_names, save_images
from lmrc.data.image_files import FORKS, in_workers, progress
from lmrc.data.images import Pixels, UnreadableImageError, read_image
from lmrc.text import brief, shorten

SIZE = 64

_LIST = re.compile(r"(?P<top>[^/]+/)?wnids\.txt")
_TRAIN = re.compile(r"train/(?P<label>n\d+)/images/(?P=label)_(?P<number>\d+)\.JPEG")

_Labelled = list[tuple[str, str]]  # the name of an image, and its class

_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, LookupError, ValueError, FileNotFoundError),
    *(EOFError, NotImplementedError),  # members that are cut, or packed in another way
)


def tiny_imagenet_files(source: Path) -> list[Path]:
    """Return all files the data set is decoded from: the archive, or those in the folder."""
    if source.is_file():
        return [source]
    patterns = ("wnids.txt", "words.txt", "train/n*/images/*", "val/*.txt", "val/images/*")
    return [path for pattern in patterns for path in source.glob(pattern)]


def decode_tiny_imagenet(source: Path, out: Path) -> None:
    """Decode an archive, or the folder that has ``wnids.txt``, into the arrays of the cache.

    Training images come in the order of ``wnids.txt`` and of their numbers, validation images in
    that of their list. Classes that ``wnids.txt`` lacks are skipped.
    """
    try:
        files: _Folder | _Archive = _Folder(source) if source.is_dir() else _Archive(source)
        classes = files.read("wnids.txt").decode("ascii").split()
        train = _train_images(files.names, classes)
        test = _validation_images(files.read("val/val_annotations.txt").decode("ascii"), classes)
        for part, labelled in (("train", train), ("test", test)):
            shape = (len(labelled), SIZE, SIZE, 3)
            images = _decoded([name for name, _ in labelled], files, part)
            save_images(out / f"X_{part}.npy", shape, images)
            np.save(out / f"y_{part}.npy", np.array([label for _, label in labelled], str))
        words = files.read("words.txt").decode("utf-8") if "words.txt" in files.names else ""
        save_class_names(out, _meanings(words, set(classes)))
    except _DAMAGED as error:
        why = shorten(str(error), 300)
        raise ValueError(
            f"{source} is damaged or not in the official layout ({why}); get it anew."
        ) from error


class _Folder:
    """The files of a folder, by their names from there."""

    def __init__(self, source: Path) -> None:
        self.source = source
        above = len(source.parts)
        self.names = ["/".join(path.parts[above:]) for path in tiny_imagenet_files(source)]

    def read(self, name: str) -> bytes:
        return (self.source / name).read_bytes()


class _Archive:
    """The files of an archive, by their names below its top folder; for worker processes, too."""

    def __init__(self, source: Path) -> None:
        self._source, self._process = source, os.getpid()
        self._zip = zipfile.ZipFile(source)
        match = next(filter(None, map(_LIST.fullmatch, self._zip.namelist())), None)
        if match is None:
            raise ValueError("no wnids.txt in it")
        self._top = top = match["top"] or ""
        self.names = [n.removeprefix(top) for n in self._zip.namelist() if n.startswith(top)]

    def read(self, name: str) -> bytes:
        if os.getpid() != self._process:  # a fork shares the position in the file with its parent
            self._zip.fp, self._process = self._source.open("rb"), os.getpid()
        return self._zip.read(self._top + name)


def _train_images(names: Sequence[str], classes: Sequence[str]) -> _Labelled:
    rank = {label: position for position, label in enumerate(classes)}
    matches = [m for m in map(_TRAIN.fullmatch, names) if m and m["label"] in rank]
    empty = rank.keys() - {m["label"] for m in matches}
    if empty or not matches:
        raise ValueError(f"no training images of {brief(sorted(empty)[:5])}")
    matches.sort(key=lambda m: (rank[m["label"]], int(m["number"])))
    return [(m[0], m["label"]) for m in matches]


def _validation_images(annotations: str, classes: Sequence[str]) -> _Labelled:
    rows = [line.split("\t") for line in annotations.splitlines() if line]
    known = set(classes)
    return [(f"val/images/{Path(row[0]).name}", row[1]) for row in rows if row[1] in known]


def _meanings(words: str, classes: set[str]) -> dict[str, str]:
    rows = (line.split("\t", 1) for line in words.splitlines() if "\t" in line)
    return {label: meaning for label, meaning in rows if label in classes}


def _decoded(names: Sequence[str], files: _Folder | _Archive, part: str) -> Iterator[Pixels]:
    read, n = partial(_image, files, names), len(names)
    images = in_workers(read, n) if FORKS else map(read, range(n))
    for image in progress(images, f"decoding Tiny-ImageNet, {part}", n):
        if isinstance(image, Exception):
            raise image
        yield image


def _image(files: _Folder | _Archive, names: Sequence[str], i: int) -> Pixels | Exception:
    try:
        return read_image(io.BytesIO(files.read(names[i])), size=SIZE)
    except UnreadableImageError as error:
        return ValueError(f"{names[i]}: {error}")
    except _DAMAGED as error:
        return error
