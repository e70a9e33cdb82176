"""Settings of a model: all can be chosen at its first task, most can be changed later."""

import copy
import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lmrc.data.images import Size
from lmrc.methods import catalog
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.parameters import fixed
from lmrc.methods.reading import read_inputs
from lmrc.nets.backbones import check_name
from lmrc.nets.loading import check_available, is_pretrained
from lmrc.practice.defaults import non_default
from lmrc.practice.models import backbone_name
from lmrc.practice.usage import UsageError
from lmrc.training.device import pick_device

#: The methods of ``lmrc learn``.
METHODS: dict[str, type[LMRCClassifier]] = {
    name: method.cls for name, method in catalog.METHODS.items() if method.options
}

SMALL_BATCH_SIZE = 32  # if the first task has few images


def new_model(
    method: str | None, settings: Mapping[str, Any], device: str, from_scratch: bool = False
) -> LMRCClassifier:
    """Return an untrained model with a user's settings."""
    pretrained = is_pretrained(settings.get("backbone"))
    cls = METHODS[method or ("lmrc+" if pretrained else "lmrc")]
    _refuse_unknown(cls, settings)
    if from_scratch:
        for name in ("backbone", "weights", "freeze"):
            value = settings.get(name)
            if value and (name != "backbone" or is_pretrained(value)):
                raise UsageError(
                    f"--from-scratch and {option_of(cls, name)} contradict each other: use one of "
                    "them"
                )
        settings = {"freeze": False, **settings}
    # A given value is for the first task, too, unless that has its own.
    for name in ("epochs", "learning_rate"):
        if name in settings:
            settings = {f"first_{name}": None, **settings}
    model = _checked(cls(**{"random_state": 0, **settings}, device=device))
    check_available(model.backbone)
    return model


def with_settings(
    model: LMRCClassifier,
    path: Path,
    settings: Mapping[str, Any],
    *,
    size: Size | None = None,
    method: str | None = None,
    from_scratch: bool = False,
) -> LMRCClassifier:
    """Return a stored model with a user's settings; refuse those fixed by the first task."""
    _refuse_unknown(type(model), settings)
    settings = dict(settings)
    now: dict[str, Any] = {name: getattr(model, name) for name in fixed(type(model))}
    now |= {"backbone": backbone_name(model), "random_state": model.seed_, "weights": None}
    chosen = {option_of(model, n): (settings.pop(n, None), v) for n, v in now.items()}
    sides = model.input_shape_[1:]
    chosen["--size"] = (size and ((size, size) if isinstance(size, int) else tuple(size)), sides)
    chosen["--method"] = (method, next((n for n, c in METHODS.items() if type(model) is c), None))
    pretrained = model.network_.encoder.saved is not None
    chosen["--from-scratch"] = (from_scratch or None, not pretrained or backbone_name(model))
    for option, (wanted, current) in chosen.items():
        if wanted is not None and wanted != current:
            words = "×".join(map(str, current)) if isinstance(current, tuple) else current
            raise UsageError(
                f"{option} was fixed by the first learn of {path}"
                + (f" ({words})" if words not in (None, "") else "")
                + ": leave it out, or start a new model"
            )
    return _checked(model.set_params(**settings))


def settings_kept(model: LMRCClassifier, given: Collection[str]) -> dict[str, Any]:
    """Return the non-default training settings kept from an earlier `lmrc learn`.

    Left out are settings given now, fixed ones, those for the first task only, and the small batch
    size that `lmrc learn` chooses itself.
    """
    left_out = {*fixed(type(model)), "first_epochs", "first_learning_rate"}
    current = non_default(type(model).__name__, model.get_params(deep=False))
    settings = {n: v for n, v in current.items() if n not in {*given, *left_out}}
    if settings.get("batch_size") == SMALL_BATCH_SIZE:
        del settings["batch_size"]
    return settings


def for_inputs(model: LMRCClassifier, X: Any) -> LMRCClassifier:
    """Return a model that knows its input shape, which decides the backbone of a new one."""
    if not hasattr(model, "input_shape_"):
        model = copy.copy(model)
        read_inputs(model, X[:1], first=True)
    return model


def without_effect(model: LMRCClassifier, given: Collection[str]) -> str:
    """Return a warning if training settings are given but nothing is trained; else nothing."""
    options = [option_of(model, name) for name in ("epochs", "learning_rate") if name in given]
    if not options or model._epochs:
        return ""
    what = f"{' and '.join(options)} {'has' if len(options) == 1 else 'have'} no effect"
    if model._adapts:
        return f"{what} with --set freeze=later: --set adaptation_epochs sets how long it trains"
    what += " with a frozen backbone: for a new model, "
    if is_pretrained(model._backbone):
        what += "--set freeze=later adapts it to the first task, "
    return f"{what}--from-scratch trains a network"


def option_of(model: LMRCClassifier | type[LMRCClassifier], name: str) -> str:
    """Return the option that sets a parameter."""
    return model.parameters[name].option or f"--set {name}"


def _refuse_unknown(cls: type[LMRCClassifier], settings: Mapping[str, Any]) -> None:
    known = cls._get_param_names()
    for name in settings:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(known)}"
            others = [n for n, m in METHODS.items() if name in m.parameters]
            if others:
                needs = f"needs --method {' or '.join(others)}"
                raise UsageError(f"{option_of(METHODS[others[0]], name)} {needs}")
            raise UsageError(f"--set {name}: {cls.__name__} has no such parameter; {hint}")


def _checked(model: LMRCClassifier) -> LMRCClassifier:
    """Refuse invalid settings before images are read, which may take long."""
    try:
        model._check_parameters()
        if isinstance(model.backbone, str):
            check_name(model.backbone)
        pick_device(model.device)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return model
