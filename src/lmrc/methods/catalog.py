"""Methods by their short names, as the command line has them."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, NamedTuple

from lmrc.methods.ewc import EWCClassifier
from lmrc.methods.finetune import FineTuneClassifier
from lmrc.methods.joint import JointClassifier
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.lwf import LwFClassifier


class Method(NamedTuple):
    """A method as tables show it: its title, its class, and the settings that make it so."""

    title: str
    cls: type
    settings: dict[str, Any]


METHODS: dict[str, Method] = {
    "lmrc": Method("LMRC", LMRCClassifier, {}),
    "lm": Method("LM", LMRCClassifier, {"response_weight": 0.0}),
    "finetune": Method("Fine-tuning", FineTuneClassifier, {}),
    "ewc": Method("EWC", EWCClassifier, {}),
    "lwf-mc": Method("LwF.MC", LwFClassifier, {"heads": "single"}),
    "lwf-mt": Method("LwF.MT", LwFClassifier, {"heads": "multi"}),
    "joint": Method("Joint", JointClassifier, {}),
}


def find_method(name: str) -> Method:
    """Find a method by its short name, or a class of your own by its dotted path.

    Parameters
    ----------
    name : str
        "lmrc", "lm", "finetune", "ewc", "lwf-mc", "lwf-mt", "joint", or ``package.module.Class``.
    """
    if name in METHODS:
        return METHODS[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ValueError(
            f"the method {name!r} is not known: use one of {', '.join(METHODS)}, or the dotted "
            "path of a class of your own"
        )
    try:
        cls = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the method {name!r} cannot be imported: {error}") from error
    if not (inspect.isclass(cls) and hasattr(cls, "partial_fit") and hasattr(cls, "predict")):
        raise ValueError(f"the method {name!r} is no class with partial_fit and predict")
    return Method(attribute.removesuffix("Classifier"), cls, {})


def make_learner(method: Method, settings: dict[str, Any], **overrides: Any) -> Any:
    """Make a fresh learner; settings that its class does not have are left out.

    What makes the method what it is (the response weight 0 of LM, say) beats the settings.
    """
    known = inspect.signature(method.cls).parameters
    chosen = {name: value for name, value in settings.items() if name in known}
    return method.cls(**{**chosen, **overrides, **method.settings})
