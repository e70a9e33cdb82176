"""What a user may choose of a model: all at its first task, most of it later, too."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lmrc.data.images import Size
from lmrc.methods import catalog
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.parameters import fixed
from lmrc.practice.defaults import unusual
from lmrc.practice.models import backbone_name
from lmrc.practice.usage import UsageError
from lmrc.training.device import pick_device

#: The methods of ``lmrc learn``.
METHODS: dict[str, type[LMRCClassifier]] = {
    name: method.cls for name, method in catalog.METHODS.items() if method.options
}

SMALL_STEP = 32  # images in a step, where the first images are few


def begun(method: str | None, settings: Mapping[str, Any], device: str) -> LMRCClassifier:
    """Return a model that has learnt nothing yet."""
    cls = METHODS[method or "lmrc"]
    _refuse_unknown(cls, settings)
    # What is typed holds for the first task, too, if that is not said otherwise.
    for name in ("epochs", "learning_rate"):
        if name in settings:
            settings = {f"first_{name}": None, **settings}
    return _checked(cls(**{"random_state": 0, **settings}, device=device))


def changed(
    model: LMRCClassifier,
    place: Path,
    settings: Mapping[str, Any],
    *,
    size: Size | None = None,
    method: str | None = None,
) -> LMRCClassifier:
    """Return the model with a user's settings; what shapes it cannot be among them.

    Parameters
    ----------
    model : LMRCClassifier
        As it is on disk.
    place : Path
        Where that is.
    settings : mapping
        Parameters of the classifier.
    size : int, (height, width) or None
        Of images.
    method : str or None
        The name of the classifier.
    """
    _refuse_unknown(type(model), settings)
    settings = dict(settings)
    now: dict[str, Any] = {name: getattr(model, name) for name in fixed(type(model))}
    now |= {"backbone": backbone_name(model), "random_state": model.seed_, "weights": None}
    chosen = {option_of(model, n): (settings.pop(n, None), v) for n, v in now.items()}
    sides = model.input_shape_[1:]
    chosen["--size"] = (size and ((size, size) if isinstance(size, int) else tuple(size)), sides)
    chosen["--method"] = (method, next((n for n, c in METHODS.items() if type(model) is c), None))
    for option, (asked, was) in chosen.items():
        if asked is not None and asked != was:
            words = "×".join(map(str, was)) if isinstance(was, tuple) else was
            raise UsageError(
                f"{option} shapes the network and was fixed by the first learn of {place}"
                + (f" ({words})" if words not in (None, "") else "")
                + ": leave it out, or begin a new model"
            )
    return _checked(model.set_params(**settings))


def as_before(model: LMRCClassifier, named: Collection[str]) -> dict[str, Any]:
    """Return how a model is going to be trained though it was not asked for: it was once.

    Not what is fixed for good, what is for the first task alone, and the small steps that
    `lmrc learn` picks by itself.
    """
    untold = {*fixed(type(model)), "random_state", "first_epochs", "first_learning_rate"}
    now = unusual(type(model).__name__, model.get_params(deep=False))
    settings = {n: v for n, v in now.items() if n not in {*named, *untold}}
    if settings.get("batch_size") == SMALL_STEP:
        del settings["batch_size"]
    return settings


def option_of(model: LMRCClassifier, name: str) -> str:
    """Return the option by which a parameter is chosen."""
    return model.parameters[name].option or f"--set {name}"


def _refuse_unknown(cls: type[LMRCClassifier], settings: Mapping[str, Any]) -> None:
    known = cls._get_param_names()
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
            others = [n for n, m in METHODS.items() if name in m.parameters]
            if others:
                option = METHODS[others[0]].parameters[name].option or f"--set {name}"
                raise UsageError(f"{option} is for --method {' or '.join(others)}")
            raise UsageError(f"--set {name}: {cls.__name__} has no such parameter; {hint}")


def _checked(model: LMRCClassifier) -> LMRCClassifier:
    """Refuse what cannot be before any image is read: that may take long."""
    try:
        model._check_parameters()
        pick_device(model.device)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return model
