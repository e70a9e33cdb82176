"""``lmrc predict``: classes of images."""

import csv
import glob
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import groupby, islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

from lmrc.data.arrays import load_arrays
from lmrc.data.images import NOT_READ, SUFFIXES, UnreadableImageError, read_image, walk_images
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.practice.models import outputs_by_image
from lmrc.practice.source import image_form
from lmrc.practice.usage import UsageError, warn
from lmrc.text import csv_cell, escape

STANDARD_INPUT = "-"
UNKNOWN = "unknown"
COLUMNS = ("path", "rank", "class", "similarity", "head", "error", "known", "probability")
CHUNK = 256  # images in memory at a time


@dataclass(frozen=True)
class ScoredClass:
    """A candidate class of an image."""

    label: Any
    similarity: float
    head: int  # counted from 1
    probability: float | None = None  # None if the model has no probabilities

    def plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "class": self.label,
            "similarity": round(self.similarity, 4),
            "probability": None if self.probability is None else round(self.probability, 4),
            "head": self.head,
        }


@dataclass(frozen=True)
class Prediction:
    """The best classes of one image, or the error if it could not be read."""

    path: str  # the image
    best: list[ScoredClass]  # best first
    known: bool = True  # False: predicted as unknown
    error: str = ""  # why the image could not be read; empty if it could


class Scored:
    """Picks the best classes of an image by the outputs of a model."""

    def __init__(self, model: LMRCClassifier) -> None:
        self.labels = model.classes_.tolist()
        self.head_of = [i for i, head in enumerate(model.heads_, start=1) for _ in head]

    def best(self, scores: Any, probabilities: Any, top: int) -> list[ScoredClass]:
        """Return the `top` classes, best first; probabilities may be None."""
        return [
            ScoredClass(
                self.labels[i],
                float(scores[i]),
                self.head_of[i],
                None if probabilities is None else float(probabilities[i]),
            )
            for i in np.argsort(-scores, kind="stable")[:top].tolist()
        ]


#: An input image: a path, a name with the bytes of a file or with pixels, or an error already.
Input = str | tuple[str, bytes | NDArray[Any]] | Prediction


def predict(
    model: LMRCClassifier,
    images: Iterable[Input],
    *,
    top: int = 1,
    reject_below: float | None = None,
    threshold: float | None = None,
) -> Iterator[Prediction]:
    """Yield the predictions for images, in order; for unreadable ones, an error.

    Images are paths; pairs of a name and the bytes of a file or its pixels; or `Prediction` objects
    with an error, which are passed on. The class is unknown if the best similarity is below
    `reject_below`, or the model's unknown score above `threshold`.
    """
    classes = Scored(model)
    for chunk in _chunks(images, CHUNK):
        read = [_read(image, model) for image in chunk]
        pixels = [found for _, found in read if not isinstance(found, str)]
        outputs = outputs_by_image(model, np.stack(pixels)) if pixels else iter(())
        for name, found in read:
            if isinstance(found, str):
                yield Prediction(name, [], error=found)
                continue
            scores, probabilities, unknown = next(outputs)
            best = classes.best(scores, probabilities, top)
            known = reject_below is None or best[0].similarity >= reject_below
            known = known and (threshold is None or bool(unknown <= threshold))
            yield Prediction(name, best, known)


def _read(image: Input, model: LMRCClassifier) -> tuple[str, Any]:
    """Return the name of an image, and its pixels or an error message."""
    if isinstance(image, Prediction):
        return image.path, image.error
    file: str | io.BytesIO
    if isinstance(image, str):
        name = file = image
    elif isinstance(image[1], np.ndarray):
        return image
    else:
        name, file = image[0], io.BytesIO(image[1])
    size, mode = image_form(model.input_shape_)
    try:
        return name, read_image(file, size, mode)
    except UnreadableImageError as error:
        return name, str(error)


def find_images(arguments: Sequence[str]) -> Iterator[Input]:
    """Yield the images named by arguments: files, folders, glob patterns or standard input.

    Each row of the array X of an ``.npz`` file is one input, whether it is an image or a vector.
    Standard input (``-``) is an image, or a list of paths, one per line. A folder or pattern
    without images gives a `Prediction` with an error.
    """
    for argument in arguments:
        if argument == STANDARD_INPUT:
            yield from _standard_input()
        elif not Path(argument).exists() and glob.has_magic(argument):
            matching = sorted(glob.glob(argument, recursive=True))  # noqa: PTH207  # absolute, too
            above = {folder for match in matching for folder in Path(match).parents}
            for match in matching:
                if Path(match) not in above:  # else it is what "**" matches besides
                    yield from _inputs_at(match)
            if not matching:
                yield Prediction(argument, [], error=f"no file matches {argument}")
        else:
            yield from _inputs_at(argument)


def _inputs_at(argument: str) -> Iterator[Input]:
    path = Path(argument)
    if path.is_dir():
        found = [str(path / name) for name in walk_images(path, SUFFIXES | NOT_READ)]
        yield from found  # those of formats that are not read give an error each
        if not found:
            yield Prediction(argument, [], error=f"{path} contains no images")
    elif path.suffix.lower() == ".npz" and path.exists():
        rows = load_arrays(path, "X")["X"]
        yield from ((f"{argument}[{i}]", row) for i, row in enumerate(rows))
        if not len(rows):
            yield Prediction(argument, [], error=f"X of {path} is empty")
    else:
        yield argument


def _standard_input() -> Iterator[str | tuple[str, bytes]]:
    content = sys.stdin.buffer.read()
    try:
        read_image(io.BytesIO(content))
    except UnreadableImageError:
        lines = content.decode(errors="surrogateescape").splitlines()
        paths = [line.strip() for line in lines if line.strip()]
        if any("\0" in path for path in paths):
            raise UsageError(
                "standard input is neither a readable image nor a list of paths"
            ) from None
        yield from paths
    else:
        yield STANDARD_INPUT, content


def max_width(labels: Iterable[Any]) -> int:
    """Return the width of the widest label, in terminal columns."""
    return max(cell_len(escape(str(label))) for label in labels)


def write_predictions(
    predictions: Iterable[Prediction],
    form: str,
    file: TextIO,
    *,
    quiet: bool = False,
    width: int = 0,
) -> int:
    """Write predictions as "text", "csv" or "json" (one object per line); count the failures.

    Failures are reported on standard error, unless quiet. In text, class names are padded to
    `width` terminal columns; some characters take two columns, and accents none.
    """
    failures = 0
    table = csv.writer(file, lineterminator="\n") if form == "csv" else None
    if table:
        table.writerow(COLUMNS)
    for prediction in predictions:
        failures += bool(prediction.error)
        if prediction.error and not quiet:
            warn(prediction.error)
        if table:
            table.writerows([csv_cell(cell) for cell in row] for row in _rows(prediction))
        elif form == "json":
            file.write(escape(json.dumps(_plain(prediction), ensure_ascii=False)) + "\n")
        else:
            file.writelines(_lines(prediction, width))
        file.flush()
    return failures


def _rows(prediction: Prediction) -> list[list[Any]]:
    if prediction.error:
        return [[prediction.path, "", "", "", "", prediction.error, "", ""]]
    path, known = prediction.path, "true" if prediction.known else "false"
    rows = [
        [path, rank, s.label, _decimal(s.similarity), s.head, "", known, _decimal(s.probability)]
        for rank, s in enumerate(prediction.best, start=1)
    ]
    if not prediction.known and len(rows) == 1:  # with --top, the nearest classes are still listed
        rows[0][2] = UNKNOWN
    return rows


def _decimal(value: float | None) -> Decimal | str:
    return "" if value is None else Decimal(f"{value:.4f}")


def _plain(prediction: Prediction) -> dict[str, Any]:
    if prediction.error:
        return {"path": prediction.path, "error": prediction.error}
    top = [scored.plain() for scored in prediction.best]
    label = {} if prediction.known else {"class": None}
    return {"path": prediction.path, **top[0], **label, "known": prediction.known, "top": top}


def _lines(prediction: Prediction, width: int) -> Iterator[str]:
    start = escape(prediction.path)
    indent = " " * cell_len(start)
    if not prediction.known and len(prediction.best) == 1:  # its probability is not that of unknown
        yield f"{start}  {UNKNOWN}, nearest class: {escape(str(prediction.best[0].label))}\n"
        return
    if not prediction.known:
        yield f"{start}  {UNKNOWN}, nearest classes:\n"
        start = indent
    for scored in prediction.best:
        label = escape(str(scored.label))
        gap = " " * (width - cell_len(label))
        sure = f"{scored.similarity: .3f}"
        if scored.probability is not None:
            sure = f"{100 * scored.probability:5.1f} %"
        yield f"{start}  {label}{gap}  {sure}\n"
        start = indent


def _chunks(items: Iterable[Input], size: int) -> Iterator[list[Input]]:
    """Group consecutive items that can be stacked: files, or arrays of one shape and type."""
    for _, group in groupby(items, _kind):
        while chunk := list(islice(group, size)):
            yield chunk


def _kind(item: Input) -> tuple[Any, ...]:
    row = item[1] if isinstance(item, tuple) else None
    return (row.dtype, row.shape) if isinstance(row, np.ndarray) else ()
