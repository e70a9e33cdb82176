"""``lmrc info`` and ``lmrc log``: the content and the versions of a model on disk.

Needs no torch: reads the manifest and the headers of files.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmrc.labels import theory
from lmrc.nets.auto import pick
from lmrc.practice.defaults import DEFAULTS, format_settings, non_default
from lmrc.practice.usage import Say, count, format_bytes, noun_of, percent
from lmrc.store import folder as store
from lmrc.store import unfinished
from lmrc.store.folder import ModelFileError
from lmrc.store.upgrade import known_settings

NO_EXEMPLARS = "exemplars: none, no images are stored in this model"
MAX_ROOM = 10**9  # classes; a larger estimate is printed as "over" this number
BUFFERS = {"mean", "std", "running_mean", "running_var", "num_batches_tracked"}


@contextmanager
def well_formed(path: Path) -> Iterator[None]:
    """Turn errors caused by a forged or malformed manifest into a ModelFileError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ModelFileError(
            f"{path} has a malformed manifest that lmrc did not write: {error!r:.200}"
        ) from error


def describe(path: Path) -> dict[str, Any]:
    """Return a description of a model as JSON values.

    Checksums are verified; whether all values fit together is checked when the model is loaded.
    """
    (description, files), versions = store.outline(path), store.versions(path)
    method = description.get("class")
    if not isinstance(method, str) or method not in DEFAULTS:
        raise ModelFileError(
            f"{path} is a model of {method!r:.100}: the commands are for LMRC and LMRC+ only, use "
            "lmrc.load in Python"
        )
    with well_formed(path):
        settings = _settings(method, description["settings"])
        heads = _heads(description["classes"], description["head_sizes"])
        classes = list(itertools.chain(*heads))
        input_shape = _input_shape(description["input_shape_"])
        vectors, _ = files["labels"]["vectors"]
        rotations, dim, threshold = vectors[1:-1], vectors[-1], description["threshold_"]
        if len(vectors) - len(rotations) != 2 or vectors[0] != len(classes):
            raise ValueError(f"label vectors of shape {vectors}")
        rotated = settings.get("rotations", "none")
        if rotated == "auto":
            rotated = "all" if rotations else "none"
        if dim != settings["label_dim"] or bool(rotations) != (rotated != "none"):
            raise ValueError(f"label vectors of shape {vectors} do not fit the settings")
        likely = theory.likely(dim, threshold, settings["max_tries"])
        # With rotations each head has its own label mapping: so many classes fit into the next.
        left = likely // math.prod(rotations) if rotations else max(0, likely - len(classes))
        backbone, pretrained = settings["backbone"], description.get("pretrained")
        shared = files.get("backbone", {})
        weights = files["weights"] | shared | _of_others(files, "weights")
        return {
            "path": str(path),
            "classes": classes,
            "heads": heads,
            "tasks": description["n_tasks_"],
            "input_shape": input_shape,
            "backbone": pick(input_shape) if backbone == "auto" else backbone or "custom",
            "backbone_size": [int(side) for side in pretrained["size"]] if pretrained else None,
            "adapted": bool(pretrained and pretrained.get("side_by_side")),
            "backbone_bytes": sum(size for _, size in shared.values()),
            "members": settings.get("members", 1),
            "parameters": sum(
                math.prod(shape)
                for name, (shape, _) in weights.items()
                if name.rpartition(".")[2] not in BUFFERS
            ),
            "bytes": store.size_of(versions[-1:]),
            "bytes_of_all_versions": store.size_of(versions),
            "exemplars": files["exemplars"]["y"][0][0] if "exemplars" in files else 0,
            "earlier_versions_with_exemplars": earlier_with_exemplars(versions),
            "statistics": _statistics(files) or settings.get("statistics", "none"),
            "statistics_bytes": _bytes(files, "statistics", "scatter", "classifiers"),
            "earlier_bytes": _bytes(files, "earlier"),
            "snapshot_bytes": _bytes(files, "snapshots"),
            "statistics_of": _statistics_of(files, settings),
            "rotations": rotated,
            "label_dim": dim,
            "threshold": threshold,
            "label_vectors_left": min(left, MAX_ROOM),
            "versions": len(versions),
            "unfinished": unfinished.is_there(path),
            "being_changed_by": store.changing(path),
            "settings": settings,
            "settings_not_default": non_default(method, settings),
        }


def _bytes(files: dict[str, Any], *groups: str) -> int:
    """Return the size of some groups, of all members of an ensemble."""
    parts = (files.get(group, {}) | _of_others(files, group) for group in groups)
    return sum(size for part in parts for _, size in part.values())


def _of_others(files: dict[str, Any], group: str) -> dict[str, Any]:
    """Return the shapes of a group of tensors of an ensemble's other members."""
    found = files.get("members", {}).items()
    return {name: shape for name, shape in found if name.split(".")[1:2] == [group]}


def _statistics(files: dict[str, Any]) -> str:
    """Return the kind of exact statistics in words; empty for a model without any."""
    if "scatter" not in files:
        return ""
    (n_pooled,), _ = files["scatter"]["within"]
    return "exact, scatter matrices summed up" if n_pooled else "exact"


def _statistics_of(files: dict[str, Any], settings: dict[str, Any]) -> dict[str, int] | None:
    """Return the features of exact statistics, and the largest size of their scatter matrices."""
    if "scatter" not in files:
        return None
    (_, width), _ = files["scatter"]["means"]
    projections = settings["projections"]
    features, left = divmod(width - projections, 2)  # as they are, and normalised
    if left or features < 1:
        raise ValueError(f"statistics of {width} values do not fit {projections} projections")
    most = 2 * width * (width + 1)
    return {"features": features, "projections": projections, "most_bytes": most}


def _settings(method: str, stored: Any) -> dict[str, Any]:
    """Return all settings, with defaults for those that did not exist when the model was saved."""
    usual = {name: value for name, value in DEFAULTS[method].items() if name != "device"}
    settings: dict[str, Any] = usual | known_settings(dict(stored), usual)
    if unknown := settings.keys() - usual.keys():
        raise ValueError(f"unknown setting: {sorted(unknown)[0]}")
    return settings


def _heads(classes: list[Any], head_sizes: list[int]) -> list[list[Any]]:
    """Return the classes of each head."""
    if len(set(classes)) != len(classes) or min(head_sizes) < 1 or sum(head_sizes) != len(classes):
        raise ValueError(f"{len(classes)} classes do not fit heads of {head_sizes} classes")
    ends = itertools.accumulate(head_sizes)
    return [classes[end - size : end] for end, size in zip(ends, head_sizes, strict=True)]


def _input_shape(shape: list[int]) -> list[int]:
    if len(shape) not in (1, 3) or not all(type(side) is int and side > 0 for side in shape):
        raise ValueError(f"invalid input shape {shape}")
    return shape


def earlier_with_exemplars(versions: list[store.Version]) -> int:
    """Return how many versions before the newest contain exemplars."""
    return sum(exemplars_of(version) is not None for version in versions[:-1])


def exemplars_of(version: store.Version) -> Any:
    """Return the manifest entry of a version's exemplar file; None if it has none."""
    return version["files"].get("exemplars", version["files"].get("pool"))


def print_info(path: Path, say: Say) -> None:
    """Print a description of a model."""
    info = describe(path)
    n_classes, n_heads = len(info["classes"]), len(info["heads"])
    say(f"{path}: {count(n_classes, 'class', 'classes')}, {count(n_heads, 'head')}")
    for i, head in enumerate(info["heads"], start=1):
        say(f"  head {i}: {', '.join(map(str, head))}")
    channels, *sides = info["input_shape"]
    if sides:
        kind = {1: "grey", 3: "colour"}.get(channels, f"{channels}-channel")
        say(f"input: {kind} images, resized to {sides[0]}×{sides[1]} pixels (height × width)")
    else:
        say(f"input: vectors of {channels} features")
    own = info["backbone_size"]
    at = f" at {own[0]}×{own[1]} pixels" if own and own != sides else ""
    at += ", adapted to the first task, beside the pre-trained one" if info["adapted"] else ""
    several = f", {info['members']} networks (members)" if info["members"] > 1 else ""
    say(f"backbone: {info['backbone']}{at}{several}, {info['parameters']:,} parameters in all")
    more = f"; all {info['versions']} versions: {format_bytes(info['bytes_of_all_versions'])}"
    if info["backbone_bytes"]:
        more += f", which share a frozen backbone of {format_bytes(info['backbone_bytes'])}"
    say(f"size on disk: {format_bytes(info['bytes'])}{more if info['versions'] > 1 else ''}")
    exemplars = info["exemplars"]
    say(f"exemplars: {exemplars:,} training samples are stored" if exemplars else NO_EXEMPLARS)
    if earlier := info["earlier_versions_with_exemplars"]:
        also = "also " if exemplars else ""
        versions = count(earlier, "earlier version")
        say(f"exemplars are {also}stored in {versions} (lmrc prune deletes earlier versions)")
    if info["statistics"] != "none":
        size = format_bytes(info["statistics_bytes"])
        of = info["statistics_of"]
        more = ""
        if of:
            more = f": of {of['features']:,} features and {of['projections']:,} random projections"
            if info["statistics_bytes"] < of["most_bytes"]:
                more += f", growing with the images up to {format_bytes(of['most_bytes'])}"
        say(f"class statistics of the features: {info['statistics']}, {size}{more}")
    if info["earlier_bytes"]:
        size = format_bytes(info["earlier_bytes"])
        say(f"encoders of earlier tasks, to compensate feature drift: {size}")
    if info["snapshot_bytes"]:
        size = format_bytes(info["snapshot_bytes"])
        say(f"class statistics and classifiers of the snapshot ensemble: {size}")
    each = "" if info["rotations"] == "none" else " per task, each in four rotations"
    left = info["label_vectors_left"]
    about = "over" if left == MAX_ROOM else "about"
    say(
        f"room for {about} {count(left, 'more class', 'more classes')}{each}: "
        f"label vectors of {info['label_dim']} dimensions, threshold {info['threshold']:g}"
    )
    if info["settings_not_default"]:
        say(f"settings other than the defaults: {format_settings(info['settings_not_default'])}")
    if info["being_changed_by"]:
        activity = "a task is being learnt" if info["unfinished"] else "it is being changed"
        say(f"{activity} by {info['being_changed_by']}")
    elif info["unfinished"]:
        say(f"a task is unfinished: continue it with {store.learn_command(path)} --resume")


def history(path: Path) -> list[dict[str, Any]]:
    """Return the stored versions as JSON values, oldest first."""
    versions = store.versions(path)
    with well_formed(path):
        return [_entry(version) for version in versions]


def print_log(path: Path, say: Say) -> None:
    """Print the stored versions of a model, newest first."""
    versions = store.versions(path)
    with well_formed(path):
        lines = [
            _log_line(_entry(version), noun_of(version["model"].get("input_shape_", ())))
            for version in reversed(versions)
        ]
    for line in lines:
        say(line)


def _entry(version: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": version["number"],
        "saved": version["saved"],
        "classes": len(version["model"].get("classes", [])),
        **version["note"],
    }


def _log_line(entry: dict[str, Any], noun: str) -> str:
    parts = [f"version {entry['version']}", entry["saved"]]
    parts.append(count(entry["classes"], "class", "classes"))
    if "images" in entry:
        # As learnt at that time: some of these classes may have been removed since.
        learnt = f"{entry['new_classes']} new in {count(entry['images'], noun)}"
        parts.append(f"{learnt}, {entry['seconds']:.0f} s")
    parts += [
        f"accuracy on {name} classes {percent(entry[f'{name}_accuracy'])}"
        for name in ("new", "old")
        if f"{name}_accuracy" in entry
    ]
    return "  ".join(parts)
