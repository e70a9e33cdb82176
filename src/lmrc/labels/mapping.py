"""Algorithm 1: random unit vectors as class labels, every two of them nearly orthogonal."""

from __future__ import annotations

import inspect
import operator
import warnings
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lmrc.labels import capacity
from lmrc.labels.search import (
    STREAMS,
    Floats,
    Positions,
    far_from_labels,
    pairs_too_close,
    random_streams,
)
from lmrc.threads import Threads

_RELAX_STEP = 0.005
_RELAX_END = 0.995
_NORM_TOLERANCE = 1e-5

# Set for speed, on two cores with a full mapping of 3,400 vectors at d = 200, T = 0.2.
_BLOCK = (16, 2**14)  # candidates drawn at once, at least and at most,
_BLOCK_NUMBERS = 2**22  # but no more than these many numbers, 16 MB,
_BLOCK_FINDS = 1024  # and no more than are likely to hold these many new vectors
_THREADED_NUMBERS = 2**18  # a smaller block is not worth the threads


class CapacityWarning(UserWarning):
    """A full mapping raised its threshold to go on."""


def warn_of_capacity(message: str) -> None:
    """Warn at the user's own line, however deep below it the mapping was asked."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "lmrc":
        frame, level = frame.f_back, level + 1
    warnings.warn(message, CapacityWarning, stacklevel=level)


class CapacityError(ValueError):
    """A mapping is full: Algorithm 1 gave up before it found the vectors asked for.

    Attributes
    ----------
    found, asked : int
        New vectors found, and asked for.
    size : int
        Vectors in the mapping, before as after: nothing was added.
    dim, threshold, max_tries
        The mapping's setting.
    holds : int
        About how many vectors such a mapping holds.
    advised_threshold : float or None
        A threshold at which all ``size + asked`` fit; None where there is none below 1.
    advised_dim : int or None
        A dimension in which they fit at the old threshold; None for a mapping that already has
        vectors, as their dimension is settled.
    """

    def __init__(
        self, found: int, asked: int, size: int, dim: int, threshold: float, max_tries: int
    ) -> None:
        self.found, self.asked, self.size = found, asked, size
        self.dim, self.threshold, self.max_tries = dim, threshold, max_tries
        self.holds = capacity.likely(dim, threshold, max_tries)
        self.advised_threshold = capacity.threshold_for(
            size + asked, dim, max_tries, above=threshold
        )
        self.advised_dim = (
            capacity.dim_for(asked, threshold, max_tries, above=dim) if size == 0 else None
        )
        super().__init__(self._message())

    def _message(self) -> str:
        added = f" to add to the {self.size} it has" if self.size else ""
        remedies = []
        if self.advised_threshold is not None:
            remedies.append(f"raise the threshold to {self.advised_threshold:g}")
        if self.advised_dim is not None:
            longer = f"make the vectors longer, dim={self.advised_dim} (label_dim in a classifier)"
            remedies.append(longer)
        if not remedies:
            remedies.append("ask for fewer vectors, as no threshold below 1 would hold so many")
        return (
            f"found only {self.found} of the {self.asked} label vectors asked for{added}, so "
            f"nothing was added: a mapping with dim={self.dim}, threshold={self.threshold:g} and "
            f"max_tries={self.max_tries} holds about {self.holds}. "
            f"To hold {self.size + self.asked}, {' or '.join(remedies)}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        setting = (self.dim, self.threshold, self.max_tries)
        return type(self), (self.found, self.asked, self.size, *setting)


class LabelMapping:
    """Growing set of random unit vectors whose pairwise cosines keep to a threshold.

    Vectors are drawn uniformly from the sphere; one that is too close to an earlier one is
    thrown away (Algorithm 1). A vector once given never changes.

    Parameters
    ----------
    dim : int
        Length d of a vector.
    threshold : float
        Highest cosine T between two vectors.
    max_tries : int
        Tries γ for one vector: more than this many failures in a row, and the mapping is full.
    random_state : None, int, SeedSequence, Generator or RandomState
        Where the randomness comes from; the same one gives the same vectors. From a Generator
        or RandomState only a seed is drawn.
    vectors : array of shape (n, dim), optional
        Unit vectors to start from. They are copied and taken as they are: the threshold binds
        the vectors that come after them.

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
        capacity.check_setting(dim, threshold, max_tries)
        self.dim, self.max_tries = operator.index(dim), operator.index(max_tries)
        self.threshold = float(threshold)
        self._streams = random_streams(random_state)
        given = np.empty((0, dim)) if vectors is None else _checked_vectors(vectors, dim)
        self._buffer = np.array(given, dtype=np.float32, order="C")
        self._size = len(given)

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        setting = f"dim={self.dim}, threshold={self.threshold:g}, max_tries={self.max_tries}"
        return f"<LabelMapping of {len(self)} vectors, {setting}>"

    @property
    def vectors(self) -> Floats:
        """All vectors so far, in order: a read-only array of shape (len(mapping), dim)."""
        view = self._buffer[: self._size]
        view.flags.writeable = False
        return view

    def extend(self, n: int, *, on_full: Literal["raise", "relax"] = "raise") -> Floats:
        """Find ``n`` new vectors and add them.

        Parameters
        ----------
        n : int
            How many.
        on_full : {"raise", "relax"}
            What to do when the mapping is full: raise a :class:`CapacityError` and add nothing,
            or raise the threshold in steps of 0.005 until the mapping can go on, and say so in
            one :class:`CapacityWarning`.

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
        lmrc.labels.mapping.CapacityError: found only ... of the 100 label vectors asked for...
        """
        if on_full not in ("raise", "relax"):
            raise ValueError(f"on_full={on_full!r} is not known: choose 'raise' or 'relax'")
        asked = capacity.whole_number("n", n, at_least=0)
        size, threshold = self._size, self.threshold
        try:
            while not self._fill(size + asked):
                if on_full == "raise" or self.threshold >= _RELAX_END:
                    setting = (self.dim, self.threshold, self.max_tries)
                    raise CapacityError(self._size - size, asked, size, *setting)
                self.threshold = min(round(self.threshold + _RELAX_STEP, 6), _RELAX_END)
            if self.threshold != threshold:
                message = (
                    f"the mapping was full: its threshold went from {threshold:g} to "
                    f"{self.threshold:g} to make room for {asked} more vectors, {len(self)} in "
                    "all. A larger dim (label_dim in a classifier) would hold them at a lower one"
                )
                warn_of_capacity(message)
        except BaseException:  # an interrupt, too, leaves the mapping as it was
            self._size, self.threshold = size, threshold
            raise
        return self._buffer[size : self._size].copy()

    def _fill(self, target: int | None) -> bool:
        """Run Algorithm 1 up to ``target`` vectors in all; False where it gave up before."""
        failures, acceptance = 0, 1.0
        with Threads(STREAMS) as threads:
            while target is None or self._size < target:
                if failures > self.max_tries:
                    return False
                count = self._block_size(target, acceptance, failures)
                positions, units = self._search(count, threads)
                chosen, last = self._choose_in_order(positions, units, failures, target)
                self._append(units[chosen])
                failures = count - 1 - last
                acceptance = (len(chosen) + 1) / (count + 1)
        return True

    def _block_size(self, target: int | None, acceptance: float, failures: int) -> int:
        """Choose how many candidates to draw at once, given the share accepted lately."""
        # No more than a quarter of the mapping is to be found in one block: the candidates that
        # pass are then few beside the label vectors, and so are their cosines with each other.
        least, most = _BLOCK
        wanted = min(max(least, self._size // 4), _BLOCK_FINDS)
        if target is not None:
            wanted = min(wanted, target - self._size)
        tries_left = self.max_tries + 1 - failures  # if all of them fail, this is the last block
        most = min(most, _BLOCK_NUMBERS // self.dim, tries_left)
        return max(least, min(int(1.25 * wanted / acceptance), most))

    def _search(self, count: int, threads: Threads) -> tuple[Positions, Floats]:
        """Draw a block of candidates and test them against the label vectors."""
        if count * self.dim < _THREADED_NUMBERS:
            return far_from_labels(
                self._draw(count, self._streams[0]), self.vectors, self.threshold
            )
        # The shares are the same on any machine, and so are the vectors that a seed gives.
        bounds = [count * share // STREAMS for share in range(STREAMS + 1)]
        found = threads.map(
            lambda share, stream: far_from_labels(
                self._draw(share, stream), self.vectors, self.threshold
            ),
            np.diff(bounds).tolist(),
            self._streams,
        )
        positions = [start + share for start, (share, _) in zip(bounds, found, strict=False)]
        return np.concatenate(positions), np.concatenate([units for _, units in found])

    def _draw(self, count: int, stream: np.random.Generator) -> Floats:
        """Draw candidates, not yet of unit length: Gaussian, so uniform in direction (Lemma 1)."""
        return stream.standard_normal((count, self.dim), dtype=np.float32)

    def _choose_in_order(
        self,
        positions: Positions,
        units: Floats,
        failures: int,
        target: int | None,
    ) -> tuple[list[int], int]:
        """Accept candidates one after another, each one also far from those before it.

        Returns which, and the block position of the last success. A position of ``-1 -
        failures`` stands for a success before the block, that many failures ago.
        """
        most = len(units) if target is None else target - self._size
        too_close = pairs_too_close(units, self.threshold)
        blocked = np.zeros(len(units), dtype=bool)
        chosen: list[int] = []
        last = -1 - failures
        for i, position in enumerate(positions.tolist()):
            if len(chosen) == most or position - last - 1 > self.max_tries:
                break
            if not blocked[i]:
                chosen.append(i)
                blocked |= too_close[i]
                last = position
        return chosen, last

    def _append(self, units: Floats) -> None:
        """Add vectors at the end; the buffer doubles, so that n of them cost O(n)."""
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
