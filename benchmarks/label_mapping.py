"""Time Algorithm 1: the usual loop and ours, side by side, and how ours grows.

Run ``python benchmarks/label_mapping.py``, which takes about four minutes on two cores, or with
``--quick`` for a smaller mapping, which takes some seconds.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from typing import Any, NamedTuple

import numpy as np

from lmrc.labels.mapping import LabelMapping

MAX_TRIES = 10_000


class Timing(NamedTuple):
    """What filling a mapping to its capacity took."""

    found: int
    tested: int
    seconds: float

    @property
    def per_candidate(self) -> float:
        """Seconds a candidate."""
        return self.seconds / self.tested


def usual_loop(
    dim: int, threshold: float, seed: int, dtype: type[np.float32] | type[np.float64]
) -> Timing:
    """Draw one candidate at a time and compare it with all vectors in one product."""
    start = time.perf_counter()
    rng = np.random.default_rng(seed)
    vectors = np.empty((10_000, dim), dtype=dtype)
    found = tested = tries = 0
    while tries <= MAX_TRIES:
        vector = rng.standard_normal(dim, dtype=dtype)
        vector /= np.linalg.norm(vector)
        tested += 1
        if found == 0 or (vectors[:found] @ vector).max() <= threshold:
            vectors[found] = vector
            found += 1
            tries = 0
        else:
            tries += 1
    return Timing(found, tested, time.perf_counter() - start)


class CountedMapping(LabelMapping):
    """Counts the candidates it samples."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts: list[int] = []  # of threads: only appending is safe

    def _sample(self, count: int, stream: np.random.Generator) -> Any:
        self.counts.append(count)
        return super()._sample(count, stream)


def ours(dim: int, threshold: float, seed: int) -> Timing:
    start = time.perf_counter()
    mapping = CountedMapping(dim, threshold, MAX_TRIES, seed)
    mapping._fill(None)
    return Timing(len(mapping), sum(mapping.counts), time.perf_counter() - start)


def side_by_side(dim: int, threshold: float, seed: int) -> None:
    print(f"\nFilled to capacity: d = {dim}, T = {threshold}, γ = {MAX_TRIES:,}\n")
    print(f"{'':<22}{'vectors':>8}{'candidates':>12}{'seconds':>9}{'µs each':>9}{'ratio':>7}")
    # Ours before, between and after the loops, lest another program's minute decide.
    fast = [ours(dim, threshold, seed)]
    double = usual_loop(dim, threshold, seed, np.float64)
    fast.append(ours(dim, threshold, seed + 1))
    single = usual_loop(dim, threshold, seed, np.float32)
    fast.append(ours(dim, threshold, seed + 2))
    median = sorted(timing.per_candidate for timing in fast)[1]
    for name, timing in [
        ("usual loop, float64", double),
        ("usual loop, float32", single),
        *((f"ours, seed {seed + i}", timing) for i, timing in enumerate(fast)),
    ]:
        print(
            f"{name:<22}{timing.found:>8,}{timing.tested:>12,}{timing.seconds:>9.2f}"
            f"{1e6 * timing.per_candidate:>9.2f}{timing.per_candidate / median:>7.1f}"
        )
    print("\nRatio: time a candidate, over the median of ours. How many are needed is luck.")


def growth(dim: int, threshold: float, counts: list[int], seed: int) -> None:
    mapping = CountedMapping(dim, threshold, MAX_TRIES, seed)
    start = time.perf_counter()
    for count in counts:
        mapping.extend(count - len(mapping))
        seconds = time.perf_counter() - start
        print(
            f"{dim:>6}{threshold:>6}{count:>8,}{sum(mapping.counts):>12,}{seconds:>10.4f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller mapping, in seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    print(f"{platform.machine()}, {os.cpu_count()} cores, numpy {np.__version__}")
    side_by_side(100 if options.quick else 200, 0.2, options.seed)
    print("\nHow ours grows: from an empty mapping to n vectors\n")
    print(f"{'d':>6}{'T':>6}{'n':>8}{'candidates':>12}{'seconds':>10}")
    large = [100, 1_000] if options.quick else [100, 1_000, 3_000, 10_000]
    growth(100, 0.15, [10, 50, 90], options.seed)
    growth(200, 0.2, [100, 1_000, 2_000, 3_000], options.seed)
    growth(500, 0.2, large, options.seed)
    growth(1_000, 0.3, large, options.seed)


if __name__ == "__main__":
    main()
