"""The pickles in which CIFAR-100 comes, read without running anything they say."""

import io
import pickle
from typing import Any

from lmrc.text import shorten

#: All that a pickle may name: what numeric arrays and bytes are made of, before and after NumPy 2.
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("_codecs", "encode"),
}


class PlainPickleError(pickle.UnpicklingError, ValueError):
    """A pickle holds, or is, something else than plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _ALLOWED:
            raise PlainPickleError(
                f"refused a pickle that names {shorten(f'{module}.{name}', 100)}: only arrays, "
                "lists, dicts, strings and bytes are read. Download it again from its official "
                "address."
            )
        return super().find_class(module, name)


def load_plain_pickle(content: bytes) -> Any:
    """Return what a pickle of arrays, lists, dicts, strings, bytes and numbers holds.

    A pickle is a program: it may name any importable function and have it called. Anything but what
    builds arrays is refused before it is looked up. Strings of Python 2 come as bytes.

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
