"""Images that are in a data set twice: the same pixels, or re-encoded, resized, mirrored."""

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
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


def pixel_digest(pixels: NDArray[np.uint8]) -> bytes:
    """Return a digest of an image's pixels and shape."""
    return hashlib.sha256(repr(pixels.shape).encode() + pixels.tobytes()).digest()


def copies(digests: Iterable[Hashable]) -> list[list[int]]:
    """Return the positions of images with the same digest, a list for each that is there twice.

    >>> copies([b"a", b"b", b"a", b"c", b"a"])
    [[0, 2, 4]]
    """
    positions = defaultdict(list)
    for i, digest in enumerate(digests):
        positions[digest].append(i)
    return [same for same in positions.values() if len(same) > 1]


def thumbprint(pixels: NDArray[np.uint8]) -> Thumbprint:
    """Return what is compared of an image of shape (height, width[, 3])."""
    grey = Image.fromarray(pixels).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
    return Thumbprint(pixel_digest(pixels), np.asarray(grey, dtype=np.float32))


def duplicates(prints: list[Thumbprint]) -> list[Pair]:
    """Return pairs of images that are the same or nearly so, in order of position.

    Images with the same pixels are paired with the first of them, and only that one with others.

    >>> import numpy as np
    >>> image = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    >>> other = np.random.default_rng(1).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    >>> pairs = duplicates([thumbprint(i) for i in (image, other, image[:, ::-1], image)])
    >>> [(pair.first, pair.second, pair.kind) for pair in pairs]
    [(0, 2, 'mirrored'), (0, 3, 'same pixels')]
    """
    if not prints:
        return []
    return sorted(_pairs(prints))


def _pairs(prints: list[Thumbprint]) -> Iterator[Pair]:
    once = np.ones(len(prints), dtype=bool)
    for first, *others in copies(one.digest for one in prints):
        once[others] = False
        yield from (Pair(first, other, "same pixels", 1.0) for other in others)
    grey = np.stack([one.grey for one in prints])
    rows = np.flatnonzero(once & (grey.std(axis=(1, 2)) >= PLAIN))
    upright, mirrored = (_standardised(part[rows]) for part in (grey, grey[:, :, ::-1]))
    for start in range(0, len(rows), _ROWS):
        now = upright[start : start + _ROWS]
        straight, flipped = now @ upright.T, now @ mirrored.T
        best = np.maximum(straight, flipped)
        for i, j in zip(*np.nonzero(np.triu(best >= SIMILAR, start + 1)), strict=True):
            kind = "similar" if straight[i, j] >= flipped[i, j] else "mirrored"
            similarity = float(min(best[i, j], 1.0))
            yield Pair(int(rows[start + i]), int(rows[j]), kind, similarity)


def _standardised(grey: NDArray[np.float32]) -> NDArray[np.float32]:
    flat = grey.reshape(len(grey), SIDE * SIDE)
    flat = flat - flat.mean(axis=1, keepdims=True)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    found: NDArray[np.float32] = flat / np.maximum(norm, 1e-6)
    return found
