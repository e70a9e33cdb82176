"""``lmrc predict``: what a model sees in images."""

from __future__ import annotations

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
from lmrc.data.images import UnreadableImageError, list_images, read_image
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.outside import csv_cell, shown
from lmrc.practice.batch import form_of
from lmrc.practice.usage import UsageError, warn

STANDARD_INPUT = "-"
UNKNOWN = "unknown"
AT_A_TIME = 256  # images in memory


@dataclass(frozen=True)
class Guess:
    """A class that an image may be of, its similarity and its head, counted from 1."""

    label: Any
    similarity: float
    head: int


@dataclass(frozen=True)
class Answer:
    """What a model sees in one image: its best guesses, or why there are none.

    Attributes
    ----------
    path : str
        The image.
    guesses : list of Guess
        Best first.
    known : bool
        Whether the best is good enough.
    error : str
        Why the image could not be read; empty if it could.
    """

    path: str
    guesses: list[Guess]
    known: bool = True
    error: str = ""


#: An image to name: its path; a name and the bytes of a file, or its pixels; or an answer already.
Asked = str | tuple[str, bytes | NDArray[Any]] | Answer


def predict(
    model: LMRCClassifier,
    images: Iterable[Asked],
    *,
    top: int = 1,
    reject_below: float | None = None,
) -> Iterator[Answer]:
    """Yield what a model sees in images, in their order; one that cannot be read has an error.

    Parameters
    ----------
    model : LMRCClassifier
    images : iterable
        Paths; or pairs of a name and the bytes of a file, or what is in it already as an array; or
        answers, which are passed on.
    top : int, default=1
        How many classes to name.
    reject_below : float or None
        An image whose best similarity is lower is of no known class.
    """
    head_of = [i for i, head in enumerate(model.heads_, start=1) for _ in head]
    labels = model.classes_.tolist()
    for chunk in _chunks(images, AT_A_TIME):
        read = [_read(image, model) for image in chunk]
        pixels = [found for _, found in read if not isinstance(found, str)]
        similarities = iter(model.similarities(np.stack(pixels)) if pixels else np.empty((0, 1)))
        for name, found in read:
            if isinstance(found, str):
                yield Answer(name, [], error=found)
                continue
            scores = next(similarities)
            best = np.argsort(-scores, kind="stable")[:top].tolist()
            guesses = [Guess(labels[i], float(scores[i]), head_of[i]) for i in best]
            known = reject_below is None or guesses[0].similarity >= reject_below
            yield Answer(name, guesses, known)


def _read(image: Asked, model: LMRCClassifier) -> tuple[str, Any]:
    """Return the name of an image, and its pixels or why there are none."""
    if isinstance(image, Answer):
        return image.path, image.error
    file: str | io.BytesIO
    if isinstance(image, str):
        name = file = image
    elif isinstance(image[1], np.ndarray):
        return image
    else:
        name, file = image[0], io.BytesIO(image[1])
    size, mode = form_of(model.input_shape_)
    try:
        return name, read_image(file, size, mode)
    except UnreadableImageError as error:
        return name, str(error)


def find_images(arguments: Sequence[str]) -> Iterator[Asked]:
    """Yield the images that a user means: files, folders, patterns, or standard input.

    Of an ``.npz`` file, each row of its array X is one, whether it is an image or a vector.
    Standard input (``-``) is an image, or a list of paths with one on each line. For a folder or
    a pattern that has none there is an answer that says so.
    """
    for argument in arguments:
        path = Path(argument)
        if argument == STANDARD_INPUT:
            yield from _standard_input()
        elif path.is_dir():
            found = list_images(path)
            yield from map(str, found)
            if not found:
                yield Answer(argument, [], error=f"there are no images in {path}")
        elif path.suffix.lower() == ".npz" and path.exists():
            rows = load_arrays(path, "X")["X"]
            yield from ((f"{argument}[{i}]", row) for i, row in enumerate(rows))
            if not len(rows):
                yield Answer(argument, [], error=f"X of {path} is empty")
        elif not path.exists() and glob.has_magic(argument):
            matching = sorted(glob.glob(argument, recursive=True))  # noqa: PTH207  # absolute, too
            yield from matching
            if not matching:
                yield Answer(argument, [], error=f"nothing matches {argument}")
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
                "standard input is neither an image that can be read nor a list of paths"
            ) from None
        yield from paths
    else:
        yield STANDARD_INPUT, content


def widest(labels: Iterable[Any]) -> int:
    """Return how many columns of a terminal the widest label takes."""
    return max(cell_len(shown(str(label))) for label in labels)


def write_answers(
    answers: Iterable[Answer], form: str, file: TextIO, *, quiet: bool = False, width: int = 0
) -> int:
    """Write answers as "text", "csv" or "json" (an object on each line); return the failures.

    Failures are named on standard error, unless quiet. In text, names of classes take so much width
    at least: columns of a terminal, of which some letters take two, and accents none.
    """
    failures = 0
    table = csv.writer(file, lineterminator="\n") if form == "csv" else None
    if table:
        table.writerow(["path", "rank", "class", "similarity", "head", "error", "known"])
    for answer in answers:
        failures += bool(answer.error)
        if answer.error and not quiet:
            warn(answer.error)
        if table:
            table.writerows([csv_cell(cell) for cell in row] for row in _rows(answer))
        elif form == "json":
            file.write(shown(json.dumps(_plain(answer), ensure_ascii=False)) + "\n")
        else:
            file.writelines(_lines(answer, width))
        file.flush()
    return failures


def _rows(answer: Answer) -> list[list[Any]]:
    if answer.error:
        return [[answer.path, "", "", "", "", answer.error, ""]]
    known = "true" if answer.known else "false"
    rows = [
        [answer.path, rank, guess.label, Decimal(f"{guess.similarity:.4f}"), guess.head, "", known]
        for rank, guess in enumerate(answer.guesses, start=1)
    ]
    if not answer.known and len(rows) == 1:  # who asks for more wants to see what was nearest
        rows[0][2] = UNKNOWN
    return rows


def _plain(answer: Answer) -> dict[str, Any]:
    if answer.error:
        return {"path": answer.path, "error": answer.error}
    best = answer.guesses[0]
    return {
        "path": answer.path,
        "class": best.label if answer.known else None,
        "similarity": round(best.similarity, 4),
        "head": best.head,
        "top": [
            {"class": g.label, "similarity": round(g.similarity, 4), "head": g.head}
            for g in answer.guesses
        ],
    }


def _lines(answer: Answer, width: int) -> Iterator[str]:
    named, place = answer.known, shown(answer.path)
    indent = " " * cell_len(place)
    if not named and len(answer.guesses) > 1:  # who asks for more wants to see what was nearest
        yield f"{place}  {UNKNOWN}, nearest to it:\n"
        named, place = True, indent
    for guess in answer.guesses:
        label = shown(str(guess.label)) if named else UNKNOWN
        gap = " " * (width - cell_len(label))
        yield f"{place}  {label}{gap}  {guess.similarity: .3f}  head {guess.head}\n"
        place = indent


def _chunks(items: Iterable[Asked], size: int) -> Iterator[list[Asked]]:
    """Part items that can be stacked; arrays of several kinds, and files beside them, cannot."""
    for _, alike in groupby(items, _kind):
        while chunk := list(islice(alike, size)):
            yield chunk


def _kind(item: Asked) -> tuple[Any, ...]:
    row = item[1] if isinstance(item, tuple) else None
    return (row.dtype, row.shape) if isinstance(row, np.ndarray) else ()
