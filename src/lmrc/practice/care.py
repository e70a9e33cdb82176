"""Looking after a model: what it shall no longer hold, and what its classes are called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmrc.data.folders import class_name
from lmrc.methods.label_vectors import reweighed
from lmrc.methods.persistence import model_from
from lmrc.methods.state import pack
from lmrc.practice.info import exemplars_of
from lmrc.practice.log import well_formed
from lmrc.practice.models import find_class, open_model
from lmrc.practice.usage import Say, count
from lmrc.store import folder as store
from lmrc.store import unfinished
from lmrc.store.files import read_tensors


def roll_back(path: Path, say: Say) -> None:
    """Go back to the version before the newest."""
    store.versions(path)  # a folder that is no model is not made one
    with store.writing(path):
        unfinished.refuse(path)
        store.roll_back(path, _check(path))
        (newest,) = store.versions(path)[-1:]
    say(f"{path} is as it was after version {newest['number']}, saved {newest['saved']}")
    if entry := exemplars_of(newest):
        with well_formed(path):
            stored = len(read_tensors(path, entry)["y"])
            settings = newest["model"]["settings"]
            each, all_of_it = settings["memory_per_class"], settings.get("memory_total")
        more = f", and keeps {each} of each class from now on" if each else ""
        more = f", and keeps {all_of_it} in all from now on" if all_of_it else more
        say(f"it stores {count(stored, 'image')}{more}")


def prune(path: Path, keep: int, say: Say) -> None:
    """Remove all but the newest versions of a model."""
    store.versions(path)  # a folder that is no model is not made one
    with store.writing(path):
        unfinished.refuse(path)
        gone = store.prune(path, keep, _check(path))
        left = store.versions(path)
    say(f"{count(gone, 'version')} removed: {path} keeps {count(len(left), 'version')}")


def forget(path: Path, name: str, say: Say) -> None:
    """Take a class out of a model, in all versions that are kept."""
    label = find_class(open_model(path, "cpu"), name)

    with store.writing(path):
        unfinished.refuse(path)
        if len(open_model(path, "cpu").classes_) == 1:
            raise ValueError(f"{name!r} is the only class of {path}: remove the folder instead")
        before = len(store.versions(path))
        _amend(path, label, lambda m: m.forget(label) if len(m.classes_) > 1 else None)
        dropped = before - len(store.versions(path))
    say(f"{name} is forgotten: no version of {path} that is kept knows it")
    if dropped:
        say(f"gone with it: {count(dropped, 'earlier version')} that knew no other class")


def rename(path: Path, name: str, to: str, say: Say) -> None:
    """Give a class of a model another name, in all versions that are kept."""
    label = find_class(open_model(path, "cpu"), name)
    as_label = class_name if isinstance(label, str) else type(label)
    try:
        new = as_label(to)
    except ValueError as error:
        raise ValueError(f"the classes of {path} are numbers, and {to!r} is none") from error

    with store.writing(path):
        unfinished.refuse(path)
        _amend(path, label, lambda model: model.rename(label, new), new)
    say(f"{label} is called {new} now, in all versions of {path} that are kept")


def _amend(path: Path, label: Any, change: Callable[[Any], Any], new: Any = None) -> None:
    """Change all versions that know a class; one is dropped where nothing comes back.

    Those that do not know it yet may have a weight for it: there it has its `new` name, too.
    """

    def amended(version: store.Model) -> store.Model | None:
        model = model_from(path, *version, device="cpu")
        if label not in model.classes_.tolist():
            model.class_weight = reweighed(model.class_weight, label, new)
            if new is None:
                model._move_seed_on()  # or the label vectors that were still to come would follow
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
    """Return what makes a model of a version: before another one is removed."""
    return lambda *content: model_from(path, *content, device="cpu")
