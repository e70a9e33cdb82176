"""Parameters of estimators, each declared once: default, constraint, help, command-line option.

A class that declares them needs no ``__init__``, and has them in its signature and docstring:

>>> class Greeter(Parameters):
...     '''Greets.'''
...
...     times: int = parameter(default=1, constraint=integer(1), help="How often.")
>>> Greeter(times=2).times
2
>>> Greeter(times=0)._check_parameters()
Traceback (most recent call last):
ValueError: Greeter: times=0 is not valid; it must be a whole number of at least 1

Needs neither torch nor NumPy: the command line reads its options from here.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple, dataclass_transform

UNSET: Any = object()  # not given, where None has a meaning
MAX_REAL = (2 - 2**-23) * 2.0**127  # of a float32


class Constraint(NamedTuple):
    """A test for a value, and the words for what passes it."""

    test: Callable[[Any], bool]
    words: str


@dataclass(frozen=True)
class Parameter:
    """A declared parameter.

    Attributes
    ----------
    default : object
    constraint : Constraint or None
        None where anything goes, or where other code checks it.
    help : str
        For the docstring; the command line shows its first sentence.
    option : str
        Of ``lmrc learn``, such as ``--epochs``; empty where it has none.
    fixed : bool
        Whether the first task fixes it, as it shapes the network.
    off : object
        The value that switches an extension off; `UNSET` where it is none.
    trains : bool
        Whether it only concerns training, and so has no effect where a frozen backbone's statistics
        predict.
    choices : tuple
        The values, where there are few.
    type : str
        As annotated.
    """

    default: Any
    constraint: Constraint | None = None
    help: str = ""
    option: str = ""
    fixed: bool = False
    off: Any = UNSET
    trains: bool = False
    choices: tuple[Any, ...] = ()
    type: str = ""

    def described(self, name: str) -> str:
        """Return the entry of a docstring."""
        choices = ", ".join(map(_shown, self.choices))
        kind = f"{{{choices}}}" if self.type.startswith("Literal[") else self.type
        entry = f"{name} : {kind}, default={_shown(self.default)}"
        return "\n".join([entry, *(f"    {line}" for line in textwrap.wrap(self.help, 92))])


class Declared(dict[str, Any]):
    """The attributes of a `Parameter` that a class body gives."""


def parameter(*, default: Any, **attributes: Any) -> Any:
    """Declare a parameter by attributes of `Parameter`.

    The choices of a ``Literal`` and of a ``bool`` need no constraint. Where a base class declares
    the parameter, a new default is enough: the rest stays.
    """
    return Declared(default=default, **attributes)


def integer(low: int, *, or_none: bool = False) -> Constraint:
    """Whole numbers from ``low``, and None where that has a meaning."""
    words = f"a whole number of at least {low}" + (" or None" if or_none else "")
    return Constraint(lambda v: (or_none and v is None) or (_is_integer(v) and v >= low), words)


def real(
    low: float, high: float = math.inf, *, closed: bool = True, or_none: bool = False
) -> Constraint:
    """Numbers in [low, high), or (low, high) where not ``closed``; None where it has a meaning."""
    words = f"a number {'≥' if closed else '>'} {low:g}"
    words += f" and < {high:g}" if math.isfinite(high) else ""

    def test(v: Any) -> bool:
        if v is None:
            return or_none
        return _is_real(v) and (v >= low if closed else v > low) and v < high

    return Constraint(test, words + (" or None" if or_none else ""))


def one_of(*choices: Any) -> Constraint:
    """One of a few values."""
    return Constraint(
        lambda v: any(type(v) is type(c) and v == c for c in choices),
        " or ".join(repr(choice) for choice in choices),
    )


def class_weights() -> Constraint:
    """How much classes count."""

    def test(value: Any) -> bool:
        if isinstance(value, Mapping):
            weights = all(_is_real(weight) and weight > 0 for weight in value.values())
            return weights and all(map(_is_label, value))
        return value is None or (isinstance(value, str) and value == "balanced")

    return Constraint(test, "None, 'balanced' or a dict of numbers > 0 by label")


def path() -> Constraint:
    """The path of a file, or None."""
    return Constraint(lambda v: v is None or isinstance(v, (str, os.PathLike)), "a path or None")


def seed() -> Constraint:
    """What scikit-learn calls a random state."""
    return Constraint(
        lambda v: v is None or hasattr(v, "randint") or (isinstance(v, Integral) and int(v) >= 0),
        "a whole number of at least 0, a numpy.random.RandomState or None",
    )


def milestones() -> Constraint:
    """Epochs (ints) or fractions of all epochs (floats)."""

    def test(value: Any) -> bool:
        return isinstance(value, (tuple, list)) and all(
            (_is_integer(at) and at >= 1) or (_is_real(at) and 0 < at <= 1) for at in value
        )

    words = "a tuple of epochs (ints) or of fractions of all epochs (floats in 0…1)"
    return Constraint(test, words)


@dataclass_transform(kw_only_default=True, field_specifiers=(parameter,))
class Parameters:
    """A class whose parameters are those declared in it and in the classes above.

    ``__init__`` is made from them.
    """

    #: All parameters by name, those of the class itself first.
    parameters: ClassVar[Mapping[str, Parameter]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Collect the declared parameters, and write ``__init__`` and the docstring."""
        super().__init_subclass__(**kwargs)
        above: dict[str, Parameter] = {}
        for base in cls.__mro__[1:]:
            above = above | {n: p for n, p in vars(base).get("_own", {}).items() if n not in above}
        own = {}
        for name, declared in [*vars(cls).items()]:
            if isinstance(declared, Declared):
                delattr(cls, name)
                kind = _annotation(inspect.get_annotations(cls).get(name, ""))
                own[name] = _completed(declared, kind, above.get(name))
        cls._own = own  # type: ignore[attr-defined]
        cls.parameters = own | {n: above[n] for n in above if n not in own}
        _refuse_plain_values(cls, above)
        if "__init__" in vars(cls):
            raise TypeError(
                f"{cls.__name__} has an __init__, which is made from its parameters: declare them "
                "as name: type = parameter(default=…)"
            )
        _write_init(cls)
        _document(cls)

    def _check_parameters(self) -> None:
        """Raise a ValueError that names the first value that is not valid."""
        for name, declared in self.parameters.items():
            value = getattr(self, name)
            if declared.constraint and not declared.constraint.test(value):
                raise ValueError(
                    f"{type(self).__name__}: {name}={value!r} is not valid; "
                    f"it must be {declared.constraint.words}"
                )


def fixed(cls: type[Parameters]) -> list[str]:
    """Return the parameters that the first task fixes."""
    return [name for name, declared in cls.parameters.items() if declared.fixed]


def defaults(cls: type[Parameters]) -> dict[str, Any]:
    """Return the defaults by name."""
    return {name: declared.default for name, declared in cls.parameters.items()}


def _annotation(kind: Any) -> str:
    """Return an annotation as written, whether it was evaluated or not."""
    if isinstance(kind, str):
        return kind
    return kind.__name__ if isinstance(kind, type) else repr(kind).replace("typing.", "")


def _completed(declared: Declared, kind: str, above: Parameter | None) -> Parameter:
    """Return a parameter with what follows from its annotation, or is declared in a base class."""
    found: dict[str, Any] = {"type": kind} if kind else {}
    if kind == "bool":
        found["choices"] = (True, False)
    elif kind.startswith("Literal["):
        found["choices"] = ast.literal_eval(f"({kind[8:-1]},)")
    if found.get("choices"):
        found["constraint"] = one_of(*found["choices"])
    return Parameter(**{**(vars(above) if above else {}), **found, **declared})


def _refuse_plain_values(cls: type, above: Mapping[str, Parameter]) -> None:
    for name in above.keys() & vars(cls).keys():
        raise TypeError(
            f"{cls.__name__}.{name} is a parameter: write {name} = parameter(default=…)"
        )


def _write_init(cls: Any) -> None:
    """Write ``__init__``, with a signature as scikit-learn and people read it."""
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [
        inspect.Parameter(name, kind, default=declared.default, annotation=declared.type)
        for name, declared in cls.parameters.items()
    ]

    def __init__(self: Any, **settings: Any) -> None:  # noqa: N807
        _refuse_unknown(cls, settings)
        for name, declared in cls.parameters.items():
            setattr(self, name, settings.get(name, declared.default))

    __init__.__signature__ = inspect.Signature([this, *own])  # type: ignore[attr-defined]
    __init__.__module__, __init__.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    cls.__init__ = __init__


def _refuse_unknown(cls: Any, settings: Mapping[str, Any]) -> None:
    for name in settings:
        if name not in cls.parameters:
            close = difflib.get_close_matches(name, cls.parameters, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {name!r}{hint}")


def _document(cls: Any) -> None:
    """Put a section of the parameters into the docstring: before the next one, or at its end."""
    text = inspect.cleandoc(vars(cls).get("__doc__") or "")
    if not text or not cls.parameters or "\nParameters\n---" in text:
        return
    entries = "\n".join(declared.described(n) for n, declared in cls.parameters.items())
    section = f"Parameters\n----------\n{entries}\n"
    head, *rest = re.split(r"(?m)^(?=[A-Z][a-z]+\n-{4,}$)", text, maxsplit=1)
    cls.__doc__ = "\n".join([f"{head.rstrip()}\n", section, *rest])


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return abs(int(value)) < 2**63


def _is_real(value: Any) -> bool:
    """Tell numbers that a float32 can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    if isinstance(value, Integral):
        return _is_integer(value)
    return abs(float(value)) <= MAX_REAL  # which NaN is not


def _is_label(value: Any) -> bool:
    is_bool = isinstance(value, bool) or type(value).__name__.startswith("bool")  # NumPy's, too
    return isinstance(value, str) or is_bool or (_is_real(value) and value == round(value))
