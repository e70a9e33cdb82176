"""Seeds of a classifier's RNGs: from its own seed, the task, and the purpose."""

import hashlib
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

#: Purposes of random numbers: part of the seed, so that no two streams are the same.
NETWORK, LABELS, EXEMPLARS, EPOCH, STATISTICS = range(5)
FORGET, ADAPTATION, CALIBRATION, MEMBER, SNAPSHOTS = range(5, 10)


def seed_from(random_state: Any) -> int:
    """Return the seed that a ``random_state`` stands for."""
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def derived_seed(seed: int, *purpose: int) -> int:
    """Return a seed for one purpose, unlike that of any other."""
    sequence = np.random.SeedSequence(seed, spawn_key=purpose)
    return int(sequence.generate_state(1, np.uint64)[0]) >> 1  # numpy 1 shifts no uint64 by an int


def one_way_seeds(seed: int, secret: bytes) -> tuple[int, int]:
    """Return two seeds, neither of which tells the other or what they come of.

    The first is one that a ``random_state`` may be.
    """
    digest = hashlib.sha256(b"%d " % seed + secret).digest()
    return int.from_bytes(digest[:4], "big") >> 1, int.from_bytes(digest[8:16], "big") >> 1
