"""The directions along which features vary most."""

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse.linalg
import torch
from torch import Tensor

from lmrc.threads import Threads

ITERATIVE = 2048  # features from which a few directions are found iteratively

Array = npt.NDArray[np.float64]


def largest(matrix: Tensor, rank: int) -> Tensor:
    """Return the largest directions of a covariance, as long as the deviations: (width, rank)."""
    with Threads(1) as thread:  # for its one BLAS thread
        (found,) = thread.map(directions, [matrix.numpy()], [rank])
    return torch.from_numpy(found)


def directions(matrix: Array, rank: int) -> Array:
    """Return the largest directions of a symmetric matrix, as `largest`."""
    width = len(matrix)
    # Not torch's, which finds all directions where a few are wanted, in over twice the time.
    if width >= ITERATIVE and matrix.any():  # iteratively, which is faster
        start = np.random.default_rng(0).standard_normal(width)
        values, found = scipy.sparse.linalg.eigsh(matrix, rank, which="LA", v0=start, tol=1e-4)
        # With either sign it is the same direction: the largest part is to be positive.
        found *= np.sign(found[np.abs(found).argmax(axis=0), np.arange(rank)])
    else:
        values, found = scipy.linalg.eigh(matrix, subset_by_index=[width - rank, width - 1])
    scaled: Array = found * np.sqrt(values.clip(min=0))
    return scaled
