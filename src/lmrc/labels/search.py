"""The search of Algorithm 1 in chunks: many candidates compared by one matrix product.

The result is that of one candidate after another, to the last bit.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lmrc.threads import Threads

Floats = npt.NDArray[np.float32]
Positions = npt.NDArray[np.intp]

STREAMS = 4  # independent random streams: each thread samples and tests its share of a chunk

# Tuned for speed on two cores, with a full mapping of 3,400 vectors at d = 200, T = 0.2.
MIN_CANDIDATES, MAX_CANDIDATES = 16, 2**14  # in a chunk,
MAX_NUMBERS = 2**22  # with at most so many numbers in all, 16 MB,
MAX_EXPECTED = 1024  # and at most so many candidates that are likely to be accepted
MIN_THREADED = 2**18  # numbers from which threads pay
_LABELS_AT_ONCE = (64, 1024)  # label vectors compared before rejected candidates are dropped
_LABEL_CHUNKS = 24


def random_streams(random_state: Any) -> list[np.random.Generator]:
    """Seed a few independent generators, so that threads can sample large chunks."""
    if isinstance(random_state, np.random.RandomState):
        entropy = random_state.randint(2**32, size=4, dtype=np.uint32)
    else:
        entropy = np.random.default_rng(random_state).integers(2**32, size=4, dtype=np.uint32)
    seeds = np.random.SeedSequence(entropy.tolist()).spawn(STREAMS)
    # SFC64 is a sixth faster than the default generator, and sampling a fifth of the work.
    return [np.random.Generator(np.random.SFC64(seed)) for seed in seeds]


def chunk_size(n: int, dim: int, wanted: int | None, tries_left: int, acceptance: float) -> int:
    """Choose how many candidates to sample at once.

    For `n` label vectors, if so many new ones are `wanted` (None: as many as fit), the search is
    over after `tries_left` failures, and a share of `acceptance` was accepted lately.
    """
    # At most a quarter of the mapping is to be found in one chunk: the candidates that pass are
    # then few compared with the label vectors, and so are the cosines among them.
    expected = min(max(MIN_CANDIDATES, n // 4), MAX_EXPECTED)
    if wanted is not None:
        expected = min(expected, wanted)
    limit = min(MAX_CANDIDATES, MAX_NUMBERS // dim, tries_left)
    return max(MIN_CANDIDATES, min(int(1.25 * expected / acceptance), limit))


def candidates(
    sample: Callable[[int, np.random.Generator], Floats],
    count: int,
    streams: list[np.random.Generator],
    labels: Floats,
    threshold: float,
    threads: Threads,
) -> tuple[Positions, Floats]:
    """Sample a chunk of candidates; return those that keep the threshold, as `far_from_labels`."""
    if count * labels.shape[1] < MIN_THREADED:
        return far_from_labels(sample(count, streams[0]), labels, threshold)
    # The shares are the same on any machine, and so are the vectors that a seed gives.
    bounds = [count * share // STREAMS for share in range(STREAMS + 1)]
    found = threads.map(
        lambda share, stream: far_from_labels(sample(share, stream), labels, threshold),
        np.diff(bounds).tolist(),
        streams,
    )
    positions = [start + share for start, (share, _) in zip(bounds, found, strict=False)]
    return np.concatenate(positions), np.concatenate([units for _, units in found])


def far_from_labels(chunk: Floats, labels: Floats, threshold: float) -> tuple[Positions, Floats]:
    """Select the candidates whose cosine with every label vector keeps the threshold.

    Returns their positions in the chunk, and the candidates at unit length.
    """
    positions = np.arange(len(chunk))
    norms = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
    highest = np.full(len(chunk), -np.inf, dtype=np.float32)
    slack = _slack(chunk.shape[1])
    # Near capacity all but one in thousands of candidates fail, most of them early:
    # going on with the survivors only saves most of the products.
    step = min(max(_LABELS_AT_ONCE[0], len(labels) // _LABEL_CHUNKS), _LABELS_AT_ONCE[1])
    for start in range(0, len(labels), step):
        # v·c ≤ T‖v‖ instead of cos ≤ T: a candidate that fails is never normalised.
        dots = (chunk @ labels[start : start + step].T).max(axis=1)
        np.maximum(highest, dots, out=highest)
        kept = np.flatnonzero(highest <= np.float32(threshold + slack) * norms)
        if len(kept) < len(chunk):
            chunk, norms, highest = chunk.take(kept, axis=0), norms[kept], highest[kept]
            positions = positions[kept]
    units = _normalised(chunk)
    close = np.flatnonzero(highest > np.float32(threshold - slack) * norms)
    failed = [i for i in close if _exact_cosines(units[i], labels).max() > threshold]
    return np.delete(positions, failed), np.delete(units, failed, axis=0)


def accept_in_order(
    positions: Positions,
    units: Floats,
    threshold: float,
    tries: int,
    max_tries: int,
    wanted: int | None,
) -> tuple[list[int], int]:
    """Accept candidates one after another, if far from those accepted before in this chunk.

    Returns which, and the position of the last success in the chunk. A position of ``-1 - tries``
    stands for a success before the chunk, that many failures ago.
    """
    limit = len(units) if wanted is None else wanted
    too_close = _pairs_too_close(units, threshold)
    blocked = np.zeros(len(units), dtype=bool)
    chosen: list[int] = []
    last = -1 - tries
    for i, position in enumerate(positions.tolist()):
        if len(chosen) == limit or position - last - 1 > max_tries:
            break
        if not blocked[i]:
            chosen.append(i)
            blocked |= too_close[i]
            last = position
    return chosen, last


def _pairs_too_close(units: Floats, threshold: float) -> npt.NDArray[np.bool_]:
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


def _normalised(chunk: Floats) -> Floats:
    wide = chunk.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    return wide.astype(np.float32)


def _exact_cosines(unit: Floats, labels: Floats) -> npt.NDArray[np.float64]:
    """Cosines and inner products in float64 of the vectors as stored: both must keep to T."""
    wide, one = labels.astype(np.float64), unit.astype(np.float64)
    dots: npt.NDArray[np.float64] = wide @ one
    cosines = dots / np.linalg.norm(wide, axis=1) / np.linalg.norm(one)
    highest: npt.NDArray[np.float64] = np.maximum(dots, cosines)
    return highest
