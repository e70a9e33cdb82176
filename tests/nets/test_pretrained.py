import copy

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lmrc import FineTuneClassifier, JointClassifier, LMRCClassifier, LwFClassifier, load
from lmrc.nets.backbones import build
from lmrc.nets.network import build_encoder
from lmrc.nets.pretrained import IMAGENET, load_encoder

LARGE = (3, 72, 72)  # over 64 pixels: torchvision's stem


def make_encoder(backbone, shape):
    rest = (1,) * (len(shape) - 1)
    return build_encoder(
        backbone, shape, torch.zeros(shape[0], *rest), torch.ones(shape[0], *rest)
    )[0]


@pytest.fixture
def torchvision_file(tmp_path):
    """Weights under torchvision's names, with its classifier, and without BatchNorm's counters."""
    torch.manual_seed(1)
    weights = build("resnet18", LARGE).state_dict()
    weights = {n: t for n, t in weights.items() if not n.endswith("num_batches_tracked")}
    weights |= {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    save_file(weights, tmp_path / "resnet18.safetensors")
    return tmp_path / "resnet18.safetensors"


def test_torchvision_names_load(torchvision_file):
    torch.manual_seed(2)
    encoder = make_encoder("resnet18", LARGE)
    load_encoder(encoder, torchvision_file)
    torch.manual_seed(1)
    reference = build("resnet18", LARGE).eval()
    assert torch.equal(encoder.backbone.conv1.weight, reference.conv1.weight)
    images = torch.randint(0, 256, (2, *LARGE), dtype=torch.uint8)
    mean, std = (
        torch.tensor(values)[:, None, None]
        for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    )
    with torch.inference_mode():  # as torchvision's own preparation of images has it
        torch.testing.assert_close(encoder.eval()(images), reference((images / 255 - mean) / std))


@pytest.mark.usefixtures("uninitialised")
def test_what_does_not_fit_is_named(torchvision_file, tmp_path):
    with pytest.raises(ValueError, match=r"conv1\.weight is 64×3×7×7, not 64×3×3×3.*larger images"):
        load_encoder(make_encoder("resnet18", (3, 32, 32)), torchvision_file)
    with pytest.raises(ValueError, match=r"for images of 3 channel\(s\), not of 1"):
        load_encoder(make_encoder("resnet18", (1, 72, 72)), torchvision_file)
    with pytest.raises(ValueError, match=r"layer1\.2\.conv1\.weight is missing.*and \d+ more"):
        load_encoder(make_encoder("resnet34", LARGE), torchvision_file)
    save_file({"stem": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="stem has no place"):
        load_encoder(make_encoder("mlp", (4,)), tmp_path / "other.safetensors")
    names = [f"{layer}.{part}" for layer in (1, 3) for part in ("weight", "bias")]
    many = {name: torch.zeros(7) for name in (*names, "a", "b", "c", "d", "e")}
    save_file(many, tmp_path / "many.safetensors")
    with pytest.raises(ValueError, match=r"1\.weight is 7, not 256×4.*a has no.*, and 3 more\."):
        load_encoder(make_encoder("mlp", (4,)), tmp_path / "many.safetensors")
    (tmp_path / "note.txt").write_text("no tensors")
    with pytest.raises(ValueError, match=r"note\.txt cannot be read as a safetensors file"):
        load_encoder(make_encoder("mlp", (4,)), tmp_path / "note.txt")
    with pytest.raises(ValueError, match="none"):
        load_encoder(make_encoder("mlp", (4,)), tmp_path / "none.safetensors")


def images(n=12):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 16, 16, 3), dtype=np.uint8), np.arange(n) % 3


def test_a_frozen_backbone_does_not_change_while_heads_learn(tmp_path):
    X, y = images()
    small = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    teacher = LMRCClassifier(backbone=small, epochs=1, random_state=0).fit(X, y)
    teacher.save(tmp_path / "teacher")
    (file,) = (tmp_path / "teacher").glob("weights-*")
    settings = {"backbone": small, "epochs": 2, "freeze": True, "weights": file}
    model = LMRCClassifier(**settings, random_state=1).partial_fit(X, y)
    old_head = model.network_.head.weight.clone()
    model.partial_fit(X, y + 3)
    for name, weight in teacher.network_.encoder.backbone.state_dict().items():
        assert torch.equal(weight, model.network_.encoder.backbone.state_dict()[name]), name
    assert not torch.equal(old_head[0], model.network_.head.weight[1])
    model.save(tmp_path / "model")
    assert load(tmp_path / "model", backbone=small).weights is None
    model.set_params(freeze=False).partial_fit(X, y)
    assert not torch.equal(
        model.network_.encoder.backbone[0].weight, teacher.network_.encoder.backbone[0].weight
    )


def backbone_of(model):
    return copy.deepcopy(model.network_.encoder.backbone.state_dict())


@pytest.mark.parametrize("method", [LMRCClassifier, FineTuneClassifier, LwFClassifier])
def test_a_backbone_that_is_frozen_later_learns_the_first_task_alone(method, tmp_path):
    X, y = images()
    small = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    model = method(backbone=small, epochs=2, freeze="later", random_state=0).partial_fit(X, y)
    first = backbone_of(model)
    assert all(not torch.equal(first[n], w) for n, w in small.state_dict().items() if "weight" in n)
    head = model.network_.head.weight.clone()
    model.partial_fit(X, y + 3)
    model.save(tmp_path / "model")
    model = load(tmp_path / "model", backbone=small).partial_fit(X, y + 6)  # it is remembered
    assert all(torch.equal(w, first[name]) for name, w in backbone_of(model).items())
    assert not torch.equal(model.network_.head.weight[: len(head)], head)
    assert len(model.classes_) == 9


def test_joint_training_has_nothing_to_freeze_later():
    with pytest.raises(ValueError, match="freeze"):
        JointClassifier(freeze="later").fit(*images())


def test_inputs_are_normalised_as_the_weights_expect(torchvision_file, tmp_path):
    rng = np.random.default_rng(0)
    dark = rng.integers(0, 30, (6, 72, 72, 3), dtype=np.uint8), np.arange(6) % 2
    settings = {"backbone": "resnet18", "epochs": 1, "freeze": True, "device": "cpu"}
    model = LMRCClassifier(**settings, weights=torchvision_file, random_state=0).fit(*dark)
    model.save(tmp_path / "model")
    encoder = load(tmp_path / "model").network_.encoder
    assert encoder.mean.flatten().tolist() == pytest.approx(IMAGENET[0])
    assert encoder.std.flatten().tolist() == pytest.approx(IMAGENET[1])

    grey = rng.integers(0, 256, (6, 8, 8), dtype=np.uint8), np.arange(6) % 2
    teacher = LMRCClassifier(backbone="mlp", epochs=1, random_state=0).fit(*grey)
    teacher.save(tmp_path / "teacher")
    (file,) = (tmp_path / "teacher").glob("weights-*")
    pupil = LMRCClassifier(backbone="mlp", epochs=1, weights=file, random_state=0)
    pupil.fit(grey[0] // 4, grey[1])
    assert torch.equal(pupil.network_.encoder.mean, teacher.network_.encoder.mean)
    assert torch.equal(pupil.network_.encoder.std, teacher.network_.encoder.std)
