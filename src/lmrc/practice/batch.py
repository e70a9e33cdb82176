"""What a user brings: labelled images as a folder, a CSV file or NumPy's ``.npz``."""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

import numpy as np

from lmrc.data.arrays import load_parts, rows_held_out
from lmrc.data.dataset import Array, digest
from lmrc.data.folders import (
    SET_ASIDE,
    VALIDATION,
    Files,
    class_name,
    describe_skipped,
    folders_of_classes,
    held_out,
    image_files,
    read_files,
)
from lmrc.data.images import (
    NOT_READ,
    Mode,
    Size,
    UnreadableImageError,
    common_form,
    walk_images,
)
from lmrc.data.names import Names
from lmrc.data.validation import read_labels
from lmrc.outside import cut
from lmrc.practice.usage import UsageError, count, warn
from lmrc.training.rotations import check_square

_PATH_COLUMNS = ("path", "file", "filename", "image")
_LABEL_COLUMNS = ("label", "class")
_GUESS_COLUMNS = ("rank", "similarity")  # of `lmrc predict --csv`, whose classes are no labels

_LONGEST_LINE = 2**16  # letters
_ALL_MISSING = (
    1000  # files; where none of the first so many is there, the others are not looked for
)

_LOOKED_AT = 10  # files of a class, for their colour: all of a large folder would take long

InputShape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Batch:
    """Labelled samples, some of them held out to see what a model makes of them.

    Attributes
    ----------
    X, y : ndarray
        To learn from.
    X_val, y_val : ndarray
        Held out; maybe none.
    place : str
        Where the source has them apart: the name of a sub-folder or array. Empty where it has not.
    unreadable : list of UnreadableImageError
        Files that were left out.
    passed_over : dict of str to int
        How many files have which suffix of images that lmrc does not read.
    mode : {"RGB", "L"} or None
        In which image files were read; None where there are none.
    greyed : Path or None
        A file in colour, the first of maybe many, which the model takes in grey.
    """

    X: Array
    y: Array
    X_val: Array
    y_val: Array
    place: str = ""
    unreadable: list[UnreadableImageError] = field(default_factory=list)
    passed_over: dict[str, int] = field(default_factory=dict)
    mode: Mode | None = None
    greyed: Path | None = None

    def warn_of_files(self) -> None:
        """Say which files were left out, if any, and what others lost."""
        if self.unreadable:
            warn(describe_skipped(self.unreadable))
        for suffix, n in self.passed_over.items():
            warn(f"passed over {count(n, f'{suffix} file')}: JPEG and PNG can be read")
        if self.greyed:
            warn(
                f"files in colour, such as {self.greyed}, are taken in grey, as the model's first "
                "images were: if colour matters, begin a new model with some"
            )

    def digest(self) -> str:
        """Return what tells these samples from any others."""
        return digest(self.X, self.y, self.X_val, self.y_val)


def read_source(
    source: Path,
    *,
    shape: InputShape | None = None,
    size: Size | None = None,
    colour: bool = False,
    val: float = 0.0,
    square: bool = False,
    test: bool = False,
) -> Batch:
    """Read labelled samples.

    Parameters
    ----------
    source : Path
        A folder (sub-folders are classes; or train/ and val/ or test/ with these), a ``.csv`` file
        with the columns path and label, or an ``.npz`` file with the arrays X and y (and X_val,
        y_val, or X_test, y_test).
    shape : tuple of int or None
        The model's ``input_shape_``, to which images are brought; None if there is no model yet.
    size : int, (height, width) or None
        Then: the size to which images are brought; None lets them decide.
    colour : bool, default=False
        Then: take images as coloured, even if all are grey.
    val : float, default=0.0
        Share of each class that is held out, if the source has no images to validate with.
    square : bool, default=False
        Refuse image files that do not come to squares before any is decoded: it may take long.
    test : bool, default=False
        Hold out what the source has to test with; else what it has to validate with, and what is
        there to test with only where there is nothing else, so that it can tell something new.
    """
    parts = SET_ASIDE if test else VALIDATION if val else (*VALIDATION, "test")
    if source.suffix.lower() == ".npz":
        if size is not None and shape is None:
            raise UsageError(f"--size is for image files; the arrays of {source} stay as they are")
        return _read_arrays(source, val, parts)
    files: Files
    held: Files = {}
    place = ""
    if source.suffix.lower() == ".csv":
        files = _listed(source)
    elif source.is_dir():
        files, held, place = image_files(source, parts)
    else:
        raise UsageError(
            f"{source} is neither a folder, nor a .csv nor an .npz file: name one of these"
        )
    if val and not held:
        parted = {label: held_out(paths, val) for label, paths in files.items()}
        files = {label: kept for label, (kept, _) in parted.items()}
        held = {label: paths for label, (_, paths) in parted.items() if paths}
    form = form_of(shape) if shape else _common(files, size, colour)
    if square:
        sides = form[0] if isinstance(form[0], tuple) else (form[0], form[0])
        check_square((1, *sides))
    unreadable: list[UnreadableImageError] = []
    X, y = read_files(files, *form, unreadable)
    X_val, y_val = X[:0], y[:0]
    if held:
        X_val, y_val = read_files(held, *form, unreadable, use="")
    others = walk_images(source, suffixes=NOT_READ) if source.is_dir() else ()
    passed_over = Counter(Path(name).suffix.lower() for name in others)
    greyed = _first_coloured(files, held) if shape and form[1] == "L" else None
    return Batch(X, y, X_val, y_val, place, unreadable, passed_over, form[1], greyed)


def refuse_inside(path: Path, source: Path, what: str, remedy: str) -> None:
    """Refuse to write into a folder of images: what is there would be taken for a class."""
    if not source.is_dir():
        return
    train, aside = folders_of_classes(source)
    if any(path.resolve().is_relative_to(place.resolve()) for place in (train, *aside.values())):
        raise UsageError(
            f"{what}, {path}, would lie among the images of {source}, where each folder is a "
            f"class: {remedy}"
        )


def form_of(shape: InputShape) -> tuple[tuple[int, int], Mode]:
    """Return the size and the mode in which a model takes images.

    >>> form_of((3, 48, 64))
    ((48, 64), 'RGB')
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(
            f"the model takes arrays of shape {shape}, not image files: use an .npz file"
        )
    channels, height, width = shape
    return (height, width), "L" if channels == 1 else "RGB"


def _common(files: Files, size: Size | None, colour: bool) -> tuple[Size, Mode]:
    common_size, mode = common_form(path for paths in files.values() for path in paths)
    return size or common_size, "RGB" if colour else mode


def _first_coloured(*parts: Files) -> Path | None:
    """Return a file that is in colour, if one of the first of a class is: their heads tell."""
    classes = (of_class for files in parts for of_class in files.values())
    paths = (path for of_class in classes for path in of_class[:_LOOKED_AT])
    return next((path for path in paths if common_form([path])[1] == "RGB"), None)


def _listed(source: Path) -> Files:
    """Read a CSV file: the images of each class; relative paths are from its folder."""
    files: dict[str, list[str]] = {}
    if not source.is_file():
        raise ValueError(f"{source} is not a file: name a CSV file, or a folder")
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(_lines(file))
            _refuse_guesses(source, rows.fieldnames)
            path_column = _column(source, rows.fieldnames, _PATH_COLUMNS)
            label_column = _column(source, rows.fieldnames, _LABEL_COLUMNS)
            for row in rows:
                path, label = (row[column] or "" for column in (path_column, label_column))
                if not path.strip() or not label.strip():
                    missing = "path" if not path.strip() else "label"
                    raise ValueError(
                        f"{source}, line {rows.line_num} has no {missing}: add it, or remove the "
                        "line"
                    )
                files.setdefault(class_name(label.strip()), []).append(path.strip())
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{source} is not a CSV file in UTF-8: {error}") from error
    if not files:
        raise ValueError(f"{source} lists no images: add lines below its header")
    found = {label: Names(source.parent, names) for label, names in sorted(files.items())}
    first = list(islice(chain.from_iterable(found.values()), _ALL_MISSING))
    if len(first) == _ALL_MISSING and not any(map(os.path.exists, first)):
        raise ValueError(
            f"none of the first {_ALL_MISSING:,} images of {source} is there, such as {first[0]}: "
            "paths are from the folder of the CSV file"
        )
    return found


def _lines(file: TextIO) -> Iterator[str]:
    """Go through the lines of a file; one without an end, of zeros say, would fill the memory."""
    while line := file.readline(_LONGEST_LINE + 1):
        if len(line) > _LONGEST_LINE:
            raise csv.Error(f"a line has more than {_LONGEST_LINE:,} letters")
        yield line


def _refuse_guesses(source: Path, names: Sequence[str] | None) -> None:
    for name in names or ():
        if name.strip().lower() in _GUESS_COLUMNS:
            raise ValueError(
                f"{source} has a column {name.strip()!r}: it looks like what lmrc predict --csv "
                "wrote, which are guesses and no labels; if you have corrected them, remove it"
            )


def _column(source: Path, names: Sequence[str] | None, wanted: Sequence[str]) -> str:
    for name in names or ():
        if name.strip().lower() in wanted:
            return name
    found = cut(", ".join(names or ["empty"]), 200)
    raise ValueError(
        f"{source} has no column {wanted[0]!r} in its first line ({found}): it must "
        "name the columns path (or file, filename, image) and label (or class)"
    )


def _read_arrays(source: Path, val: float, parts: Sequence[str]) -> Batch:
    X, y, X_val, y_val, place = load_parts(source, parts)
    for inputs, labels in ((X, y), (X_val, y_val)):
        if inputs.ndim < 2 or labels.ndim != 1 or len(inputs) != len(labels):
            raise ValueError(
                f"{source} holds X of shape {inputs.shape} and y of shape {labels.shape}: X needs "
                "one row for each label in y"
            )
    if not len(y):
        raise ValueError(f"{source} holds no samples: X and y are empty")
    y, y_val = _in_one_form(y), _in_one_form(y_val)
    if val and not place:
        kept, held = rows_held_out(y, val)
        X, y, X_val, y_val = X[kept], y[kept], X[held], y[held]
    return Batch(X, y, X_val, y_val, place)


def _in_one_form(labels: Array) -> Array:
    """Return labels as a model has them, names in the form of Unicode that folders have, too."""
    labels = read_labels(labels, len(labels))
    if labels.dtype.kind != "U":
        return labels
    names, rows = np.unique(labels, return_inverse=True)
    return np.array([class_name(name) for name in names.tolist()], dtype=str)[rows]
