"""Parameters of estimators: legal values, declared beside the estimator and checked at fit."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np

LARGEST = float(np.finfo(np.float32).max)


class Legal(NamedTuple):
    """A test for a value, and the words for what passes it."""

    test: Callable[[Any], bool]
    words: str


def integer(low: int, *, or_none: bool = False) -> Legal:
    """Whole numbers from ``low``, and None where that has a meaning."""
    words = f"a whole number of at least {low}" + (" or None" if or_none else "")
    return Legal(lambda v: (or_none and v is None) or (_is_integer(v) and v >= low), words)


def real(
    low: float, high: float = math.inf, *, closed: bool = True, or_none: bool = False
) -> Legal:
    """Numbers in [low, high), or (low, high) where not ``closed``; None where it has a meaning."""
    words = f"a number {'≥' if closed else '>'} {low:g}"
    words += f" and < {high:g}" if math.isfinite(high) else ""

    def test(v: Any) -> bool:
        if v is None:
            return or_none
        return _is_real(v) and (v >= low if closed else v > low) and v < high

    return Legal(test, words + (" or None" if or_none else ""))


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
            weights = all(_is_real(weight) and weight > 0 for weight in value.values())
            return weights and all(map(_is_label, value))
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
        # An own parameter need not be keyword-only, and must stand before those that are.
        in_order = sorted(merged.values(), key=lambda parameter: parameter.kind)
        cls.__init__.__signature__ = inspect.Signature(in_order)


class CheckedParameters:
    """Parameters of a method, checked before each task."""

    #: What each parameter may be; a method adds its own.
    legal_values: ClassVar[dict[str, Legal]]
    #: Parameters that shape the network: fixed by the first task.
    shaping_parameters: ClassVar[tuple[str, ...]]
    memory_per_class: int
    memory_total: int
    compile: bool | str
    deterministic: bool
    get_params: Callable[..., dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Write out what ``**settings`` stands for in a method's ``__init__``."""
        super().__init_subclass__(**kwargs)
        write_out_settings(cls)

    def _check_parameters(self) -> None:
        name = type(self).__name__
        check(name, self.get_params(deep=False), self.legal_values)
        if self.deterministic and self.compile is True:
            raise ValueError(
                f"{name}: compile=True does not go with deterministic=True, as compiled code is "
                "picked by its speed, which differs from time to time: set it to 'auto'"
            )
        if self.memory_per_class and self.memory_total:
            raise ValueError(
                f"{name}: memory_per_class={self.memory_per_class} and "
                f"memory_total={self.memory_total} contradict each other: set one of them to 0"
            )
        self._check_shape()

    def _check_shape(self) -> None:
        """Refuse a network's shape that is no more what the parameters say."""
        name = type(self).__name__
        for key, value in getattr(self, "shape_settings_", {}).items():
            if getattr(self, key) is not value and getattr(self, key) != value:
                raise ValueError(
                    f"{name}: {key} was {value!r} at the first task and is now "
                    f"{getattr(self, key)!r}, but it shapes the network: set it back, or call fit "
                    "to begin anew"
                )

    def _refuse_pool(self, reason: str) -> None:
        for key in ("memory_per_class", "memory_total"):
            if value := getattr(self, key):
                raise ValueError(
                    f"{type(self).__name__}: {key}={value} has no use here, as {reason}: set it to "
                    "0"
                )


def _is_integer(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        return False
    return abs(int(value)) < 2**63


def _is_real(value: Any) -> bool:
    """Tell numbers that a float32 can hold."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        return False
    if isinstance(value, Integral):
        return _is_integer(value)
    return abs(float(value)) <= LARGEST  # which NaN is not


def _is_label(value: Any) -> bool:
    return isinstance(value, (str, bool, np.bool_)) or (_is_real(value) and value == round(value))
