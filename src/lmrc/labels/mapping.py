"""Label Mapping (Algorithm 1): random unit vectors, whose cosines are at most T."""

import operator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lmrc.labels.errors import CapacityError, warn_of_capacity
from lmrc.labels.search import (
    STREAMS,
    Floats,
    accept_in_order,
    candidates,
    chunk_size,
    random_streams,
)
from lmrc.labels.theory import check_setting, whole_number
from lmrc.threads import Threads

_RELAX_STEP = 0.005
_RELAX_END = 0.995
_NORM_TOLERANCE = 1e-5


class LabelMapping:
    """The candidate set S of Algorithm 1: unit vectors whose pairwise cosines are at most T.

    Vectors are sampled uniformly from the sphere; one that is too close to an earlier one is
    discarded. A vector in S never changes.

    Parameters
    ----------
    dim : int
        Dimension d of a label vector.
    threshold : float
        Highest cosine T between two label vectors.
    max_tries : int
        Sampling limit γ: after more failures in a row, the mapping is full.
    random_state : None, int, SeedSequence, Generator or RandomState
        Seed; the same one gives the same vectors. From a Generator or RandomState only a seed is
        taken.
    vectors : array of shape (n, dim), optional
        Unit vectors to start from. They are copied and accepted as they are: the threshold holds
        for the vectors that come after them.

    Attributes
    ----------
    threshold : float
        The threshold now: ``on_full="relax"`` may have raised it.

    Examples
    --------
    >>> mapping = LabelMapping(dim=100, threshold=0.15, random_state=0)
    >>> first = mapping.extend(10)
    >>> second = mapping.extend(10)
    >>> cosines = mapping.vectors @ mapping.vectors.T
    >>> len(mapping), bool((cosines[~np.eye(20, dtype=bool)] <= 0.15 + 1e-6).all())
    (20, True)
    """

    def __init__(
        self,
        dim: int = 100,
        threshold: float = 0.15,
        max_tries: int = 10_000,
        random_state: Any = None,
        *,
        vectors: npt.ArrayLike | None = None,
    ) -> None:
        check_setting(dim, threshold, max_tries)
        self.dim, self.max_tries = operator.index(dim), operator.index(max_tries)
        self.threshold = float(threshold)
        self._streams = random_streams(random_state)
        given = np.empty((0, dim)) if vectors is None else _checked_vectors(vectors, dim)
        self._buffer = np.array(given, dtype=np.float32, order="C")
        self._size = len(given)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        parameters = f"dim={self.dim}, threshold={self.threshold:g}, max_tries={self.max_tries}"
        return f"<LabelMapping of {len(self)} vectors, {parameters}>"

    @property
    def vectors(self) -> Floats:
        """The set S so far, in order: a read-only array of shape (len(mapping), dim)."""
        view = self._buffer[: self._size]
        view.flags.writeable = False
        return view

    def extend(self, n: int, *, on_full: Literal["raise", "relax"] = "raise") -> Floats:
        """Find label vectors for ``n`` new classes and add them to S.

        Parameters
        ----------
        n : int
            New classes N.
        on_full : {"raise", "relax"}
            What to do when the mapping is full: raise a :class:`~lmrc.CapacityError` and add
            nothing, or raise the threshold in steps of 0.005 until all fit, with one
            :class:`~lmrc.CapacityWarning`.

        Returns
        -------
        array of shape (n, dim), float32
            The new vectors.

        Examples
        --------
        >>> LabelMapping(dim=20, random_state=0).extend(3).shape
        (3, 20)
        >>> LabelMapping(dim=20, random_state=0).extend(100)
        Traceback (most recent call last):
            ...
        lmrc.labels.errors.CapacityError: found only ... of the 100 label vectors requested...
        """
        if on_full not in ("raise", "relax"):
            raise ValueError(f"on_full={on_full!r} is not known: choose 'raise' or 'relax'")
        n_new = whole_number("n", n, at_least=0)
        n_cur, threshold = len(self), self.threshold  # line 1
        try:
            while not self._fill(n_cur + n_new):
                if on_full == "raise" or self.threshold >= _RELAX_END:
                    parameters = (self.dim, self.threshold, self.max_tries)
                    raise CapacityError(len(self) - n_cur, n_new, n_cur, *parameters)
                self.threshold = min(round(self.threshold + _RELAX_STEP, 6), _RELAX_END)
            if self.threshold != threshold:
                warn_of_capacity(
                    f"the mapping was full: its threshold went from {threshold:g} to "
                    f"{self.threshold:g} to make room for {n_new} more vectors, {len(self)} in "
                    "all. A larger dim (label_dim in a classifier) would hold them at a lower one"
                )
        except BaseException:  # an interrupt, too, leaves the mapping as it was
            self._size, self.threshold = n_cur, threshold
            raise
        return self._buffer[n_cur : self._size].copy()  # the new part of S; line 14 returns all

    def _fill(self, target: int | None) -> bool:
        """Run lines 2 to 13 up to ``target`` vectors; False if try_time exceeded γ.

        Without a target, as many vectors are added as fit.

        Candidates are sampled and compared in chunks; the result is that of one after another.
        """
        try_time, acceptance = 0, 1.0  # line 2
        with Threads(STREAMS) as threads:
            while target is None or len(self) < target:  # line 3
                if try_time > self.max_tries:
                    return False
                wanted = None if target is None else target - len(self)
                tries_left = self.max_tries + 1 - try_time
                count = chunk_size(len(self), self.dim, wanted, tries_left, acceptance)
                # Line 4, and line 7 for the v_c that are in S already; an empty S passes (line 5).
                positions, units = candidates(
                    self._sample, count, self._streams, self.vectors, self.threshold, threads
                )
                # Line 7 for the v_c of this very chunk.
                chosen, last = accept_in_order(
                    positions, units, self.threshold, try_time, self.max_tries, wanted
                )
                self._append(units[chosen])  # lines 6 and 8
                try_time = count - 1 - last  # lines 9 and 11: candidates since the last in S
                acceptance = (len(chosen) + 1) / (count + 1)
        return True

    def _sample(self, count: int, stream: np.random.Generator) -> Floats:
        """Line 4: sample v_s. Gaussian, so uniform in direction (Lemma 1); not yet normalised."""
        return stream.standard_normal((count, self.dim), dtype=np.float32)

    def _append(self, units: Floats) -> None:
        """S = S ∪ v_s. The buffer doubles, so n vectors cost O(n)."""
        size = self._size + len(units)
        if size > len(self._buffer):
            buffer = np.empty((max(size, 2 * len(self._buffer)), self.dim), dtype=np.float32)
            buffer[: self._size] = self._buffer[: self._size]
            self._buffer = buffer
        self._buffer[self._size : size] = units
        self._size = size


def _checked_vectors(vectors: npt.ArrayLike, dim: int) -> npt.NDArray[Any]:
    given = np.asarray(vectors)
    if given.ndim != 2 or given.shape[1] != dim:
        raise ValueError(f"vectors has shape {given.shape}: it must be (n, {dim}), as dim={dim}")
    norms = np.linalg.norm(given.astype(np.float64), axis=1)
    wrong = np.flatnonzero(~(np.abs(norms - 1) <= _NORM_TOLERANCE))
    if len(wrong):
        raise ValueError(
            f"vectors[{wrong[0]}] has norm {norms[wrong[0]]:g} instead of 1: "
            "divide each vector by its norm"
        )
    return given
