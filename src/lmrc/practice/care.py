"""Looking after a model: what it holds, how it came to be, and what it shall no longer hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmrc.data.folders import class_name
from lmrc.labels import capacity
from lmrc.methods.amending import reweighed
from lmrc.methods.persistence import model_from
from lmrc.methods.state import pack
from lmrc.practice.log import well_formed
from lmrc.practice.models import backbone_name, find_class, open_model
from lmrc.practice.settings import in_words, unusual
from lmrc.practice.usage import Say, bytes_in_words, count
from lmrc.store import folder as store
from lmrc.store import unfinished
from lmrc.store.files import read_tensors
from lmrc.training.rotations import TURNS

NO_IMAGES = "no images are stored in this model"


def describe(path: Path) -> dict[str, Any]:
    """Return what there is to know about a model: plain values."""
    model, versions = open_model(path, "cpu"), store.versions(path)
    settings = _settings(model)
    with well_formed(path):
        likely = capacity.likely(model.label_dim, model.threshold_, model.max_tries)
    return {
        "path": str(path),
        "classes": model.classes_.tolist(),
        "heads": [head.tolist() for head in model.heads_],
        "class_batches": model.n_batches_,
        "input_shape": list(model.input_shape_),
        "backbone": backbone_name(model),
        "parameters": sum(p.numel() for p in model.network_.parameters()),
        "bytes": store.size(path),
        "bytes_of_all_versions": store.size_of_all(path),
        "images_stored": len(model.memory_) if model.memory_ else 0,
        "earlier_versions_with_images": earlier_with_images(versions),
        "statistics": model.statistics,
        "statistics_bytes": sum(t.nbytes for t in (model.statistics_ | model.readout_).values()),
        "rotations": model.rotations,
        "label_dim": model.label_dim,
        "threshold": model.threshold_,
        # With rotations each head has a mapping of its own: this many classes fit in the next.
        "label_vectors_left": (
            max(0, likely - len(model.classes_)) if model.turns is None else likely // TURNS
        ),
        "versions": len(versions),
        "unfinished": unfinished.is_there(path),
        "being_changed_by": store.changing(path),
        "settings": settings,
        "settings_not_default": {name: settings[name] for name in unusual(model)},
    }


def earlier_with_images(versions: list[store.Version]) -> int:
    """Return how many versions before the newest hold images."""
    return sum("pool" in version["files"] for version in versions[:-1])


def tell_info(path: Path, say: Say) -> None:
    """Say what there is to know about a model."""
    info = describe(path)
    n_classes, n_heads = len(info["classes"]), len(info["heads"])
    say(f"{path}: {count(n_classes, 'class', 'classes')}, {count(n_heads, 'head')}")
    for i, head in enumerate(info["heads"], start=1):
        say(f"  head {i}: {', '.join(map(str, head))}")
    channels, *sides = info["input_shape"]
    if sides:
        kind = {1: "grey", 3: "colour"}.get(channels, f"{channels}-channel")
        say(f"takes {kind} images, brought to {sides[0]}×{sides[1]} pixels (height × width)")
    else:
        say(f"takes vectors of {channels} features")
    say(f"backbone {info['backbone']}, {info['parameters']:,} parameters")
    more = f", {bytes_in_words(info['bytes_of_all_versions'])} with all {info['versions']} versions"
    say(f"{bytes_in_words(info['bytes'])} on disk{more if info['versions'] > 1 else ''}")
    stored = info["images_stored"]
    say(f"{count(stored, 'image')} stored in this model" if stored else NO_IMAGES)
    if earlier := info["earlier_versions_with_images"]:
        too = "images are also" if stored else "but some are"
        kept = f"{count(earlier, 'earlier version')} that the folder keeps"
        say(f"{too} in {kept} (lmrc prune removes what is earlier)")
    if info["statistics"] != "none":
        kept = bytes_in_words(info["statistics_bytes"])
        say(f"statistics of the classes' features are stored ({info['statistics']}, {kept})")
    each = "" if info["rotations"] == "none" else " in each class batch, in four turns"
    say(
        f"room for about {count(info['label_vectors_left'], 'more class', 'more classes')}{each}: "
        f"label vectors of {info['label_dim']} dimensions, threshold {info['threshold']:g}"
    )
    if info["settings_not_default"]:
        say(f"settings that are not the defaults: {in_words(info['settings_not_default'])}")
    if info["being_changed_by"]:
        at_it = "a class batch is being learnt" if info["unfinished"] else "it is being changed"
        say(f"{at_it} by {info['being_changed_by']}")
    elif info["unfinished"]:
        say(f"a class batch is unfinished: {store.learn_command(path)} --resume goes on with it")


def roll_back(path: Path, say: Say) -> None:
    """Go back to the version before the newest."""
    store.versions(path)  # a folder that is no model is not made one
    with store.writing(path):
        unfinished.refuse(path)
        store.roll_back(path)
        (newest,) = store.versions(path)[-1:]
    say(f"{path} is as it was after version {newest['number']}, saved {newest['saved']}")
    if "pool" in newest["files"]:
        with well_formed(path):
            stored = len(read_tensors(path, newest["files"]["pool"])["y"])
            each = newest["model"]["settings"]["memory_per_class"]
        more = f", and keeps {each} of each class from now on" if each else ""
        say(f"it stores {count(stored, 'image')}{more}")


def prune(path: Path, keep: int, say: Say) -> None:
    """Remove all but the newest versions of a model."""
    store.versions(path)  # a folder that is no model is not made one
    with store.writing(path):
        unfinished.refuse(path)
        gone = store.prune(path, keep)
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
            weights = model.class_weight
            model.class_weight = reweighed(weights, label, new)
            return version if model.class_weight == weights else pack(model)
        changed = change(model)
        return None if changed is None else pack(changed)

    store.amend(path, amended)


def _settings(model: Any) -> dict[str, Any]:
    settings: dict[str, Any] = pack(model)[0]["settings"]
    return settings
