"""How many label vectors fit in theory: Eqs. 4 and 5 of the paper, and the exact law.

SciPy is imported for the paper's laws alone: ``lmrc info`` uses the exact one.
"""

import bisect
import math
import operator
from collections.abc import Callable

LAWS = ("beta", "normal", "paper")

_MAX_DIM = 10**7
_MAX_BITS = 10**9
_STEPS = 200  # thresholds from 0 to 1


def expected(
    dim: int,
    threshold: float,
    max_tries: int = 10_000,
    confidence: float = 0.99,
    law: str = "beta",
) -> int:
    """Count the label vectors that fit in theory (Eq. 4).

    Parameters
    ----------
    dim : int
        Length d of a label vector, at least 2.
    threshold : float
        Highest cosine T between two label vectors, between -1 and 1.
    max_tries : int
        Tries γ per vector.
    confidence : float
        Probability τ that the last vector is found within ``max_tries`` tries.
    law : {"beta", "normal", "paper"}
        Law of the cosine of two random unit vectors. ``"beta"`` is the exact one, ``"normal"``
        its limit for large ``dim``, of standard deviation 1/√d. ``"paper"`` is Eq. 5 as printed,
        of standard deviation 1/d: the variance 1/d taken for the standard deviation.

    Returns
    -------
    int
        The count, of any size, to the nearest whole number. Eq. 4 assumes
        independent vectors; Algorithm 1 finds fewer, in few dimensions far fewer: see
        :func:`likely`.

    Examples
    --------
    >>> expected(dim=100, threshold=0.15)
    112
    >>> len(str(expected(dim=100, threshold=0.15, law="paper")))  # its digits, not itself
    52
    """
    check_setting(dim, threshold, max_tries)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must lie between 0 and 1, as 0.99 does")
    if law not in LAWS:
        raise ValueError(f"law={law!r} is not known: choose one of {', '.join(map(repr, LAWS))}")

    # Eq. 4: N = log(1 - e^(log(1-τ)/γ)) / log P(A) + 1. Both logarithms are negative.
    numerator = _minus_log_success(math.log1p(-confidence), max_tries)
    log_ratio = math.log(numerator) - _log_minus_log_probability(dim, threshold, law)
    return _exp_as_int(log_ratio) + 1


def likely(dim: int, threshold: float, max_tries: int = 10_000) -> int:
    """Estimate how many label vectors Algorithm 1 finds, also in few dimensions.

    :func:`expected` by the exact law, corrected for the dependence between label vectors.

    Parameters
    ----------
    dim, threshold, max_tries
        As for :class:`~lmrc.labels.mapping.LabelMapping`.

    Examples
    --------
    >>> likely(dim=100, threshold=0.15), likely(dim=3, threshold=0.15)
    (104, 5)
    """
    check_setting(dim, threshold, max_tries)
    return _exp_as_int(_log_likely(math.log(0.01), dim, threshold, max_tries)) + 1


def threshold_for(
    n: int, dim: int, max_tries: int = 10_000, *, above: float = -1.0
) -> float | None:
    """Find the smallest threshold at which Algorithm 1 almost surely finds ``n`` vectors.

    Parameters
    ----------
    n : int
        How many vectors.
    dim, max_tries
        As for :class:`~lmrc.labels.mapping.LabelMapping`.
    above : float
        Consider higher thresholds only.

    Returns
    -------
    float or None
        A multiple of 0.005; None if even 0.995 is too low.

    Examples
    --------
    >>> threshold_for(200, dim=100)
    0.195
    """
    check_setting(dim, 0.0, max_tries)
    step = _first(
        math.floor(above * _STEPS + 1e-6) + 1,
        _STEPS,
        lambda step: _surely_holds(n, dim, step / _STEPS, max_tries),
    )
    return None if step is None else step / _STEPS


def dim_for(n: int, threshold: float, max_tries: int = 10_000, *, above: int = 1) -> int | None:
    """Find the smallest dimension in which Algorithm 1 almost surely finds ``n`` vectors.

    Parameters
    ----------
    n : int
        How many vectors.
    threshold, max_tries
        As for :class:`~lmrc.labels.mapping.LabelMapping`.
    above : int
        Consider higher dimensions only.

    Returns
    -------
    int or None
        None if ten million dimensions are too few, as for many vectors at a threshold of 0 or
        below.

    Examples
    --------
    >>> dim_for(200, threshold=0.15)
    165
    """
    check_setting(2, threshold, max_tries)
    return _first(above + 1, _MAX_DIM, lambda dim: _surely_holds(n, dim, threshold, max_tries))


def check_setting(dim: int, threshold: float, max_tries: int) -> None:
    """Reject a dimension, threshold or number of tries that Algorithm 1 cannot use."""
    whole_number("dim", dim, at_least=2)
    whole_number("max_tries", max_tries, at_least=1)
    if not -1 < threshold < 1:
        raise ValueError(f"threshold={threshold} is not a cosine between -1 and 1: try 0.15")


def whole_number(name: str, value: int, at_least: int) -> int:
    """Return the value as an int; raise a ValueError with its name otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r} must be a whole number") from None
    if number < at_least:
        raise ValueError(f"{name}={value} is too small: it must be at least {at_least}")
    return number


def _log_minus_log_probability(dim: int, threshold: float, law: str) -> float:
    """Return log(-log P(A)) (Eq. 5), finite even where P(A) rounds to 1."""
    log_tail = _log_tail(dim, abs(threshold), law)
    if threshold <= 0:  # all three laws are symmetric: P(A) is itself a tail
        return math.log(-log_tail)
    # log P(A) = log(1 - tail), which equals -tail in float64 for a tail this small.
    return log_tail if log_tail < -36 else math.log(-math.log1p(-math.exp(log_tail)))


def _log_tail(dim: int, threshold: float, law: str) -> float:
    """Return the logarithm of the probability that a cosine exceeds ``threshold`` ≥ 0."""
    if law in ("paper", "normal"):
        from scipy.special import log_ndtr

        # Eq. 5, with σ = 1/d as printed or 1/√d.
        return float(log_ndtr(-threshold * (dim if law == "paper" else math.sqrt(dim))))
    # Lemma 2: (t + 1)/2 ~ Beta(a, a), so the tail is I_x(a, a) with x = (1 - T)/2, which is
    # x^a (1-x)^a / (a B(a, a)) · 2F1(2a, 1; a+1; x): a series of positive terms that shrink by at
    # least 2x = 1 - T; and 4x (1-x) = 1 - T².
    a, x = (dim - 1) / 2, (1 - threshold) / 2
    term = series = 1.0
    k = 0
    while term > 1e-17 * series:
        term *= (2 * a + k) / (a + 1 + k) * x
        series += term
        k += 1
    # 4^-a / (a B(a, a)) = Γ(a + 1/2) / (2 √π Γ(a + 1)), by Legendre's duplication formula.
    constant = _gamma_ratio(a) / (2 * math.sqrt(math.pi) * a)
    return a * math.log1p(-(threshold**2)) + math.log(constant) + math.log(series)


def _gamma_ratio(a: float) -> float:
    """Return Γ(a + 1/2) / Γ(a); for large a by its expansion, as Γ would overflow."""
    if a < 100:
        return math.gamma(a + 0.5) / math.gamma(a)
    powers = (1, -1 / 8, 1 / 128, 5 / 1024, -21 / 32768)
    return math.sqrt(a) * sum(c / a**i for i, c in enumerate(powers))


def _exp_as_int(exponent: float) -> int:
    """Return e^exponent as the nearest integer, however large."""
    bits = exponent / math.log(2)
    if bits > _MAX_BITS:
        raise ValueError(f"the count has about {bits * math.log10(2):.3g} digits: too large")
    shift = max(0, int(bits) - 60)
    return round(math.exp(exponent - shift * math.log(2))) << shift


def _minus_log_success(log_failure: float, max_tries: int) -> float:
    """Return -log P(B) for the P(B) at which ``max_tries`` tries fail with a given probability.

    That is -log(1 - e^(log_failure/γ)), the numerator of Eq. 4, accurate also where one of the two
    differences from 1 is tiny.
    """
    log_miss = log_failure / max_tries
    if log_miss > -math.log(2):
        return -math.log(-math.expm1(log_miss))
    return -math.log1p(-math.exp(log_miss))


def _surely_holds(n: int, dim: int, threshold: float, max_tries: int) -> bool:
    """Tell whether Algorithm 1 finds ``n`` vectors with a probability of about 0.999."""
    if n <= 1:
        return True
    # Each of the n may fail with 0.001/n; 0.85 is for the scatter between seeds.
    log_count = _log_likely(math.log(0.001 / n), dim, threshold, max_tries)
    return math.log(0.85) + log_count >= math.log(n)


def _log_likely(log_failure: float, dim: int, threshold: float, max_tries: int) -> float:
    """Return log(N - 1) for a given failure probability of the last vector."""
    # Eq. 4 overestimates: label vectors repel each other, so the caps they exclude overlap less
    # than those of independent vectors. For d = 2 to 200, γ = 10 to 100,000 and all thresholds,
    # Algorithm 1 found about 1/(1 + numerator/d) of Eq. 4's count.
    numerator = _minus_log_success(log_failure, max_tries)
    log_count = math.log(numerator) - _log_minus_log_probability(dim, threshold, "beta")
    return log_count - math.log1p(numerator / dim)


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """Bisect for the first integer in [low, high) from which a condition holds."""
    first = bisect.bisect_left(range(low, high), True, key=holds) + low
    return first if first < high else None
