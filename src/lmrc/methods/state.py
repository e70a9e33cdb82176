"""A classifier as plain values and tensors, to be saved, and back."""

import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrc.data.validation import shortest_type
from lmrc.methods.parameters import fixed
from lmrc.nets.backbones import build
from lmrc.nets.loading import is_pretrained, rebuild
from lmrc.nets.network import Network, build_encoder, check_input_shape
from lmrc.nets.resize import COLOURS
from lmrc.store.upgrade import MODEL_FORMAT
from lmrc.training.device import pick_device
from lmrc.training.loop import TrainingError
from lmrc.training.memory import Memory

Tensors = dict[str, dict[str, Tensor]]

MAX_HISTORY = 20_000  # epochs, the last ones, that a model file holds
MAX_LABELS = 2**26  # bytes of all labels; NumPy gives each as many as the longest has

_LABEL_TYPE = re.compile(r"[<>|=]?[biuU]\d{1,9}")


def pack(model: Any) -> tuple[dict[str, Any], Tensors]:
    """Return a fitted classifier's state: plain values, and groups of tensors."""
    settings = {name: _plain(value) for name, value in model.get_params(deep=False).items()}
    settings["weights"] = None  # the path of a file that is no longer needed
    del settings["device"]  # depends on the machine, not on the model
    settings["backbone"] = model._backbone  # "auto" may stand for another in later versions
    if not isinstance(model.backbone, str):
        settings["backbone"] = None  # code, which the user passes to `load`
    if not isinstance(model.random_state, (int, np.integer)):
        settings["random_state"] = None  # seed_ has the seed
    description = {
        "format": MODEL_FORMAT,
        "class": type(model).__name__,
        "settings": settings,
        "classes": model.classes_.tolist(),
        "label_type": shortest_type(model.classes_).dtype.str,
        "head_sizes": [len(head) for head in model.heads_],
        "feature_names": getattr(model, "feature_names_in_", np.array([])).tolist(),
        "pretrained": model.network_.encoder.saved,
        **{name: getattr(model, name) for name in model.saved_values},
    }
    description["history_"] = model.history_[-MAX_HISTORY:]
    tensors = _tensors_of(model)
    if settings.get("members") == 1:
        del settings["members"]
    elif "members" in settings:
        description["members"], tensors["members"] = _pack_members(model)
    check_numbers(tensors)
    return description, tensors


def _pack_members(model: Any) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return what differs between the members of an ensemble; the first is the model itself."""
    members = model.members_
    values = [
        {"seed_": m.seed_, "threshold_": m.threshold_, "history_": m.history_[-MAX_HISTORY:]}
        for m in members[1:]
    ]
    tensors = {
        f"{i}.{group}.{name}": tensor
        for i, member in enumerate(members)
        for group, part in _tensors_of(member).items()
        if (i or group == "calibration") and group != "exemplars"
        for name, tensor in part.items()
    }
    return values, tensors


def _tensors_of(model: Any) -> Tensors:
    state = model.network_.state_dict()
    # A frozen encoder has a file of its own, which later versions share.
    encoder = {n: t for n, t in state.items() if model._freeze and n.startswith("encoder.")}
    others = {name: tensor for name, tensor in state.items() if name not in encoder}
    tensors: Tensors = {"weights": others, "backbone": encoder}
    if memory := exemplars_in_force(model):
        tensors["exemplars"] = {"x": memory.x[:], "y": memory.y}
    for name in model.saved_tensors:
        tensors[name.rstrip("_")] = getattr(model, name)
    return {group: members for group, members in tensors.items() if members}


def check_numbers(tensors: Tensors) -> None:
    """Refuse, with a ValueError, tensors that would make every prediction the same.

    Those with NaN or infinity in them, and zeros where they divide.
    """
    for group, members in tensors.items():
        for name, tensor in members.items():
            last = name.rpartition(".")[2]
            if tensor.is_floating_point() and not _is_finite(tensor):
                raise ValueError(f"{name} ({group}) holds NaN or infinity")
            if name == "encoder.std" and not bool((tensor > 0).all()):
                raise ValueError(f"{name} ({group}), by which inputs are divided, is not positive")
            if last == "running_var" and not bool((tensor >= 0).all()):
                raise ValueError(f"{name} ({group}) holds variances below 0")
            if (group, name) == ("labels", "vectors") and not bool(
                ((tensor.float().norm(dim=-1) - 1).abs() < 0.01).all()
            ):
                raise ValueError(f"{name} ({group}) are not vectors of length 1")


def _is_finite(tensor: Tensor) -> bool:
    """Tell whether it has neither NaN nor infinity: by the sum, which is fast but may overflow."""
    return math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())


def refuse_diverged(model: Any) -> None:
    """Raise a TrainingError if training has left NaN or infinity in the model."""
    try:
        check_numbers(_tensors_of(model))
    except ValueError as error:
        rate = model.learning_rate
        raise TrainingError(
            f"training diverged, {error}: lower learning_rate (now {rate:g})"
        ) from error


def exemplars_in_force(model: Any) -> Memory | None:
    """Return the exemplars within the present limit, which may have been lowered."""
    memory: Memory | None = model.memory_
    if memory and not model.keeps_data:
        memory = memory.at_most(model.exemplars_per_class)
    return memory or None


def _plain(value: Any) -> Any:
    """Return a NumPy scalar, as a parameter search leaves them, as the number it is.

    A dict becomes a list of pairs, since the keys of JSON are text.
    """
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(of_key)] for key, of_key in value.items()]
    if isinstance(value, (tuple, list)):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        return value.item()
    is_fraction = isinstance(value, Real) and not isinstance(value, (int, float))
    return float(value) if is_fraction else value


def unpack(
    model: Any, description: dict[str, Any], tensors: Tensors, *, built_in: bool = True
) -> None:
    """Restore the state of a classifier whose parameters are set already.

    Built-in classes are known to make heads of the right size only: their sizes are checked first.
    """
    check_numbers(tensors)
    model.classes_ = _classes(description)
    model.heads_ = np.split(model.classes_, np.cumsum(description["head_sizes"])[:-1])
    for name in model.saved_values:
        setattr(model, name, description[name])
    _check_values(model)
    model.input_shape_ = tuple(model.input_shape_)
    check_input_shape(model.input_shape_)
    names = description["feature_names"]
    if len(model.input_shape_) == 1:
        model.n_features_in_ = model.input_shape_[0]
    if names:
        if not all(type(name) is str for name in names) or (len(names),) != model.input_shape_:
            raise ValueError("the names of its features are not one text for each")
        model.feature_names_in_ = np.array(names, dtype=object)
    weights = {**tensors["weights"], **tensors.get("backbone", {})}
    saved = description.get("pretrained")
    if is_pretrained(model.backbone) != (type(saved) is dict):
        raise ValueError(f"it says {saved!r:.50} of its backbone, {model.backbone!r:.50}")
    if built_in:
        _check_sizes(model, weights, saved)
    mean, std = weights["encoder.mean"], weights["encoder.std"]
    encoder, width = build_encoder(model.backbone, model.input_shape_, mean, std, saved)
    network = Network(encoder, model.make_head(width, len(model.heads_), len(model.classes_)))
    network.load_state_dict(weights)
    model.network_ = network.to(pick_device(model.device)).eval()
    for name in model.saved_tensors:
        setattr(model, name, tensors.get(name.rstrip("_"), {}))
    model.check_saved()
    model.memory_ = _memory(model, tensors["exemplars"]) if "exemplars" in tensors else None
    model.shape_settings_ = {name: getattr(model, name) for name in fixed(type(model))}
    if getattr(model, "members", 1) > 1:
        _unpack_members(model, description, tensors.get("members", {}), built_in)


def _unpack_members(
    model: Any, description: dict[str, Any], tensors: dict[str, Tensor], built_in: bool
) -> None:
    """Restore the members of an ensemble, each checked as a model of its own."""
    values = description["members"]
    if type(values) is not list or len(values) != model.members - 1:
        raise ValueError(f"it does not hold its {model.members} members")
    groups: list[Tensors] = [{} for _ in range(model.members)]
    for name, tensor in tensors.items():
        i, group, own_name = name.split(".", 2)
        groups[int(i)].setdefault(group, {})[own_name] = tensor
    first, *others = (model._member(i) for i in range(model.members))
    first.calibration_ = groups[0].get("calibration", {})
    first.check_saved()
    for other, own, of_other in zip(others, values, groups[1:], strict=True):
        changed = {name: own[name] for name in ("seed_", "threshold_", "history_")}
        unpack(other, {**description, **changed}, of_other, built_in=built_in)
    model._become([first, *others])


def _classes(description: dict[str, Any]) -> NDArray[Any]:
    """Return the classes of a description as an array."""
    classes, sizes = description["classes"], description["head_sizes"]
    kinds = {type(label) for label in classes}
    if len(kinds) != 1 or not kinds <= {str, int, bool} or type(classes) is not list:
        raise ValueError("its classes are not labels of one kind")
    if not all(type(size) is int and size > 0 for size in sizes) or sum(sizes) != len(classes):
        raise ValueError(f"{len(classes)} classes do not make its {len(sizes)} heads")
    if kinds == {str} and 4 * len(classes) * max(map(len, classes)) > MAX_LABELS:
        raise ValueError("its labels are too long for so many classes")
    kind = description.get("label_type")  # older files have none
    if kind is not None and not _LABEL_TYPE.fullmatch(kind):
        raise ValueError(f"its labels are of type {kind!r}")
    # Text has the length that it needs: as the file has it, it could take all memory.
    labels = np.array(classes, dtype=str if kind and "U" in kind else kind)
    if labels.tolist() != classes or len(set(classes)) != len(classes):
        raise ValueError(f"labels of type {labels.dtype} do not tell its classes apart")
    return labels


def _check_values(model: Any) -> None:
    """Refuse plain values that are impossible."""
    for name, most in (("seed_", 2**128), ("n_tasks_", 2**31)):
        value = getattr(model, name)
        if type(value) is not int or not 0 <= value < most:
            raise ValueError(f"its {name} is no number in 0…{most - 1}")
    if type(model.history_) is not list or not all(
        type(epoch) is dict and all(type(value) in (int, float) for value in epoch.values())
        for epoch in model.history_
    ):
        raise ValueError("its history_ is not made of numbers by epoch")


def _memory(model: Any, exemplars: dict[str, Tensor]) -> Memory:
    x, y = exemplars["x"], exemplars["y"]
    if y.dtype != torch.int64:
        raise ValueError(f"the exemplars have labels of type {y.dtype}")
    if x.shape != (len(y), *model.input_shape_):
        raise ValueError(f"the exemplars have inputs of shape {tuple(x.shape)}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(model.classes_):
        raise ValueError("the exemplars have samples of no class")
    return Memory(x, y)


def _check_sizes(model: Any, weights: dict[str, Tensor], saved: Mapping[str, Any] | None) -> None:
    """Compare the sizes that the description implies with those of the saved tensors.

    On the meta device, where nothing is allocated: a forged description must not take all memory
    before it is refused.
    """
    with torch.device("meta"):
        width = weights["head.weight"].shape[-1]
        head = model.make_head(width, len(model.heads_), len(model.classes_))
        wanted = {f"head.{name}": t for name, t in head.state_dict().items()}
        channels, backbone = model.input_shape_[0], None
        if saved is not None:
            channels, backbone = COLOURS, rebuild(model.backbone, saved).module
        elif isinstance(model.backbone, str):
            backbone = build(model.backbone, model.input_shape_)
        if backbone is not None:
            wanted |= {f"encoder.backbone.{n}": t for n, t in backbone.state_dict().items()}
        of_channels = torch.empty(channels, *[1] * (len(model.input_shape_) - 1))
        wanted |= {"encoder.mean": of_channels, "encoder.std": of_channels}
    for name, like in wanted.items():
        found = weights.get(name)
        if found is None or found.shape != like.shape or found.dtype != like.dtype:
            kind = f"shape {tuple(like.shape)} in {str(like.dtype).removeprefix('torch.')}"
            raise ValueError(f"{name} is not of {kind}, as the settings have it")
