"""Models as the commands open them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lmrc.data.dataset import Array
from lmrc.data.folders import class_name
from lmrc.methods.lmrc import LMRCClassifier
from lmrc.methods.persistence import model_from
from lmrc.nets.auto import pick
from lmrc.store import folder as store
from lmrc.store.folder import ModelFileError


def open_model(
    path: Path, device: str = "auto", content: store.Model | None = None
) -> LMRCClassifier:
    """Read a model that the commands can work with; or make it of a folder's content as read."""
    model = model_from(path, *(content or store.read(path)), device=device)
    if not isinstance(model, LMRCClassifier):
        raise ModelFileError(
            f"{path} is a model of {type(model).__name__}: the commands work with LMRC alone, use "
            "lmrc.load in Python"
        )
    return model


def open_to_predict(path: Path, device: str = "auto") -> LMRCClassifier:
    """Read a model that can predict as it is set to: known before any image is read."""
    model = open_model(path, device)
    model._check_prediction_rule()
    return model


def prediction_rule(model: LMRCClassifier) -> str:
    """Return the rule by which a model predicts: LMRC has Winner-Take-All alone."""
    return str(getattr(model, "predict_with", "wta"))


def backbone_name(model: LMRCClassifier) -> str:
    """Return the name of a model's backbone, which it may have picked itself."""
    if not isinstance(model.backbone, str):
        return "custom"
    return pick(model.input_shape_) if model.backbone == "auto" else model.backbone


def find_class(model: LMRCClassifier, name: str) -> Any:
    """Return the label that a user calls by this name; labels may be numbers."""
    labels = model.classes_.tolist()
    for as_typed in (str, class_name):  # a model may know a name in both forms
        for label in labels:
            if as_typed(str(label)) == as_typed(name):
                return label
    known = ", ".join(map(str, labels))
    raise ValueError(f"the model knows no class {name!r}, but {known}")


def spelt_as_known(labels: Array, classes: Array) -> Array:
    """Return labels from files as a model spells them, which may know another form of Unicode.

    >>> spelt_as_known(np.array(["caf\u00e9"]), np.array(["cafe\u0301"])).tolist() == ["cafe\u0301"]
    True
    """
    names = {label for label in classes.tolist() if isinstance(label, str)}
    others = {class_name(name): name for name in names if class_name(name) not in names}
    if not others or labels.dtype.kind != "U":
        return labels
    return np.array([others.get(label, label) for label in labels.tolist()], dtype=str)
