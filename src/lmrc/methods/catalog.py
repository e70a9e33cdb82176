"""The methods by name: built in, installed, or by their dotted path.

The one list of built-in methods. A class is imported when it is first needed: this takes no torch.
"""

import inspect
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lmrc.methods.declared import LMRCParameters, LMRCPlusParameters, switched_off
from lmrc.methods.parameters import Parameters

#: Under this group a package announces its methods: ``name = "package.module:Class"``.
ENTRY_POINTS = "lmrc.methods"

#: Methods with settings of their own, by short name: see `find_method`.
Variants = Mapping[str, Mapping[str, Any]]
NO_VARIANTS: Variants = MappingProxyType({})


@dataclass(frozen=True)
class Method:
    """A method as tables show it."""

    title: str
    path: str  # of its class: ``package.module.Class``
    settings: Mapping[str, Any] = field(default_factory=dict)  # parameters that make it what it is
    #: Parameters for those that nothing else says.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: The parameters that ``lmrc learn`` offers; None where it does not offer the method.
    options: type[Parameters] | None = None

    @property
    def cls(self) -> type:
        """The class, imported."""
        return _find_class(self.path, self.path)


METHODS: dict[str, Method] = {
    "lmrc": Method("LMRC", "lmrc.methods.lmrc.LMRCClassifier", options=LMRCParameters),
    "lmrc+": Method(
        "LMRC+", "lmrc.methods.lmrc_plus.LMRCPlusClassifier", options=LMRCPlusParameters
    ),
    "lm": Method("LM", "lmrc.methods.lmrc.LMRCClassifier", {"response_weight": 0.0}),
    "finetune": Method("Fine-tuning", "lmrc.methods.finetune.FineTuneClassifier"),
    "ewc": Method("EWC", "lmrc.methods.ewc.EWCClassifier"),
    "lwf-mc": Method("LwF.MC", "lmrc.methods.lwf.LwFClassifier", {"heads": "single"}),
    "lwf-mt": Method("LwF.MT", "lmrc.methods.lwf.LwFClassifier", {"heads": "multi"}),
    "joint": Method("Joint", "lmrc.methods.joint.JointClassifier"),
}


def classes() -> dict[str, type]:
    """Return the classes of the built-in methods by name."""
    return {method.path.rpartition(".")[2]: method.cls for method in METHODS.values()}


def find_method(name: str, variants: Variants = NO_VARIANTS) -> Method:
    """Find a method by its short name, or a class of your own.

    The name is that of a built-in method, see `METHODS`; that of an entry point of the group
    ``lmrc.methods``; or ``package.module.Class`` (and so is ``package.module:Class``), where the
    module may also lie in the current folder. Variants are methods with settings of their own, by
    short name: ``method``, of which one is a variant, ``title``, and the settings that make it so.
    With ``starts_from = "lmrc"`` it is LMRC+ with its extensions switched off, but for those
    settings.

    The title tells methods apart in records and tables. That of your own class is the entry point's
    name or the dotted path: two packages may well have a class of one name.
    """
    if name in variants:
        settings = dict(variants[name])
        base, title = find_method(settings.pop("method")), settings.pop("title")
        start = settings.pop("starts_from", None)
        if start not in (None, "lmrc"):
            raise ValueError(f"a variant can start from 'lmrc' alone, not from {start!r}")
        of_lmrc = switched_off() if start else {}
        return Method(title, base.path, {**base.settings, **settings}, of_lmrc)
    announced = _announced(tuple(sys.path))
    if name in METHODS:
        if name in announced:
            package = announced[name].dist
            warnings.warn(
                f"the entry point {name!r} of {package.name if package else 'a package'} is passed "
                "over, as lmrc has a method of that name: use its dotted path, "
                f"{_class_path(announced[name])}",
                stacklevel=2,
            )
        return METHODS[name]
    if name in announced:
        return _imported(name, Method(title_of(name), _class_path(announced[name])))
    if "." not in name and ":" not in name:
        known = ", ".join([*METHODS, *variants, *announced])
        raise ValueError(
            f"the method {name!r} is not known: use one of {known}, or the dotted path "
            "package.module.Class of a class of your own"
        )
    return _imported(name, Method(title_of(name), title_of(name)))


def title_of(name: str, variants: Variants = NO_VARIANTS) -> str:
    """Return the title of a method that `find_method` finds, without its class.

    So a page can be made where a method of one's own is not installed.

    >>> title_of("lwf-mt"), title_of("package.module:Class")
    ('LwF.MT', 'package.module.Class')
    """
    if name in variants:
        return str(variants[name]["title"])
    if name in METHODS:
        return METHODS[name].title
    if entry := _announced(tuple(sys.path)).get(name):
        taken = {method.title for method in METHODS.values()}
        return _class_path(entry) if name in taken else name
    return name.replace(":", ".")


def nearest(name: str, variants: Variants = NO_VARIANTS) -> str:
    """Return the name under which a method has settings: one derived from ours shares those of it.

    >>> nearest("lwf-mt"), nearest("lmrc.LMRCPlusClassifier")
    ('lwf-mt', 'lmrc+')
    """
    if name in METHODS or name in variants:
        return name
    ours = {method.cls: short for short, method in reversed(METHODS.items())}
    return next((ours[cls] for cls in find_method(name, variants).cls.__mro__ if cls in ours), name)


def own_defaults(name: str, variants: Variants = NO_VARIANTS) -> dict[str, Any]:
    """Return the defaults that a class of one's own declares, or has other than ours above it.

    Of a class that is not derived from ours, all.
    """
    if name in METHODS or name in variants:
        return {}
    cls = find_method(name, variants).cls
    from lmrc.methods.base import IncrementalClassifier

    ours = {*classes().values(), IncrementalClassifier}
    above = next((base for base in cls.__mro__ if base in ours), None)
    theirs = inspect.signature(above).parameters if above else {}
    own_classes = takewhile(lambda base: base is not above, cls.__mro__)
    declared = {name for base in own_classes for name in vars(base).get("_own", ())}
    return {
        parameter: own.default
        for parameter, own in inspect.signature(cls).parameters.items()
        if own.default is not own.empty
        and (
            parameter in declared
            or parameter not in theirs
            or theirs[parameter].default != own.default
        )
    }


def code_digest(cls: type) -> str | None:
    """Return a checksum of the source files of a class of one's own; None for one of ours."""
    package = cls.__module__.partition(".")[0]
    modules = {base.__module__ for base in cls.__mro__}
    own = sorted(name for name in modules if name.partition(".")[0] == package)
    files = [getattr(sys.modules.get(name), "__file__", None) for name in own]
    if package == "lmrc" or not all(files):
        return None
    return sha256(b"".join(Path(str(file)).read_bytes() for file in files)).hexdigest()


def make_learner(method: Method, settings: dict[str, Any], **overrides: Any) -> Any:
    """Make a fresh learner; settings that its class does not have are left out.

    What makes the method what it is (the response weight 0 of LM, say) beats the settings.
    """
    chosen = {name: value for name, value in settings.items() if takes(method, name)}
    return method.cls(**{**method.defaults, **chosen, **overrides, **method.settings})


def takes(method: Method, name: str) -> bool:
    """Tell whether a parameter can be chosen: its class has it, and it does not make the method."""
    return name in inspect.signature(method.cls).parameters and name not in method.settings


@lru_cache(maxsize=1)
def _announced(search_path: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Return the entry points by name; to read those of all packages takes a while."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def _imported(name: str, method: Method) -> Method:
    _find_class(name, method.path)
    return method


def _find_class(name: str, path: str) -> type:
    module, _, attribute = path.rpartition(".")
    # A command's own search path lacks the current folder, where a researcher's module is likely
    # to be. Last, so that it hides nothing; and for good, as the module may import others later.
    here = str(Path.cwd())
    if here not in sys.path and not path.startswith("lmrc."):
        sys.path.append(here)
    try:
        cls = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the method {name!r} cannot be imported ({error}): name it package.module.Class, and "
            "install its package or run the command in the folder that holds it"
        ) from error
    if not (inspect.isclass(cls) and hasattr(cls, "partial_fit") and hasattr(cls, "predict")):
        raise ValueError(
            f"the method {name!r} is {cls!r}, but must be a class with partial_fit and predict"
        )
    return cls


def _class_path(entry: EntryPoint) -> str:
    return f"{entry.module}.{entry.attr}"
