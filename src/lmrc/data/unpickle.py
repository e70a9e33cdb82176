"""The pickles in which CIFAR-100 comes, read without running anything they say."""

import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from lmrc.text import brief, shorten


class PlainPickleError(pickle.UnpicklingError, ValueError):
    """A pickle holds, or is, something else than plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _STAND_INS:
            raise PlainPickleError(
                f"refused a pickle that names {shorten(f'{module}.{name}', 100)}: only arrays, "
                "lists, dicts, strings and bytes are read. Download it again from its official "
                "address."
            )
        return _STAND_INS[module, name]


class _Call:
    """A function that a pickle can call but not alter."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __setstate__(self, state: Any) -> None:
        raise PlainPickleError("refused a pickle that alters a function.")


class _Numbers:
    """The type of an array. Not NumPy's own: a pickle can make that take bytes for pointers."""

    __slots__ = ("dtype",)

    def __init__(self, code: Any, *flags: Any) -> None:
        text = code.decode("latin1") if isinstance(code, bytes) else str(code)
        if not re.fullmatch("[biuf][1248]", text):
            raise PlainPickleError(f"refused a pickled array of {brief(code)}: not plain numbers.")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: Any) -> None:
        order = state[1]  # after the version; what follows, plain numbers do not need
        if order in (">", b">"):
            self.dtype = self.dtype.newbyteorder(">")


class _Array(np.ndarray[Any, Any]):
    """An array that a pickle makes empty and then fills."""

    def __setstate__(self, state: Any) -> None:
        version, shape, numbers, is_fortran, content = state
        if type(numbers) is not _Numbers or type(content) is not bytes:
            raise PlainPickleError("refused a pickled array of something else than numbers.")
        super().__setstate__((version, shape, numbers.dtype, is_fortran, content))


#: All that a pickle may name, before and after NumPy 2.
_EMPTY = _Call(lambda *_: _Array((0,), np.uint8))
_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): _Call(_Numbers),
    ("numpy.core.multiarray", "_reconstruct"): _EMPTY,
    ("numpy._core.multiarray", "_reconstruct"): _EMPTY,
    ("_codecs", "encode"): _Call(lambda text, _: text.encode("latin1")),  # how Python 3 saves bytes
}


def load_plain_pickle(content: bytes) -> Any:
    """Return what a pickle of arrays, lists, dicts, strings, bytes and numbers holds.

    A pickle is a program: it may name any importable function and have it called. Here each name is
    one of a few stand-ins, which build arrays and bytes; any other is refused before it is looked
    up. Strings of Python 2 come as bytes.

    Raises `PlainPickleError`, a `pickle.UnpicklingError`, if it names anything else, or is damaged.

    >>> load_plain_pickle(pickle.dumps({"fine_labels": [19, 29]}))
    {'fine_labels': [19, 29]}
    >>> load_plain_pickle(pickle.dumps(eval))
    Traceback (most recent call last):
        ...
    lmrc.data.unpickle.PlainPickleError: refused a pickle that names builtins.eval: ...
    """
    try:
        return _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except PlainPickleError:
        raise
    except Exception as error:  # a damaged pickle fails in about any way
        why = shorten(repr(error), 200)
        raise PlainPickleError(f"not a whole pickle of plain data: {why}") from error
