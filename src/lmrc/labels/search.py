"""The search of Algorithm 1 in blocks: whole sets of candidates tested by matrix product."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Positions = npt.NDArray[np.intp]

STREAMS = 4  # of random numbers: each thread draws and tests its share of a block

# Set for speed, on two cores with a full mapping of 3,400 vectors at d = 200, T = 0.2.
_CHUNK = (64, 1024)  # label vectors to compare with before the failed candidates go
_CHUNKS = 24


def far_from_labels(block: Floats, labels: Floats, threshold: float) -> tuple[Positions, Floats]:
    """Select the candidates that keep to the threshold with every label vector.

    Returns their positions in the block and, of unit length, themselves.
    """
    positions = np.arange(len(block))
    norms = np.sqrt(np.einsum("ij,ij->i", block, block))
    highest = np.full(len(block), -np.inf, dtype=np.float32)
    slack = _slack(block.shape[1])
    # Near capacity all but one in thousands of candidates fail, and most of them early on:
    # to go on with the survivors only saves most of the products.
    chunk = min(max(_CHUNK[0], len(labels) // _CHUNKS), _CHUNK[1])
    for start in range(0, len(labels), chunk):
        # v·c ≤ T‖v‖ instead of cos ≤ T: a candidate that fails is never normalised.
        dots = (block @ labels[start : start + chunk].T).max(axis=1)
        np.maximum(highest, dots, out=highest)
        kept = np.flatnonzero(highest <= np.float32(threshold + slack) * norms)
        if len(kept) < len(block):
            block, norms, highest = block.take(kept, axis=0), norms[kept], highest[kept]
            positions = positions[kept]
    units = _normalised(block)
    close = np.flatnonzero(highest > np.float32(threshold - slack) * norms)
    failed = [i for i in close if _exact_cosines(units[i], labels).max() > threshold]
    return np.delete(positions, failed), np.delete(units, failed, axis=0)


def pairs_too_close(units: Floats, threshold: float) -> npt.NDArray[np.bool_]:
    """Tell which later vectors are too close to which earlier ones (rows)."""
    cosines = units @ units.T
    too_close = cosines > threshold
    unsure = np.triu(np.abs(cosines - threshold) <= _slack(units.shape[1]), k=1)
    for i, j in np.argwhere(unsure):
        too_close[i, j] = _exact_cosines(units[i], units[[j]]).max() > threshold
    return too_close


def _slack(dim: int) -> float:
    """Bound the error of a float32 cosine: rounding grows as √dim, norms are right to 1e-5."""
    return 2e-5 + 4 * math.sqrt(dim) * 2.0**-24


def _normalised(block: Floats) -> Floats:
    wide = block.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    return wide.astype(np.float32)


def _exact_cosines(unit: Floats, labels: Floats) -> npt.NDArray[np.float64]:
    """Cosines in float64 of the vectors as stored, and the inner products: both must keep to T."""
    wide, one = labels.astype(np.float64), unit.astype(np.float64)
    dots: npt.NDArray[np.float64] = wide @ one
    cosines = dots / np.linalg.norm(wide, axis=1) / np.linalg.norm(one)
    highest: npt.NDArray[np.float64] = np.maximum(dots, cosines)
    return highest


def random_streams(random_state: Any) -> list[np.random.Generator]:
    """Seed a few independent generators, so that large blocks are drawn by threads."""
    if isinstance(random_state, np.random.RandomState):
        entropy = random_state.randint(2**32, size=4, dtype=np.uint32)
    else:
        entropy = np.random.default_rng(random_state).integers(2**32, size=4, dtype=np.uint32)
    seeds = np.random.SeedSequence(entropy.tolist()).spawn(STREAMS)
    # SFC64 is a sixth faster than the default generator, and drawing a fifth of the work.
    return [np.random.Generator(np.random.SFC64(seed)) for seed in seeds]
