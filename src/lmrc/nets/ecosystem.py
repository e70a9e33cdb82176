"""Pre-trained backbones of other libraries: ``"timm:NAME"``, ``"torchvision:NAME"``, ``"hf:NAME"``.

Each comes with the size and the normalisation that its weights expect, and gives pooled features.
The libraries are optional and imported when a backbone is loaded. A model file holds the weights
and what the network is built from again: to load it takes the library, but no download.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lmrc.nets.packaged import MissingPackageError
from lmrc.text import shorten

#: The package of each prefix.
PACKAGES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}
MAX_LAYERS = 1000  # of a network in transformers: a model file with more is forged
MAX_MESSAGE = 300  # characters of another library's error

# Files of a repository on the hub: no pickles, no code.
_SETTINGS = ("config.json", "preprocessor_config.json", "processor_config.json")
_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
_NAME = re.compile(r"[\w.-]+")  # of timm and torchvision: neither an address nor a path


class Form(NamedTuple):
    """What weights expect of images: size, and normalisation for values in 0…1."""

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Family(NamedTuple):
    """A kind of network in transformers: its classes, and which output to take."""

    model: str
    config: str
    output: str


_CLASS_TOKEN, _POOLED = "class token", "pooled"
#: By ``model_type``; others are refused, so that a model file cannot name any code.
FAMILIES = {
    "vit": Family("ViTModel", "ViTConfig", _CLASS_TOKEN),
    "dinov2": Family("Dinov2Model", "Dinov2Config", _CLASS_TOKEN),
    "dinov2_with_registers": Family(
        "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", _CLASS_TOKEN
    ),
    # Before the projection onto texts, as in the linear probes of CLIP's paper.
    "clip_vision_model": Family("CLIPVisionModel", "CLIPVisionConfig", _POOLED),
    "convnext": Family("ConvNextModel", "ConvNextConfig", _POOLED),
    "convnextv2": Family("ConvNextV2Model", "ConvNextV2Config", _POOLED),
    "resnet": Family("ResNetModel", "ResNetConfig", _POOLED),
}


def split_name(backbone: object) -> tuple[str, str] | None:
    """Return the prefix of a backbone's name and the rest; None if it has none of `PACKAGES`.

    >>> split_name("timm:resnet50.a1_in1k"), split_name("resnet18")
    (('timm', 'resnet50.a1_in1k'), None)
    """
    if not isinstance(backbone, str):
        return None
    prefix, colon, name = backbone.partition(":")
    return (prefix, name) if colon and prefix in PACKAGES else None


def check_installed(prefix: str) -> None:
    """Refuse a backbone whose library is not installed."""
    package = PACKAGES[prefix]
    if find_spec(package) is None:
        raise MissingPackageError(
            f"backbones that begin with {prefix}: need the package {package}: pip install {package}"
        )


def expected_form(prefix: str, name: str) -> Form:
    """Return the size and normalisation that a backbone's weights expect."""
    with _explained(prefix, name):
        if prefix == "hf":
            return _form_of_hf(name)
        _check_plain(name)
        if prefix == "timm":
            config = _import(prefix).get_pretrained_cfg(name).to_dict()
            return Form(config["input_size"][1:], tuple(config["mean"]), tuple(config["std"]))
        preset = _import(prefix).models.get_model_weights(name).DEFAULT.transforms()
        return Form(_square(preset.crop_size), tuple(preset.mean), tuple(preset.std))


def load(prefix: str, name: str) -> tuple[nn.Module, int]:
    """Return a network with its weights, and the number of its features."""
    with _explained(prefix, name):
        if prefix == "hf":
            return _load_hf(name)
        if prefix == "timm":
            return _timm(name, weights=True)
        return _torchvision(name, weights=True)


def rebuild(prefix: str, name: str, saved: Mapping[str, Any]) -> tuple[nn.Module, int]:
    """Return a network of a model file without its weights, and the number of its features."""
    if prefix == "hf":
        config = dict(saved["config"])
        network = HuggingFace.build(str(config.pop("model_type")), config)
        return network, network.width
    return _timm(name) if prefix == "timm" else _torchvision(name)


# --- timm and torchvision ------------------------------------------------------------------------


def _timm(name: str, weights: bool = False) -> tuple[nn.Module, int]:
    _check_plain(name)
    network = _import("timm").create_model(name, pretrained=weights, num_classes=0)
    # Some have a hidden layer between the pooled features and the classifier.
    width = getattr(network, "head_hidden_size", None) or network.num_features
    return network, int(width)


def _torchvision(name: str, weights: bool = False) -> tuple[nn.Module, int]:
    models = _import("torchvision").models
    if name not in models.list_models(module=models):
        raise ValueError(f"torchvision has no classifier of images called {name!r:.50}")
    network: nn.Module = models.get_model(name, weights="DEFAULT" if weights else None)
    linear = {n: m for n, m in network.named_modules() if isinstance(m, nn.Linear)}
    if not linear or hasattr(network, "aux_logits"):
        raise ValueError(f"{name} does not end in one linear classifier: choose another network")
    *_, (last, classifier) = linear.items()
    above, _, attribute = last.rpartition(".")
    setattr(network.get_submodule(above), attribute, nn.Identity())
    return network, classifier.in_features


# --- transformers --------------------------------------------------------------------------------


class HuggingFace(nn.Module):
    """A network of transformers, of a kind in `FAMILIES`, that returns pooled features."""

    def __init__(self, kind: str, config: Mapping[str, Any], model: nn.Module) -> None:
        super().__init__()
        self.model, self.output = model, FAMILIES[kind].output
        self.width = int(
            config["hidden_sizes"][-1] if "hidden_sizes" in config else config["hidden_size"]
        )
        self.saved = {"config": {"model_type": kind, **config}}

    @classmethod
    def build(cls, kind: str, config: Mapping[str, Any]) -> HuggingFace:
        """Return a network without weights."""
        family, config = _family(kind), _own_values(kind, config)
        _refuse_deep(config)
        transformers = _import("hf")
        made = getattr(transformers, family.config)(**config)
        return cls(kind, config, getattr(transformers, family.model)(made, **_options(kind)))

    def forward(self, x: Tensor) -> Tensor:
        """Return features of shape (batch, width)."""
        out = self.model(pixel_values=x)
        features: Tensor = (
            out.pooler_output if self.output == _POOLED else out.last_hidden_state[:, 0]
        )
        return features.flatten(1)


def _load_hf(name: str) -> tuple[nn.Module, int]:
    transformers, folder = _import("hf"), _folder(name, _SETTINGS + _WEIGHTS)
    found = _read_json(folder / "config.json")
    if found.get("model_type") == "clip":  # of texts and images: the part for images
        found = {**found["vision_config"], "model_type": "clip_vision_model"}
    kind = str(found.get("model_type"))
    family, config = _family(kind), _own_values(kind, found)
    with _quiet(transformers):
        model, report = getattr(transformers, family.model).from_pretrained(
            folder,
            config=getattr(transformers, family.config)(**config),
            use_safetensors=True,  # never a pickle
            trust_remote_code=False,
            output_loading_info=True,
            **_options(kind),
        )
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"its file lacks weights, such as {missing[0]}")
    network = HuggingFace(kind, config, model.to(torch.float32))
    return network, network.width


def _family(kind: str) -> Family:
    if kind not in FAMILIES:
        raise ValueError(f"its type is {kind!r:.50}, not one of {', '.join(FAMILIES)}")
    return FAMILIES[kind]


def _options(kind: str) -> dict[str, Any]:
    # Checkpoints of ViTs that were trained to classify have no weights for a pooler.
    return {"add_pooling_layer": False} if kind == "vit" else {}


def _own_values(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this kind of network is built from, without what transformers does besides.

    The latter may lead to other code, such as quantisation or kernels from the hub.
    """
    transformers = _import("hf")
    usual = getattr(transformers, FAMILIES[kind].config)().to_dict()
    general = transformers.PretrainedConfig().to_dict()
    names = [name for name in usual if name not in general and not name.startswith("_")]
    return {name: config.get(name, usual[name]) for name in names}


def _refuse_deep(config: Mapping[str, Any]) -> None:
    layers = config.get("depths") or [config.get("num_hidden_layers")]
    if not all(type(n) is int and n > 0 for n in layers) or sum(layers) > MAX_LAYERS:
        raise ValueError(f"its network has {layers!r:.50} layers")


def _form_of_hf(name: str) -> Form:
    """Return what the image processor beside the weights says."""
    _import("hf")
    found = _image_processor(_folder(name, _SETTINGS))
    size = found["crop_size"] if found.get("do_center_crop") else found["size"]
    if isinstance(size, Mapping):
        edge = size.get("shortest_edge")
        size = (edge, edge) if edge else (size["height"], size["width"])
    scale = 255 * found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 255.0
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if found.get("do_normalize", True):
        mean, std = tuple(found["image_mean"]), tuple(found["image_std"])
    return Form(_square(size), *(tuple(v / scale for v in values) for values in (mean, std)))


def _image_processor(folder: Path) -> Mapping[str, Any]:
    _, preprocessor, processor = (folder / file for file in _SETTINGS)
    if processor.exists() and "image_processor" in (found := _read_json(processor)):
        part: Mapping[str, Any] = found["image_processor"]
        return part
    if not preprocessor.exists():
        raise ValueError(f"it has no {preprocessor.name}, which says how images are normalised")
    return _read_json(preprocessor)


def _read_json(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


def _folder(name: str, files: Sequence[str]) -> Path:
    """Return the folder of a network; these files are downloaded if it is on the hub."""
    if not name:
        raise ValueError("give the name or the folder of a model behind hf:")
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise ValueError("there is no such folder")
    hub = importlib.import_module("huggingface_hub")  # comes with transformers
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(files)))
    except hub.errors.LocalEntryNotFoundError as error:
        raise ValueError(
            "it is no folder here, and the hub cannot be reached: connect to the network, or give "
            "a folder"
        ) from error
    except hub.errors.RepositoryNotFoundError as error:
        raise ValueError(
            "it is no folder here, and the hub has no such model, or one that needs a login"
        ) from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Suppress reports of unused weights: the classifier is left out on purpose."""
    logging = transformers.utils.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


# --- All -----------------------------------------------------------------------------------------


def _square(size: int | Sequence[int]) -> tuple[int, int]:
    sides = (size, size) if isinstance(size, int) else tuple(size)
    return (sides[0], sides[-1])


def _check_plain(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError("names consist of letters, digits, '_', '.' and '-'")


def _import(prefix: str) -> Any:
    check_installed(prefix)
    try:
        return importlib.import_module(PACKAGES[prefix])
    except Exception as error:  # a torchvision that was built for another torch raises anything
        raise MissingPackageError(
            f"the package {PACKAGES[prefix]} is installed but cannot be imported: "
            f"{_one_line(error)}"
        ) from error


@contextmanager
def _explained(prefix: str, name: str) -> Iterator[None]:
    """Turn any error of another library into one line."""
    try:
        yield
    except MissingPackageError:
        raise
    except Exception as error:
        raise ValueError(
            f"backbone={f'{prefix}:{name}'!r:.100} cannot be loaded: {_one_line(error)}"
        ) from error


def _one_line(error: Exception) -> str:
    return shorten(" ".join(str(error).split()) or type(error).__name__, MAX_MESSAGE)
