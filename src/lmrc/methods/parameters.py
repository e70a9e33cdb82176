"""Parameters of estimators: legal values, declared beside the estimator and checked at fit."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np


class Legal(NamedTuple):
    """A test for a value, and the words for what passes it."""

    test: Callable[[Any], bool]
    words: str


def integer(low: int) -> Legal:
    """Whole numbers from ``low``."""
    return Legal(lambda v: _is_integer(v) and v >= low, f"a whole number of at least {low}")


def real(low: float, high: float = math.inf, *, closed: bool = True) -> Legal:
    """Numbers in [low, high), or (low, high) where not ``closed``."""
    words = f"a number {'≥' if closed else '>'} {low:g}"
    words += f" and < {high:g}" if math.isfinite(high) else ""
    return Legal(
        lambda v: _is_real(v) and (v >= low if closed else v > low) and v < high,
        words,
    )


def one_of(*choices: Any) -> Legal:
    """One of a few values."""
    return Legal(
        lambda v: any(type(v) is type(c) and v == c for c in choices),
        " or ".join(repr(choice) for choice in choices),
    )


def class_weight() -> Legal:
    """How much classes count."""

    def test(value: Any) -> bool:
        if isinstance(value, Mapping):
            return all(_is_real(weight) and weight > 0 for weight in value.values())
        return value is None or (isinstance(value, str) and value == "balanced")

    return Legal(test, "None, 'balanced' or a dict of numbers > 0 by label")


def path() -> Legal:
    """The path of a file, or None."""
    return Legal(lambda v: v is None or isinstance(v, (str, os.PathLike)), "a path or None")


def milestones() -> Legal:
    """Epochs (ints) or fractions of all epochs (floats)."""

    def test(value: Any) -> bool:
        return isinstance(value, (tuple, list)) and all(
            (_is_integer(at) and at >= 1) or (_is_real(at) and 0 < at <= 1) for at in value
        )

    return Legal(test, "a tuple of epochs (ints) or of fractions of all epochs (floats in 0…1)")


def check(name: str, values: Mapping[str, Any], legal: Mapping[str, Legal]) -> None:
    """Raise a ValueError that names the first illegal value and what would be legal."""
    for key, rule in legal.items():
        if not rule.test(values[key]):
            raise ValueError(f"{name}: {key}={values[key]!r} is not valid; it must be {rule.words}")


def write_out_settings(cls: Any) -> None:
    """Put the parameters of the class above in the place of ``**settings`` in ``__init__``.

    scikit-learn reads an estimator's parameters off that signature, and so do people.
    """
    own = inspect.signature(cls.__init__).parameters
    if any(p.kind is p.VAR_KEYWORD for p in own.values()):
        inherited = inspect.signature(super(cls, cls).__init__).parameters
        merged = {**inherited, **{n: p for n, p in own.items() if p.kind is not p.VAR_KEYWORD}}
        cls.__init__.__signature__ = inspect.Signature(list(merged.values()))


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        return False
    return math.isfinite(value)
