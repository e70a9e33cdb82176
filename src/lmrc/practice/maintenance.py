"""Maintenance of a model on disk: roll back, prune, forget and rename classes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmrc.data.class_names import class_name
from lmrc.methods.label_vectors import reweighed
from lmrc.methods.persistence import model_from
from lmrc.methods.state import pack
from lmrc.practice.info import exemplars_of, well_formed
from lmrc.practice.learn_output import ONLY_ONE
from lmrc.practice.models import find_class, open_model
from lmrc.practice.usage import Say, count
from lmrc.store import folder as store
from lmrc.store import unfinished
from lmrc.store.files import read_tensors


def roll_back(path: Path, say: Say) -> None:
    """Delete the newest version, so that the one before is the model again."""
    store.versions(path)  # fails if there is no model, before the lock creates a folder
    with store.writing(path):
        unfinished.refuse(path)
        store.roll_back(path, _check(path))
        (newest,) = store.versions(path)[-1:]
    say(f"{path} is back at version {newest['number']}, saved {newest['saved']}")
    if entry := exemplars_of(newest):
        with well_formed(path):
            stored = len(read_tensors(path, entry)["y"])
            settings = newest["model"]["settings"]
            per_class, total = settings["memory_per_class"], settings.get("memory_total")
        more = f"; memory_per_class is {per_class} again" if per_class else ""
        more = f"; memory_total is {total} again" if total else more
        say(f"it stores {count(stored, 'exemplar')}{more}")


def prune(path: Path, keep: int, say: Say) -> None:
    """Delete all but the newest versions of a model."""
    store.versions(path)  # fails if there is no model, before the lock creates a folder
    with store.writing(path):
        unfinished.refuse(path)
        removed = store.prune(path, keep, _check(path))
        left = store.versions(path)
    say(f"{count(removed, 'version')} removed, {path} keeps {count(len(left), 'version')}")


def forget(path: Path, name: str, say: Say) -> None:
    """Remove a class from all versions of a model."""
    label = find_class(open_model(path, "cpu"), name)

    with store.writing(path):
        unfinished.refuse(path)
        if len(open_model(path, "cpu").classes_) == 1:
            raise ValueError(f"{name!r} is the only class of {path}: remove the folder instead")
        before = len(store.versions(path))
        _amend(path, label, lambda m: m.forget(label) if len(m.classes_) > 1 else None)
        left = store.versions(path)
        dropped = before - len(left)
    say(f"class {name} is removed from all versions of {path}")
    if dropped:
        say(f"also removed: {count(dropped, 'earlier version')} with no other class")
    if len(left[-1]["model"]["classes"]) == 1:
        say(ONLY_ONE)


def rename(path: Path, name: str, to: str, say: Say) -> None:
    """Rename a class in all versions of a model."""
    label = find_class(open_model(path, "cpu"), name)
    as_label = class_name if isinstance(label, str) else type(label)
    try:
        new = as_label(to)
    except ValueError as error:
        raise ValueError(f"the classes of {path} are numbers, but {to!r} is not") from error

    with store.writing(path):
        unfinished.refuse(path)
        _amend(path, label, lambda model: model.rename(label, new), new)
    say(f"class {label} is renamed to {new} in all versions of {path}")


def _amend(path: Path, label: Any, change: Callable[[Any], Any], new: Any = None) -> None:
    """Change all versions that know a class; those for which `change` returns None are dropped.

    Versions from before the class may have a class weight for it, which is renamed or removed.
    """

    def amended(version: store.Model) -> store.Model | None:
        model = model_from(path, *version, device="cpu")
        if label not in model.classes_.tolist():
            model.class_weight = reweighed(model.class_weight, label, new)
            if new is None:
                model._move_seed_on()  # it would give the removed class's label vector again
            return pack(model)
        changed = change(model)
        if changed is None:
            return None
        content = pack(changed)
        check(*content)
        return content

    check = _check(path)
    store.amend(path, amended)


def _check(path: Path) -> store.Check:
    """Return a function that builds a version's model, to verify it before others are deleted."""
    return lambda *content: model_from(path, *content, device="cpu")
