"""Opens models for the commands, and names their classes and backbones."""

from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from lmrc.data.class_names import class_name
from lmrc.data.dataset import Array
from lmrc.methods.calibrated import Calibrated
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.persistence import model_from
from lmrc.nets.auto import pick
from lmrc.store import folder as store
from lmrc.store.folder import ModelFileError


def open_model(
    path: Path, device: str = "auto", content: store.Model | None = None
) -> LMRCClassifier:
    """Load a model of LMRC or LMRC+; from `content` if the folder has been read already."""
    model = model_from(path, *(content or store.read(path)), device=device)
    if not isinstance(model, LMRCClassifier):
        raise ModelFileError(
            f"{path} is a model of {type(model).__name__}: the commands are for LMRC and LMRC+ "
            "only, use lmrc.load in Python"
        )
    return model


def open_to_predict(path: Path, device: str = "auto") -> LMRCClassifier:
    """Load a model and check that it supports its prediction rule, before images are read."""
    model = open_model(path, device)
    model._check_prediction_rule()
    return model


def is_calibrated(model: LMRCClassifier) -> TypeGuard[Calibrated]:
    """Tell whether a model has probabilities and unknown scores."""
    return isinstance(model, Calibrated) and model.is_calibrated_


def outputs_of(model: LMRCClassifier, X: Any) -> tuple[Array, Array | None, Array | None]:
    """Return similarities, and if the model has them, probabilities and unknown scores."""
    if is_calibrated(model):
        return model.outputs(X)
    return model.similarities(X), None, None


def outputs_by_image(model: LMRCClassifier, X: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield similarities, probabilities and the unknown score of each image; None if missing."""
    parts = (repeat(None) if part is None else part for part in outputs_of(model, X))
    return zip(*parts, strict=False)


def unknown_threshold(model: LMRCClassifier, share: float) -> float:
    """Return the unknown score that this share of images of known classes exceeds."""
    if not isinstance(model, Calibrated):
        raise ValueError(
            "this model cannot detect unknown images: learn one with --method lmrc+, or use "
            "--reject-below"
        )
    return model.unknown_threshold(share)


def prediction_rule(model: LMRCClassifier) -> str:
    """Return a model's prediction rule; LMRC has only Winner-Take-All."""
    return str(getattr(model, "prediction_rule_", "wta"))


def backbone_name(model: LMRCClassifier) -> str:
    """Return the name of a model's backbone; for ``"auto"``, the one it chose."""
    if not isinstance(model.backbone, str):
        return "custom"
    return pick(model.input_shape_) if model.backbone == "auto" else model.backbone


def find_class(model: LMRCClassifier, name: str) -> Any:
    """Return the label with this name; labels may be numbers."""
    labels = model.classes_.tolist()
    for as_typed in (str, class_name):  # a model may have both Unicode forms of a name
        for label in labels:
            if as_typed(str(label)) == as_typed(name):
                return label
    known = ", ".join(map(str, labels))
    raise ValueError(f"the model has no class {name!r}, only {known}")


def spelt_as_known(labels: Array, classes: Array) -> Array:
    """Return labels from files as the model spells them, which may use another Unicode form.

    >>> spelt_as_known(np.array(["caf\u00e9"]), np.array(["cafe\u0301"])).tolist() == ["cafe\u0301"]
    True
    """
    names = {label for label in classes.tolist() if isinstance(label, str)}
    others = {class_name(name): name for name in names if class_name(name) not in names}
    if not others or labels.dtype.kind != "U":
        return labels
    return np.array([others.get(label, label) for label in labels.tolist()], dtype=str)
