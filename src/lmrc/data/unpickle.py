"""The pickles in which CIFAR-100 comes, read without running anything they say.

A pickle is a program: it may name any importable function and have it called. Here every name it
can reach is one of the stand-ins below, which build numeric arrays and bytes; lists, dicts,
strings and numbers need no name. Anything else is refused before it is looked up.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmrc.text import brief, shorten

MAX_OPERATIONS = 1_000_000  # CIFAR-100 has 500,000

_LONG = 2**16  # letters
_ROLES = {  # of operations, by their effect on the top of the stack
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), "put"),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), "get"),
    **dict.fromkeys(("MARK", "PROTO", "FRAME"), "keeps"),
    **dict.fromkeys(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), "once"),
    # They may leave a tuple on top.
    **dict.fromkeys(("BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS"), "once"),
    **dict.fromkeys(("DUP", "POP", "POP_MARK", "NEXT_BUFFER", "READONLY_BUFFER"), "refused"),
}


class PlainPickleError(pickle.UnpicklingError, ValueError):
    """A pickle holds, or is, something else than plain data."""


def load_plain_pickle(content: bytes) -> Any:
    """Return what a pickle of arrays, lists, dicts, strings, bytes and numbers holds.

    Strings of Python 2 come as bytes.

    Parameters
    ----------
    content : bytes
        The whole pickle.

    Raises
    ------
    PlainPickleError
        A `pickle.UnpicklingError`: if the pickle names anything else, or is damaged.

    Examples
    --------
    >>> import pickle
    >>> from lmrc.data.unpickle import load_plain_pickle
    >>> load_plain_pickle(pickle.dumps({"fine_labels": [19, 29]}))
    {'fine_labels': [19, 29]}
    >>> load_plain_pickle(pickle.dumps(eval))
    Traceback (most recent call last):
        ...
    lmrc.data.unpickle.PlainPickleError: refused a pickle that names builtins.eval: ...
    """
    try:
        _check_operations(content)
        return _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except PlainPickleError:
        raise
    except Exception as error:  # a damaged pickle fails in about any way
        why = shorten(repr(error), 200)
        raise PlainPickleError(f"not a whole pickle of plain data: {why}") from error


def _check_operations(content: bytes) -> None:
    """Reject a pickle that takes far more time and memory than its size suggests.

    It may hold millions of empty lists, or reuse values without end: nested tuples, each of the
    same one twice, take exponential time to hash; long text can be encoded again and again. So
    tuples and long text may be used once only.
    """
    memo: set[int] = set()
    once: set[int] = set()
    is_once = False
    for n, (operation, argument, _) in enumerate(pickletools.genops(content)):
        role = _ROLES.get(operation.name)
        if n >= MAX_OPERATIONS:
            raise PlainPickleError(f"refused a pickle of more than {MAX_OPERATIONS:,} values.")
        if role == "refused" or (role == "get" and argument in once):
            raise PlainPickleError("refused a pickle that no program writes of plain data.")
        if role == "put":
            index = len(memo) if argument is None else int(argument)
            memo.add(index)
            (once.add if is_once else once.discard)(index)
        elif role != "keeps":
            is_long = isinstance(argument, str | bytes) and len(argument) > _LONG
            is_once = is_long or role == "once"


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise PlainPickleError(
                f"refused a pickle that names {shorten(f'{module}.{name}', 100)}: only arrays, "
                "lists, dicts, strings and bytes are read. Download it again from its official "
                "address."
            ) from None


class _Call:
    """A function that a pickle can call but not alter: it could set attributes of a plain one."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setstate__(self, state: Any) -> None:
        raise PlainPickleError("refused a pickle that alters a function.")


class _PlainType:
    """What a pickle says of the numbers in an array: letter and size, and then the byte order."""

    __slots__ = ("_code", "dtype")

    def __init__(self, code: Any, *flags: Any) -> None:
        self._code = _text(code)
        if self._code not in _NUMBERS:
            raise _no_numbers("type", code)
        self.dtype = np.dtype(self._code)

    def __setstate__(self, state: Any) -> None:
        _, order, *fields = state[:5]  # a size and flags follow, which plain numbers do not need
        if _text(order) not in ("|", "<", ">", "=") or any(part is not None for part in fields):
            raise _no_numbers("type", state)
        self.dtype = np.dtype(_text(order) + self._code)


def _text(value: Any) -> str:
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    return text if isinstance(text, str) else ""


def _no_numbers(what: str, value: Any) -> PlainPickleError:
    return PlainPickleError(f"refused a pickled array of {what} {brief(value)}: not plain numbers.")


class _PlainArray(np.ndarray[Any, Any]):
    """An array that a pickle makes empty and then fills."""

    def __setstate__(self, state: Any) -> None:
        _, shape, numbers, fortran_order, content = state
        if (
            type(numbers) is not _PlainType
            or type(content) is not bytes
            or type(shape) is not tuple
            or len(shape) > 8
            or not all(type(length) is int and length >= 0 for length in shape)
            or math.prod(shape) * numbers.dtype.itemsize != len(content)
        ):
            raise _no_numbers("shape", shape)
        plain = (1, tuple(shape), numbers.dtype, bool(fortran_order), content)
        super().__setstate__(plain)  # type: ignore[arg-type]  # asks for numpy's own bool


_ARRAY = "ndarray"  # stands for numpy's class: inert, and all that _empty_array accepts
_NUMBERS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}


def _empty_array(kind: Any, *shape_and_type: Any) -> NDArray[Any]:
    if kind is not _ARRAY:
        raise PlainPickleError(f"refused a pickled array of the class {brief(kind)}.")
    return _PlainArray((0,), np.uint8)


def _latin1_bytes(text: Any, encoding: Any) -> bytes:
    """Python 3 writes bytes into old pickles as text to be encoded."""
    if type(text) is not str or encoding not in ("latin1", b"latin1"):
        raise PlainPickleError(f"refused a pickle that encodes with {brief(encoding)}.")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _ARRAY,
    ("numpy", "dtype"): _Call(_PlainType),
    ("_codecs", "encode"): _Call(_latin1_bytes),
    **{  # before and after numpy 2
        (f"numpy.{core}.multiarray", "_reconstruct"): _Call(_empty_array)
        for core in ("core", "_core")
    },
}
