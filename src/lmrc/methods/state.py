"""What a model file holds: all that prediction and the next class batch need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmrc.data.inputs import shortest_type
from lmrc.nets.backbones import build
from lmrc.nets.network import Network, build_trunk
from lmrc.training.device import pick_device
from lmrc.training.memory import Memory

Tensors = dict[str, dict[str, Tensor]]

LARGEST_INPUT = 2**27  # values; a model file that asks for more has been made up


def pack(model: Any) -> tuple[dict[str, Any], Tensors]:
    """Take a fitted classifier apart: plain values, and groups of tensors."""
    settings = {name: _plain(value) for name, value in model.get_params(deep=False).items()}
    settings["weights"] = None  # a file of the user's, of no use once the network is made
    del settings["device"]  # a matter of the machine, not of the model
    if not isinstance(model.backbone, str):
        settings["backbone"] = None  # code: the user brings it again
    if not isinstance(model.random_state, (int, np.integer)):
        settings["random_state"] = None  # what it came to is in seed_
    description = {
        "class": type(model).__name__,
        "settings": settings,
        "classes": model.classes_.tolist(),
        "label_type": shortest_type(model.classes_).dtype.str,
        "head_sizes": [len(head) for head in model.heads_],
        "feature_names": getattr(model, "feature_names_in_", np.array([])).tolist(),
        **{name: getattr(model, name) for name in model.saved_values},
    }
    tensors: Tensors = {"weights": {}, "labels": {}}
    for name, tensor in model.network_.state_dict().items():
        tensors["labels" if name.endswith("label_vectors") else "weights"][name] = tensor
    if pool := pool_in_force(model):
        tensors["pool"] = {"x": pool.x, "y": pool.y}
    for name in model.saved_tensors:
        tensors[name.rstrip("_")] = getattr(model, name)
    return description, {group: members for group, members in tensors.items() if members}


def pool_in_force(model: Any) -> Memory | None:
    """Return the rehearsal pool as ``memory_per_class`` is now: it may have been lowered."""
    pool: Memory | None = model.memory_
    if pool and not model.keeps_data:
        pool = pool.at_most(model.memory_per_class)
    return pool or None


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
    """Put a classifier together again; its parameters are set already.

    Of those that are built in, it is known what heads they make: their sizes are checked first.
    """
    classes, head_sizes = description["classes"], description["head_sizes"]
    if len(set(classes)) != len(classes) or min(head_sizes) < 1 or sum(head_sizes) != len(classes):
        raise ValueError(f"{len(classes)} classes do not make heads of {head_sizes}")
    # Without a type in files of before it was written down.
    model.classes_ = np.array(classes, dtype=description.get("label_type"))
    if len(set(model.classes_.tolist())) != len(classes):
        raise ValueError(f"labels of type {model.classes_.dtype} do not tell the classes apart")
    model.heads_ = np.split(model.classes_, np.cumsum(head_sizes)[:-1])
    for name in model.saved_values:
        setattr(model, name, description[name])
    counts = all(type(n) is int and n >= 0 for n in (model.seed_, model.n_batches_))
    epochs = type(model.history_) is list and all(type(at) is dict for at in model.history_)
    if not counts or not epochs:
        raise ValueError("its seed, class batches or history are not what they should be")
    model.input_shape_ = tuple(model.input_shape_)
    if not all(type(side) is int for side in model.input_shape_):  # True would do for a 1
        raise ValueError(f"inputs cannot be of shape {model.input_shape_}")
    if len(model.input_shape_) == 1:
        model.n_features_in_ = model.input_shape_[0]
    if description["feature_names"]:
        model.feature_names_in_ = np.array(description["feature_names"], dtype=object)
    weights = {**tensors["weights"], **tensors.get("labels", {})}
    if built_in:
        _check_sizes(model, weights)
    mean, std = weights["trunk.mean"], weights["trunk.std"]
    trunk, width = build_trunk(model.backbone, model.input_shape_, mean, std)
    network = Network(trunk, model.make_head(width, len(model.heads_), len(model.classes_)))
    network.load_state_dict(weights)
    model.network_ = network.to(pick_device(model.device)).eval()
    for name in model.saved_tensors:
        setattr(model, name, tensors.get(name.rstrip("_"), {}))
    model.check_saved()
    model.memory_ = _pool(model, tensors["pool"]) if "pool" in tensors else None
    model.shape_settings_ = {name: getattr(model, name) for name in model.shaping_parameters}


def _pool(model: Any, pool: dict[str, Tensor]) -> Memory:
    x, y = pool["x"], pool["y"]
    if y.dtype != torch.int64:
        raise ValueError(f"the pool holds labels of type {y.dtype}")
    if x.shape != (len(y), *model.input_shape_):
        raise ValueError(f"the pool holds inputs of shape {tuple(x.shape)}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(model.classes_):
        raise ValueError("the pool holds samples of no class")
    return Memory(x, y)


def _check_sizes(model: Any, weights: dict[str, Tensor]) -> None:
    """Compare the sizes that the description asks for with those of the tensors that are there.

    On the meta device, where nothing is allocated: a made-up description is not to take all memory
    before it is found out.
    """
    if math.prod(model.input_shape_) > LARGEST_INPUT:
        raise ValueError(f"inputs of shape {model.input_shape_} are too large")
    with torch.device("meta"):
        width = weights["head.weight"].shape[-1]
        head = model.make_head(width, len(model.heads_), len(model.classes_))
        wanted = {f"head.{name}": t.shape for name, t in head.state_dict().items()}
        if isinstance(model.backbone, str):
            backbone = build(model.backbone, model.input_shape_)
            wanted |= {f"trunk.backbone.{n}": t.shape for n, t in backbone.state_dict().items()}
    for name, shape in wanted.items():
        if name not in weights or weights[name].shape != shape:
            raise ValueError(f"{name} is not of shape {tuple(shape)}, as the settings have it")
