"""Lazy imports: modules that dependencies import but a command may not need."""

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

#: Imported by scikit-learn: a second or more, for functions that commands hardly ever call.
HEAVY = ("scipy.stats", "pandas")


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        # scikit-learn 1.6 reads the version of pandas.
        if name == "__version__" and "." not in self.__name__:
            from importlib.metadata import version

            return version(self.__name__)
        # Tools that inspect all modules read these; only a package has a path.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def import_lazily(names: Iterable[str] = HEAVY) -> None:
    """Let ``import`` return a placeholder that imports the module when an attribute is read.

    Call it only in processes of lmrc's own: other programs may inspect modules in other ways.
    """
    for name in names:
        if name not in sys.modules and (spec := find_spec(name)):
            sys.modules[name] = _LazyModule(name)
            sys.modules[name].__spec__ = spec  # torch's compiler reads it
