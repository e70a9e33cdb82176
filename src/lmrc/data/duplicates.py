"""Images that are in a data set twice: the same pixels, or re-encoded, resized, mirrored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 24  # pixels, of the small grey copies that are compared
SIMILAR = 0.985  # correlation of two such copies, at least
PLAIN = 2.0  # standard deviation of grey values below which a copy shows nothing to compare
_ROWS = 2048  # compared at a time


class Pair(NamedTuple):
    """Two images, by position, and how they agree: "same pixels", "similar" or "mirrored"."""

    first: int
    second: int
    kind: str
    similarity: float


class Thumbprint(NamedTuple):
    """What is compared of an image."""

    digest: bytes
    grey: NDArray[np.float32]


def thumbprint(pixels: NDArray[np.uint8]) -> Thumbprint:
    """Return what is compared of an image of shape (height, width[, 3])."""
    digest = hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()
    grey = Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return Thumbprint(digest, np.asarray(grey, dtype=np.float32))


def duplicates(prints: list[Thumbprint]) -> list[Pair]:
    """Return all pairs of images that are the same or nearly so, in order of position.

    Examples
    --------
    >>> import numpy as np
    >>> from lmrc.data.duplicates import duplicates, thumbprint
    >>> image = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    >>> other = np.random.default_rng(1).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    >>> pairs = duplicates([thumbprint(i) for i in (image, other, image[:, ::-1], image)])
    >>> [(pair.first, pair.second, pair.kind) for pair in pairs]
    [(0, 2, 'mirrored'), (0, 3, 'same pixels'), (2, 3, 'mirrored')]
    """
    if not prints:
        return []
    return sorted(_pairs(prints))


def _pairs(prints: list[Thumbprint]) -> Iterator[Pair]:
    grey = np.stack([one.grey for one in prints])
    shows = grey.std(axis=(1, 2)) >= PLAIN
    upright, mirrored = (_standardised(part) for part in (grey, grey[:, :, ::-1]))
    for start in range(0, len(prints), _ROWS):
        rows = upright[start : start + _ROWS]
        straight, flipped = rows @ upright.T, rows @ mirrored.T
        best = np.maximum(straight, flipped)
        best[~shows[start : start + _ROWS]] = 0
        best[:, ~shows] = 0
        same = _same(prints, start, len(rows))
        for i, j in zip(*np.nonzero((best >= SIMILAR) | same), strict=True):
            first, second = start + int(i), int(j)
            if first >= second:
                continue
            if same[i, j]:
                yield Pair(first, second, "same pixels", 1.0)
            else:
                kind = "similar" if straight[i, j] >= flipped[i, j] else "mirrored"
                yield Pair(first, second, kind, float(min(best[i, j], 1.0)))


def _standardised(grey: NDArray[np.float32]) -> NDArray[np.float32]:
    flat = grey.reshape(len(grey), -1)
    flat = flat - flat.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    found: NDArray[np.float32] = flat / np.maximum(norm, 1e-6)
    return found


def _same(prints: list[Thumbprint], start: int, n: int) -> NDArray[np.bool_]:
    numbers = {one.digest: i for i, one in reversed([*enumerate(prints)])}
    ids = np.array([numbers[one.digest] for one in prints])
    found: NDArray[np.bool_] = ids[start : start + n, None] == ids[None]
    return found
