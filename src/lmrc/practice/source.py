"""Labelled samples from a user's files: a folder of images, a CSV file or an ``.npz`` file."""

import csv
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import numpy as np

from lmrc.data.arrays import load_parts, rows_held_out, shape_of_samples
from lmrc.data.class_names import class_name
from lmrc.data.dataset import Array, digest
from lmrc.data.folders import (
    SET_ASIDE,
    VALIDATION,
    Files,
    describe_skipped,
    folders_of_classes,
    held_out,
    image_files,
    read_files,
)
from lmrc.data.image_files import Names
from lmrc.data.images import (
    NOT_READ,
    ImageFile,
    Mode,
    Size,
    UnreadableImageError,
    common_form,
    name_of,
    walk_images,
)
from lmrc.data.validation import read_labels
from lmrc.practice.usage import UsageError, count, warn
from lmrc.text import shorten
from lmrc.training.rotations import check_square

_PATH_COLUMNS = ("path", "file", "filename", "image")
_LABEL_COLUMNS = ("label", "class")
_PREDICTION_COLUMNS = ("rank", "similarity")  # written by `lmrc predict --csv`

_MAX_MISSING = 1000  # give up if none of so many files exists
_COLOUR_CHECKED = 10  # files of a class that are checked for colour; all would take long

InputShape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LabelledSamples:
    """Labelled samples for training, and those held out for validation or testing."""

    #: Training samples.
    X: Array
    y: Array
    #: Held-out samples; may be empty.
    X_val: Array
    y_val: Array
    #: The sub-folder or array that the held-out samples come from; empty if they were split off.
    held_out_in: str = ""
    unreadable: list[UnreadableImageError] = field(default_factory=list)  # files that were left out
    #: Number of image files by suffix, for formats that lmrc does not read.
    unsupported: dict[str, int] = field(default_factory=dict)
    mode: Mode | None = None  # "RGB", "L": mode in which image files were read; None for arrays
    greyed: ImageFile | None = None  # the first colour file that was converted to grey, if any
    #: Image files of the held-out samples, or of all if none are held out; empty for arrays.
    files: Files = field(default_factory=dict)

    def warn_about_files(self) -> None:
        """Warn of files that were left out or converted to grey."""
        if self.unreadable:
            warn(describe_skipped(self.unreadable))
        for suffix, n in self.unsupported.items():
            warn(f"left out {count(n, f'{suffix} file')}: convert to JPEG or PNG")
        if self.greyed:
            warn(
                f"colour images, such as {name_of(self.greyed)}, are converted to grey, because "
                "the model was started with grey images: if colour matters, start a new model with "
                "colour"
            )

    def names(self) -> list[str]:
        """Return the names of `files` that could be read, in order."""
        found = [name_of(file) for of_class in self.files.values() for file in of_class]
        skipped = {str(error).partition(" as an image: ")[0] for error in self.unreadable}
        return [name for name in found if f"cannot read {name}" not in skipped]

    def digest(self) -> str:
        """Return a checksum of the samples."""
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
    images: Files | None = None,
) -> LabelledSamples:
    """Read labelled samples from a folder, a ``.csv`` file or an ``.npz`` file.

    Images are resized to `shape`, the ``input_shape_`` of a model. Without a model, they are
    resized to `size` (None: chosen from the images), and with `colour` grey ones are read as RGB;
    `square` refuses images that are not square, before any is decoded, which may take long.

    Held out are the source's validation samples, or the share `val` of each class if there are
    none; or its test samples if `test` is true, or if there is nothing else to hold out: they stay
    unseen if possible. `images` of each class, in memory, replace the source.
    """
    parts = SET_ASIDE if test else VALIDATION if val else (*VALIDATION, "test")
    if images is None and source.suffix.lower() == ".npz":
        if size is not None and shape is None:
            raise UsageError(f"--size is for image files; the arrays of {source} are not resized")
        return _read_arrays(source, val, parts)
    files, held, held_out_in = labelled_files(source, parts, images)
    if val and not held:
        parts_of = {label: held_out(paths, val) for label, paths in files.items()}
        files = {label: train for label, (train, _) in parts_of.items()}
        held = {label: paths for label, (_, paths) in parts_of.items() if paths}
    form = image_form(shape) if shape else _common_form(files, size, colour)
    if square:
        sides = form[0] if isinstance(form[0], tuple) else (form[0], form[0])
        check_square((1, *sides))
    unreadable: list[UnreadableImageError] = []
    X, y = read_files(files, *form, unreadable)
    X_val, y_val = X[:0], y[:0]
    if held:
        X_val, y_val = read_files(held, *form, unreadable, use="")
    walks = images is None and source.is_dir()
    others = walk_images(source, suffixes=NOT_READ) if walks else ()
    unsupported = Counter(Path(name).suffix.lower() for name in others)
    greyed = _first_in_colour(files, held) if shape and form[1] == "L" else None
    return LabelledSamples(
        X, y, X_val, y_val, held_out_in, unreadable, unsupported, form[1], greyed, held or files
    )


def form_of_inputs(
    source: Path, size: Size | None = None, images: Files | None = None
) -> tuple[tuple[int, ...], int]:
    """Return the shape that the inputs of a source will have, and how many there are.

    Only file headers are read. For a file that cannot be read, it is () and 0.
    """
    if images is None and source.suffix.lower() == ".npz":
        n, *shape = shape_of_samples(source)
        colour = len(shape) == 3 and shape[-1] == 3
        return ((3, *shape[:2]) if colour else tuple(shape)), n
    with warnings.catch_warnings(action="ignore"):  # `read_source` will tell
        files, _, _ = labelled_files(source, (*VALIDATION, "test"), images)
    found, mode = _common_form(files, size, colour=False)
    sides = (found, found) if isinstance(found, int) else found
    return (3 if mode == "RGB" else 1, *sides), sum(len(paths) for paths in files.values())


def refuse_inside(path: Path, source: Path, what: str, remedy: str) -> None:
    """Refuse to write into a folder of images, where each sub-folder is read as a class."""
    if not source.is_dir():
        return
    train, aside = folders_of_classes(source)
    if any(path.resolve().is_relative_to(place.resolve()) for place in (train, *aside.values())):
        raise UsageError(
            f"{what}, {path}, would be inside {source}, where each sub-folder is a class: {remedy}"
        )


def image_form(shape: InputShape) -> tuple[tuple[int, int], Mode]:
    """Return the size and the mode of a model's input images.

    >>> image_form((3, 48, 64))
    ((48, 64), 'RGB')
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ValueError(
            f"the model's inputs are arrays of shape {shape}, not image files: use an .npz file"
        )
    channels, height, width = shape
    return (height, width), "L" if channels == 1 else "RGB"


def labelled_files(
    source: Path, parts: Sequence[str], images: Files | None = None
) -> tuple[Files, Files, str]:
    """Return the image files of each class, held-out ones, and the sub-folder of the latter."""
    if images is not None:
        return images, {}, ""
    if source.suffix.lower() == ".csv":
        return _read_csv(source), {}, ""
    if source.is_dir():
        return image_files(source, parts)
    raise UsageError(f"{source} is not a folder, a .csv or an .npz file: use one of these")


def _common_form(files: Files, size: Size | None, colour: bool) -> tuple[Size, Mode]:
    if size and colour:  # no file needs to be opened
        return size, "RGB"
    common_size, mode = common_form(path for paths in files.values() for path in paths)
    return size or common_size, "RGB" if colour else mode


def _first_in_colour(*parts: Files) -> ImageFile | None:
    """Return a colour image among the first files of each class; only file headers are read."""
    classes = (of_class for files in parts for of_class in files.values())
    paths = (path for of_class in classes for path in of_class[:_COLOUR_CHECKED])
    return next((path for path in paths if common_form([path])[1] == "RGB"), None)


def _read_csv(source: Path) -> Files:
    """Read a CSV file: the images of each class. Paths are relative to the file's folder."""
    files: dict[str, list[str]] = {}
    if not source.is_file():
        raise ValueError(f"{source} is not a regular file: use a CSV file or a folder")
    try:
        with source.open(encoding="utf-8-sig", newline="") as file:
            head = file.readline(1000)  # of Excel, in many countries, with ";"
            file.seek(0)
            rows = csv.DictReader(file, delimiter=";" if head.count(";") > head.count(",") else ",")
            _refuse_predictions(source, rows.fieldnames)
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
        raise ValueError(f"{source} lists no images: add lines below the header")
    found = {label: Names(source.parent, names) for label, names in sorted(files.items())}
    first = list(islice(chain.from_iterable(found.values()), _MAX_MISSING))
    if len(first) == _MAX_MISSING and not any(map(os.path.exists, first)):
        raise ValueError(
            f"none of the first {_MAX_MISSING:,} images of {source} exists, such as {first[0]}: "
            "paths are relative to the folder of the CSV file"
        )
    return found


def _refuse_predictions(source: Path, names: Sequence[str] | None) -> None:
    for name in names or ():
        if name.strip().lower() in _PREDICTION_COLUMNS:
            raise ValueError(
                f"{source} has a column {name.strip()!r}, like the output of lmrc predict --csv: "
                "predictions are no labels; if you have corrected them, remove that column"
            )


def _column(source: Path, names: Sequence[str] | None, wanted: Sequence[str]) -> str:
    for name in names or ():
        if name.strip().lower() in wanted:
            return name
    found = shorten(", ".join(names or ["empty"]), 200)
    raise ValueError(
        f"{source} has no column {wanted[0]!r} in its header ({found!r}): a CSV file lists images, "
        "in the columns path (or file, filename, image) and label (or class), separated by commas "
        "or semicolons. Numbers belong into an .npz file: np.savez(file, X=table, y=labels)"
    )


def _read_arrays(source: Path, val: float, parts: Sequence[str]) -> LabelledSamples:
    X, y, X_val, y_val, held_out_in = load_parts(source, parts)
    for inputs, labels in ((X, y), (X_val, y_val)):
        if inputs.ndim < 2 or labels.ndim != 1 or len(inputs) != len(labels):
            raise ValueError(
                f"{source} has X of shape {inputs.shape} and y of shape {labels.shape}: X needs "
                "one row for each label in y"
            )
    if not len(y):
        raise ValueError(f"{source} has no samples: X and y are empty")
    y, y_val = _normalised(y), _normalised(y_val)
    if val and not held_out_in:
        train, held = rows_held_out(y, val)
        X, y, X_val, y_val = X[train], y[train], X[held], y[held]
    return LabelledSamples(X, y, X_val, y_val, held_out_in)


def _normalised(labels: Array) -> Array:
    """Return labels as a model stores them, with names in Unicode's form NFC, as for folders."""
    labels = read_labels(labels, len(labels))
    if labels.dtype.kind != "U":
        return labels
    names, rows = np.unique(labels, return_inverse=True)
    return np.array([class_name(name) for name in names.tolist()], dtype=str)[rows]
