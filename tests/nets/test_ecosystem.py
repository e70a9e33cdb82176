import json
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from torch import nn

from lmrc import LMRCClassifier, LMRCPlusClassifier, ModelFileError, load
from lmrc.nets import ecosystem
from lmrc.nets.ecosystem import FAMILIES
from lmrc.nets.loading import own_size
from lmrc.nets.network import build_encoder
from lmrc.nets.packaged import MissingPackageError

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
_VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_STAGES = {"hidden_sizes": [4, 4, 8, 8], "depths": [1, 1, 1, 1]}
SMALL = {
    "vit": _VIT | {"intermediate_size": 32, "image_size": 32, "patch_size": 8},
    "dinov2": _VIT | {"image_size": 64, "patch_size": 8},  # its positions are interpolated
    "dinov2_with_registers": _VIT | {"image_size": 32, "patch_size": 8},
    "clip_vision_model": _VIT | {"intermediate_size": 32, "image_size": 32, "patch_size": 8},
    "convnext": _STAGES,
    "convnextv2": _STAGES,
    "resnet": _STAGES | {"embedding_size": 4},
}
SETTINGS = {"epochs": 1, "freeze": True, "random_state": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def transformers():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture
def save(transformers, tmp_path, capfd):
    """Return what saves a small network as transformers does; it returns the network."""

    def write(kind, processor=None, folder="net", **options):
        torch.manual_seed(0)
        family = FAMILIES[kind]
        config = getattr(transformers, family.config)(**SMALL[kind])
        network = getattr(transformers, family.model)(config, **options).eval()
        for module in network.modules():  # at first it has none to speak of
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.normal_(module.weight, std=0.3)
        network.save_pretrained(tmp_path / folder)
        usual = {"size": {"height": 32, "width": 32}, "image_mean": MEAN, "image_std": STD}
        content = json.dumps(usual if processor is None else processor)
        (tmp_path / folder / "preprocessor_config.json").write_text(content)
        capfd.readouterr()
        return network

    return write


def images(n=4):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), np.arange(n) % 2


@pytest.mark.parametrize("kind", FAMILIES)
def test_features_are_those_that_users_of_the_network_take(kind, save, tmp_path, capfd):
    network = save(kind)
    name = f"hf:{tmp_path / 'net'}"
    encoder, width = build_encoder(name, (3, 32, 32))
    assert capfd.readouterr() == ("", "")  # no bars, no reports
    X, y = images()
    x = torch.from_numpy(X).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    with torch.inference_mode():
        out = network(pixel_values=(x - mean) / std)
        pooled = {
            "vit": out.last_hidden_state[:, 0],
            "dinov2": out.last_hidden_state[:, 0],
            "dinov2_with_registers": out.last_hidden_state[:, 0],
        }.get(kind, out.pooler_output)
        found = encoder.eval()(torch.from_numpy(X).permute(0, 3, 1, 2))
    assert found.shape == (4, width)
    torch.testing.assert_close(found, pooled.flatten(1), atol=1e-5, rtol=1e-5)
    assert found.std(0).mean() > 1e-3  # images make a difference

    model = LMRCClassifier(backbone=name, **SETTINGS).fit(X, y)
    model.save(tmp_path / "m")
    (tmp_path / "net").rename(tmp_path / "elsewhere")
    loaded = load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.similarities(X), model.similarities(X))
    loaded.partial_fit(X, y + 2)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_a_network_is_adapted_to_the_first_task(kind, save, tmp_path):
    save(kind)
    X, y = images()
    how = {"freeze": "later", "adaptation_epochs": 1, "projections": 10}
    model = LMRCPlusClassifier(backbone=f"hf:{tmp_path / 'net'}", **SETTINGS | how).fit(X, y)
    model.save(tmp_path / "m")
    backbone = model.network_.encoder.backbone
    adapted, before = backbone.adapted.state_dict(), backbone.pretrained.state_dict()
    assert any(not torch.equal(adapted[name], before[name]) for name in before)
    (tmp_path / "net").rename(tmp_path / "elsewhere")
    loaded = load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.similarities(X), model.similarities(X))
    loaded.partial_fit(X, y + 2)


def test_the_vision_part_of_a_clip_is_taken(transformers, save, tmp_path):
    torch.manual_seed(0)
    text = _VIT | {"intermediate_size": 32, "vocab_size": 9, "max_position_embeddings": 4}
    config = transformers.CLIPConfig(
        text_config=text, vision_config=SMALL["clip_vision_model"], projection_dim=8
    )
    clip = transformers.CLIPModel(config).eval()
    save("clip_vision_model")  # for what is beside the weights
    clip.save_pretrained(tmp_path / "net")
    encoder, width = build_encoder(f"hf:{tmp_path / 'net'}", (3, 32, 32))
    x = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        wanted = clip.vision_model(pixel_values=encoder.normalise(x)).pooler_output
        torch.testing.assert_close(encoder.eval()(x), wanted)
    assert width == 16


@pytest.mark.parametrize(
    ("processor", "size"),
    [
        ({"size": {"height": 20, "width": 30}}, (20, 30)),
        ({"size": 24}, (24, 24)),
        ({"size": {"shortest_edge": 32}, "crop_pct": 0.875}, (32, 32)),  # of ConvNeXt
        ({"size": {"shortest_edge": 32}, "do_center_crop": True, "crop_size": 28}, (28, 28)),
        (
            {
                "size": {"shortest_edge": 32},
                "do_center_crop": True,
                "crop_size": {"height": 28, "width": 26},
            },
            (28, 26),
        ),
        ({"size": {"shortest_edge": 32}, "do_center_crop": False, "crop_size": 28}, (32, 32)),
    ],
)
def test_the_size_is_that_of_the_image_processor(save, tmp_path, processor, size):
    save("resnet", {"image_mean": MEAN, "image_std": STD, **processor})
    name = f"hf:{tmp_path / 'net'}"
    assert own_size(name) == size
    encoder, _ = build_encoder(name, (3, 10, 10))
    assert encoder.normalise(torch.rand(1, 3, 10, 10)).shape == (1, 3, *size)
    assert encoder.mean.flatten().tolist() == pytest.approx(MEAN)
    assert encoder.std.flatten().tolist() == pytest.approx(STD)


@pytest.mark.parametrize(
    ("processor", "mean", "std"),
    [
        ({"do_normalize": False}, 0.0, 1.0),
        ({"image_mean": [127.5] * 3, "image_std": [51.0] * 3, "do_rescale": False}, 0.5, 0.2),
        ({"image_mean": [1.0] * 3, "image_std": [0.4] * 3, "rescale_factor": 2 / 255}, 0.5, 0.2),
    ],
)
def test_values_are_scaled_as_the_image_processor_does(save, tmp_path, processor, mean, std):
    save("resnet", {"size": 32, **processor})
    encoder, _ = build_encoder(f"hf:{tmp_path / 'net'}", (3, 32, 32))
    assert encoder.mean.flatten().tolist() == pytest.approx([mean] * 3)
    assert encoder.std.flatten().tolist() == pytest.approx([std] * 3)


def refused(name, match):
    with pytest.raises(ValueError, match=match) as error:
        build_encoder(name, (3, 32, 32))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 450
    return error.value


def test_a_network_that_cannot_be_loaded_is_refused_in_one_line(save, transformers, tmp_path):
    name = f"hf:{tmp_path / 'net'}"
    refused(name, r"'hf:.*/net' cannot be loaded: there is no such folder")
    refused("hf:", "'hf:' cannot be loaded: give the name or the folder of a model behind hf:")
    refused("hf:nobody/nothing", r"'hf:nobody/nothing' .*: it is no folder here, and the hub")
    save("resnet")
    (tmp_path / "net" / "preprocessor_config.json").unlink()
    refused(name, "cannot be loaded: it has no preprocessor_config.json")
    save("resnet")
    config = tmp_path / "net" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "bert"}))
    refused(name, r"its type is 'bert', not one of vit, dinov2, ")


def test_of_a_network_on_the_hub_only_settings_and_tensors_are_fetched(save, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    save("resnet")
    requested = []

    def download(name, allow_patterns):
        requested.append((name, allow_patterns))
        return str(tmp_path / "net")

    monkeypatch.setattr(hub, "snapshot_download", download)
    assert own_size("hf:someone/resnet") == (32, 32)
    assert [name for name, patterns in requested if any("model" in p for p in patterns)] == []
    build_encoder("hf:someone/resnet", (3, 32, 32))
    assert {name for name, _ in requested} == {"someone/resnet"}
    fetched = {pattern for _, patterns in requested for pattern in patterns}
    assert "model.safetensors" in fetched
    assert all(pattern.endswith((".json", ".safetensors")) for pattern in fetched)

    def nothing(name, allow_patterns):
        raise hub.errors.RepositoryNotFoundError.__new__(hub.errors.RepositoryNotFoundError)

    monkeypatch.setattr(hub, "snapshot_download", nothing)
    refused("hf:someone/nothing", "the hub has no such model, or one that needs a login")


def test_a_pickle_is_not_read(save, tmp_path):
    network = save("resnet")
    (tmp_path / "net" / "model.safetensors").unlink()
    torch.save(network.state_dict(), tmp_path / "net" / "pytorch_model.bin")
    refused(f"hf:{tmp_path / 'net'}", "safetensors")


CODE = {
    "auto_map": {"AutoModel": "modeling_own.Own"},
    "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "attn_implementation": "someone/kernels",
    "_attn_implementation": "someone/kernels",
}


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("was-run",)


def test_no_code_of_a_repository_is_run(save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save("vit", add_pooling_layer=False)
    net = tmp_path / "net"
    (net / "modeling_own.py").write_text("import os\nos.mkdir('was-run')\n")
    (net / "pytorch_model.bin").write_bytes(pickle.dumps(Malicious()))
    config = json.loads((net / "config.json").read_text())
    config |= CODE
    (net / "config.json").write_text(json.dumps(config))
    encoder, _ = build_encoder(f"hf:{net}", (3, 32, 32))
    assert not (tmp_path / "was-run").exists()
    assert not encoder.saved["config"].keys() & CODE.keys()


def test_weights_that_are_missing_are_not_made_up(save, tmp_path):
    from safetensors.torch import load_file, save_file

    save("resnet")
    file = tmp_path / "net" / "model.safetensors"
    tensors = load_file(file)
    tensors.popitem()
    save_file(tensors, file, metadata={"format": "pt"})
    refused(f"hf:{tmp_path / 'net'}", "its file lacks weights, such as ")


@pytest.mark.parametrize(
    "forged",
    [
        {"model_type": "bert"},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "many"},
        {"hidden_size": 2**40},
        {"hidden_act": "os.system"},
        {"patch_size": 0},
    ],
)
def test_forged_networks_in_a_model_are_refused(save, tmp_path, forged, reseal):
    save("vit", add_pooling_layer=False)
    X, y = images()
    LMRCClassifier(backbone=f"hf:{tmp_path / 'net'}", **SETTINGS).fit(X, y).save(tmp_path / "m")
    pretrained = lambda manifest: manifest["versions"][0]["model"]["pretrained"]  # noqa: E731
    reseal(tmp_path / "m", lambda manifest: pretrained(manifest)["config"].update(forged))
    with pytest.raises(ModelFileError, match="does not hold a model"):
        load(tmp_path / "m")


@pytest.mark.parametrize("prefix", ecosystem.PACKAGES)
def test_a_missing_library_is_named(prefix, monkeypatch):
    monkeypatch.setattr(ecosystem, "find_spec", lambda name: None)
    package = ecosystem.PACKAGES[prefix]
    with pytest.raises(MissingPackageError, match=f"begin with {prefix}: .*pip install {package}$"):
        build_encoder(f"{prefix}:resnet18", (3, 32, 32))


def test_a_model_whose_library_is_missing_says_so(save, tmp_path, monkeypatch):
    save("resnet")
    X, y = images()
    LMRCClassifier(backbone=f"hf:{tmp_path / 'net'}", **SETTINGS).fit(X, y).save(tmp_path / "m")
    monkeypatch.setattr(ecosystem, "find_spec", lambda name: None)
    with pytest.raises(ModelFileError, match=r"cannot be loaded: .* pip install transformers$"):
        load(tmp_path / "m")


def test_a_library_that_does_not_import_says_why(monkeypatch):
    monkeypatch.setattr(ecosystem, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingPackageError, match="timm is installed but cannot be imported: "):
        build_encoder("timm:resnet18", (3, 32, 32))


@pytest.mark.parametrize("name", ["hf-hub:someone/code", "local-dir:/tmp", "../resnet", ""])
@pytest.mark.parametrize("prefix", ["timm", "torchvision"])
def test_names_are_no_addresses(prefix, name):
    refused(f"{prefix}:{name}", "names consist of letters")


# --- Where these libraries import ----------------------------------------------------------------


def importable(package):
    try:
        return pytest.importorskip(package, reason=f"{package} is not installed")
    except RuntimeError as error:  # one for another build of torch
        return pytest.skip(f"{package} does not import beside this torch: {error}")


@pytest.mark.parametrize(
    ("name", "width"),
    [("resnet18", 512), ("mobilenet_v3_small", 1024), ("convnext_tiny", 768), ("vit_b_16", 768)],
)
def test_networks_of_torchvision(name, width, tmp_path, monkeypatch):
    torchvision = importable("torchvision")
    torch.manual_seed(0)
    network = torchvision.models.get_model(name).eval()
    file = torchvision.models.get_model_weights(name).DEFAULT.url.rpartition("/")[2]
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # as if it had been downloaded
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(network.state_dict(), tmp_path / "hub" / "checkpoints" / file)
    encoder, found = build_encoder(f"torchvision:{name}", (3, 32, 32))
    assert (found, own_size(f"torchvision:{name}")) == (width, (224, 224))
    assert encoder.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    seen = {}
    *_, classifier = [m for m in network.modules() if isinstance(m, nn.Linear)]
    classifier.register_forward_hook(lambda *call: seen.update(features=call[1][0]))
    x = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        network(encoder.normalise(x))
        torch.testing.assert_close(encoder.eval()(x), seen["features"])
    again, _ = build_encoder(
        f"torchvision:{name}", (3, 32, 32), encoder.mean, encoder.std, encoder.saved
    )
    again.load_state_dict(encoder.state_dict())


def test_what_torchvision_does_not_have_is_refused():
    importable("torchvision")
    for name in ("squeezenet1_0", "googlenet"):
        with pytest.raises(ValueError, match="does not end in one linear classifier"):
            ecosystem.rebuild("torchvision", name, {})
    refused("torchvision:resnet19", "cannot be loaded: ")
    refused("torchvision:fcn_resnet50", "cannot be loaded: ")


def test_networks_of_timm(tmp_path, monkeypatch):
    timm = importable("timm")
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", pretrained=False).eval()
    create = timm.create_model

    def without_download(name, pretrained, **options):
        made = create(name, pretrained=False, **options)
        if pretrained:
            made.load_state_dict(network.state_dict(), strict=False)
        return made

    monkeypatch.setattr(timm, "create_model", without_download)
    name = "timm:resnet10t.c3_in1k"
    X, y = images()
    encoder, width = build_encoder(name, (3, 32, 32))
    assert (width, own_size(name)) == (512, (176, 176))
    x = torch.from_numpy(X).permute(0, 3, 1, 2)
    with torch.inference_mode():
        maps = network.forward_features(encoder.normalise(x))
        torch.testing.assert_close(encoder.eval()(x), maps.mean((2, 3)))
    model = LMRCClassifier(backbone=name, **SETTINGS).fit(X, y)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").similarities(X), model.similarities(X))
    refused("timm:no_such_network", "cannot be loaded: ")
