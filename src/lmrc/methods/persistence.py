"""Models to disk, and back."""

from __future__ import annotations

import os
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lmrc.methods import catalog
from lmrc.methods.state import Tensors, pack, unpack
from lmrc.nets.backbones import Factory
from lmrc.nets.packaged import MissingPackageError
from lmrc.store import folder, unfinished
from lmrc.store.folder import ModelFileError
from lmrc.store.upgrade import known_settings
from lmrc.training.device import default_dtype_guard, pick_device

if TYPE_CHECKING:
    from lmrc.methods.base import IncrementalClassifier


def remember(model: Any, path: str | os.PathLike[str], state: str | None) -> None:
    """Note in a model the folder it belongs to, and the state of that folder."""
    model._on_disk = Path(path).resolve(), state


def state_of(path: str | os.PathLike[str]) -> str | None:
    """Return the fingerprint of the model in a folder; None if it cannot be read."""
    with suppress(ModelFileError):
        return folder.fingerprint(Path(path))
    return None


@default_dtype_guard()
def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a model to a folder, unless the folder has changed since it was read."""
    with folder.writing(path):
        place, then = getattr(model, "_on_disk", (None, None))
        if place == Path(path).resolve() and state_of(path) not in (then, None):
            raise ModelFileError(
                f"{path} has changed since this model was read from it or written to it, and what "
                "it has learnt there would be lost: load it again, or save to another folder"
            )
        unfinished.refuse(Path(path))
        folder.write(path, *pack(model))
        remember(model, path, state_of(path))


def load(
    path: str | os.PathLike[str],
    *,
    method: type[IncrementalClassifier] | None = None,
    backbone: nn.Module | Factory | None = None,
    device: str | torch.device = "auto",
) -> Any:
    """Read a model that was written with ``save``.

    Parameters
    ----------
    path : path
        The model's folder.
    method : class, optional
        Needed where the model is of a class of your own: that class. A file never names code to
        import.
    backbone : nn.Module or factory, optional
        Needed where the model was trained with a custom backbone: the same module or factory (its
        weights are replaced by those of the file).
    device : str or torch.device, default="auto"
        Where to put the network.

    Returns
    -------
    classifier
        It predicts as before, and its next ``partial_fit`` gives the same as without saving.

    Raises
    ------
    ModelFileError
        If the folder is no model, is damaged, or needs a newer lmrc.
    """
    state = state_of(path)  # first, so that a change while it is read is noticed, too
    content = folder.read(path)
    model = model_from(path, *content, method=method, backbone=backbone, device=device)
    remember(model, path, state)
    return model


@default_dtype_guard()
def model_from(
    path: str | os.PathLike[str],
    description: dict[str, Any],
    tensors: Tensors,
    *,
    method: type[IncrementalClassifier] | None = None,
    backbone: nn.Module | Factory | None = None,
    device: str | torch.device = "auto",
) -> Any:
    """Make a classifier from the content of a model folder; parameters as in `load`."""
    pick_device(device)  # a missing device is no fault of the file: it is a plain ValueError
    try:
        cls = _class_of(path, description["class"], method)
        settings = known_settings(description["settings"], signature(cls).parameters)
        if type(settings.get("random_state")) not in (int, type(None)):
            raise ValueError(f"random_state={settings['random_state']!r} is no whole number")
        # A file must not name another one to read, nor start a compilation of many minutes.
        settings["weights"] = None
        if settings.get("compile") is True:
            settings["compile"] = "auto"
        settings["halve_at"] = tuple(settings["halve_at"])
        if isinstance(settings.get("class_weight"), list):
            settings["class_weight"] = dict(settings["class_weight"])
        custom = settings["backbone"] is None
        if custom and backbone is None:
            raise ModelFileError(
                f"{path} was trained with a custom backbone, which a file cannot hold: pass the "
                "same module or factory as lmrc.load(path, backbone=…)"
            )
        if backbone is not None and not custom:
            raise ModelFileError(
                f"{path} has the backbone {settings['backbone']!r}: leave backbone= out"
            )
        settings["backbone"] = backbone if custom else settings["backbone"]
        model = cls(**settings, device=device)
        model._check_parameters()
        with torch.random.fork_rng(devices=[]):  # initial weights are sampled, then replaced
            unpack(model, description, tensors, built_in=method is None)
    except ModelFileError:
        raise
    except MissingPackageError as error:
        raise ModelFileError(f"{path} cannot be loaded: {error}") from error
    except Exception as error:  # whatever a forged description leads to
        raise ModelFileError(f"{path} does not hold a model of this lmrc: {error}") from error
    return model


def _class_of(
    path: str | os.PathLike[str], name: str, method: type[IncrementalClassifier] | None
) -> type[IncrementalClassifier]:
    if method is not None and method.__name__ != name:
        raise ModelFileError(
            f"{path} holds a model of {name}, not of {method.__name__}: pass method={name}"
        )
    classes = catalog.classes()  # what a model file may name: it never names code to import
    if method is None and name not in classes:
        raise ModelFileError(
            f"{path} holds a model of {name}, which is no class of lmrc's own: if it is yours, "
            f"pass it as lmrc.load(path, method={name})"
        )
    return method or classes[name]
