"""Modules that others import but ``lmrc predict`` does not need: imported when first used."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    def __getattr__(self, name: str) -> Any:
        # Programs that look through all modules ask for these; a package alone has a path.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def put_off(*names: str) -> None:
    """Let ``import`` give an empty module, which becomes the real one when anything is asked of it.

    For a process of our own alone: scikit-learn imports SciPy's statistics and pandas, a second of
    work or more, for functions that a command may never call.
    """
    for name in names:
        if name not in sys.modules and (spec := find_spec(name)):
            sys.modules[name] = _Later(name)
            sys.modules[name].__spec__ = spec  # torch's compiler asks for it
