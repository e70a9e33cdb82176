import numpy as np
import pytest
import torch
from torch import nn

from lmrc import LMRCPlusClassifier
from lmrc.nets.auto import pick
from lmrc.nets.backbones import BACKBONES, ResNet, build
from lmrc.nets.network import Encoder, build_encoder

SHAPES = {
    "identity": (7,),
    "homogeneous": (7,),
    "mlp": (7,),
    "cnn": (1, 8, 8),
    "resnet18": (3, 32, 32),
    "resnet34": (3, 32, 32),
    "resnet18-wide": (3, 32, 32),
}


def encoder_of(backbone, shape):
    return build_encoder(backbone, shape, torch.zeros(1), torch.ones(1))


@pytest.mark.usefixtures("uninitialised")
@pytest.mark.parametrize("name", BACKBONES)
def test_maps_a_batch_to_feature_vectors(name):
    encoder, width = encoder_of(name, SHAPES[name])
    assert encoder(torch.rand(3, *SHAPES[name])).shape == (3, width)


@pytest.mark.parametrize("backbone", ["homogeneous", "auto"])
def test_vectors_are_told_apart_by_their_length(backbone):
    rng = np.random.default_rng(0)
    y = np.arange(200) % 2
    X = rng.normal(size=(200, 9))
    X /= np.linalg.norm(X, axis=1, keepdims=True) / (1 + 2 * y)[:, None]
    model = LMRCPlusClassifier(backbone=backbone, random_state=0).partial_fit(X[:100], y[:100])
    assert model.score(X[100:], y[100:]) > 0.9


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 9), (4, 70, 33)])
def test_cnn_takes_images_of_any_size(shape):
    encoder, width = encoder_of("cnn", shape)
    assert encoder(torch.rand(2, *shape)).shape == (2, width) == (2, 128)


def test_resnet18_has_the_parameters_of_the_usual_one():
    with torch.device("meta"):
        backbone = build("resnet18", (3, 224, 224))
    # torchvision's resnet18 has 11,689,512 parameters, 513,000 of them in its classifier `fc`.
    assert sum(p.numel() for p in backbone.parameters()) == 11_689_512 - 513_000
    weights = backbone.state_dict()
    assert weights["conv1.weight"].shape == (64, 3, 7, 7)
    assert weights["layer1.1.bn2.running_mean"].shape == (64,)
    assert weights["layer4.0.downsample.0.weight"].shape == (512, 256, 1, 1)
    assert weights["layer4.0.downsample.1.num_batches_tracked"].shape == ()
    assert "layer1.0.downsample.0.weight" not in weights


def test_resnet34_has_the_parameters_of_the_usual_one():
    with torch.device("meta"):
        parameters = build("resnet34", (3, 224, 224)).parameters()
    assert sum(p.numel() for p in parameters) == 21_797_672 - 513_000


def test_the_wide_resnet18_has_twice_the_channels_everywhere():
    with torch.device("meta"):
        plain, wide = (build(name, (3, 32, 32)) for name in ("resnet18", "resnet18-wide"))
    shapes = {name: p.shape for name, p in plain.named_parameters()}
    for name, parameter in wide.named_parameters():
        kept = 2 if name == "conv1.weight" else 0  # the image has three colours
        doubled = [n if axis and kept else 2 * n for axis, n in enumerate(shapes[name][:2])]
        assert parameter.shape == (*doubled, *shapes[name][2:]), name
    assert wide.last_two(torch.rand(2, 3, 32, 32, device="meta")).shape == (
        2,
        wide.width_before + 1024,
    )


@pytest.mark.parametrize(("side", "stem", "final"), [(64, 3, 8), (65, 7, 3)])
@pytest.mark.usefixtures("uninitialised")
def test_resnet_keeps_small_images_at_full_resolution(side, stem, final):
    network = build("resnet18", (3, side, side))
    assert network.conv1.kernel_size == (stem, stem)
    maps = {}
    network.layer4.register_forward_hook(lambda *args: maps.update(shape=args[-1].shape))
    network.eval()(torch.zeros(1, 3, side, side))
    assert maps["shape"] == (1, 512, final, final)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((4,), "mlp"),
        ((1, 8, 8), "cnn"),
        ((1, 28, 28), "cnn"),
        ((3, 32, 32), "resnet18"),
        ((1, 64, 64), "resnet18"),
        ((3, 224, 224), "resnet18"),
    ],
)
def test_auto_picks_by_shape(shape, name):
    assert pick(shape) == name


def test_a_module_is_copied():
    mine = nn.Linear(4, 6)
    copied = build(mine, (4,))
    assert copied is not mine
    assert copied.weight is not mine.weight
    assert torch.equal(copied.weight, mine.weight)


def test_a_factory_is_given_the_shape_if_it_asks():
    def with_shape(input_shape):
        return nn.Linear(input_shape[0], 3)

    assert encoder_of(with_shape, (5,))[1] == 3
    assert encoder_of(lambda: nn.Linear(5, 2), (5,))[1] == 2


def test_width_is_found_by_a_dry_pass_and_maps_are_averaged():
    encoder, width = encoder_of(nn.Conv2d(3, 11, 3), (3, 8, 8))
    assert width == 11
    x = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(encoder(x), encoder.backbone(x).mean(dim=(2, 3)))


def test_dry_pass_leaves_batchnorm_alone():
    encoder, _ = encoder_of(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), (4,))
    assert encoder.training
    assert encoder.backbone[1].num_batches_tracked == 0


@pytest.mark.parametrize(
    ("backbone", "shape", "error", "words"),
    [
        ("resnet19", (3, 32, 32), ValueError, "resnet19.*resnet18"),
        ("cnn", (12,), ValueError, "12 features.*mlp"),
        (lambda: "a network", (4,), TypeError, "str, not an nn.Module"),
        (nn.Flatten(0), (4,), ValueError, r"shape \(batch, width\)"),
    ],
)
def test_what_is_no_backbone_is_refused(backbone, shape, error, words):
    with pytest.raises(error, match=words):
        encoder_of(backbone, shape)


def test_encoder_normalises_bytes_and_floats_alike():
    mean, std = torch.tensor([0.5]).view(1, 1, 1), torch.tensor([0.25]).view(1, 1, 1)
    encoder = Encoder(nn.Flatten(), mean, std)
    pixels = torch.tensor([[[[0, 51], [204, 255]]]], dtype=torch.uint8)
    expected = torch.tensor([[-2.0, -1.2, 1.2, 2.0]])
    torch.testing.assert_close(encoder(pixels), expected)
    torch.testing.assert_close(encoder(pixels.float() / 255), expected)


def test_a_resnet_offers_the_features_of_its_last_two_layers():
    encoder, width = build_encoder("resnet18", (3, 8, 8), torch.zeros(3, 1, 1), torch.ones(3, 1, 1))
    x, maps = torch.randn(2, 3, 8, 8), {}
    encoder.eval().backbone.layer3.register_forward_hook(
        lambda _module, _input, output: maps.update(third=output)
    )
    with torch.no_grad():
        last, both = encoder(x), encoder.features(x, 2)
        assert torch.equal(encoder.features(x), last)
    assert both.shape == (2, encoder.width_before(2) + width)
    assert torch.equal(both[:, 256:], last)
    assert torch.equal(both[:, :256], maps["third"].mean(dim=(2, 3)))


class Narrowed(ResNet):
    """A ResNet with a layer of its own behind, which `last_two` does not know of."""

    def forward(self, x):
        return super().forward(x)[:, :64]


def test_last_two_layers_that_do_not_end_in_the_features_are_refused_before_training():
    with pytest.raises(ValueError, match=r"256 features .* and then its own 64, .* \(2, 768\)"):
        encoder_of(Narrowed((3, 8, 8), (1, 1, 1, 1)), (3, 8, 8))


def test_a_backbone_without_last_two_gives_one_layer_whatever_else_it_has():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(192, 5))
    backbone.width_before = 3
    encoder, width = encoder_of(backbone, (3, 8, 8))
    assert encoder.features(torch.rand(2, 3, 8, 8), 2).shape == (2, width) == (2, 5)
