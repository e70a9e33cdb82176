import pytest
import torch
from sklearn.datasets import load_sample_image
from torch import nn
from torch.nn import functional as F

from lmrc.nets.efficientnet import VARIANTS, EfficientNetLite, SameConv2d
from lmrc.nets.network import Encoder, build_encoder
from lmrc.nets.packaged import PACKAGED, weights_file
from lmrc.training.features import for_inference

# Norm and sum of the features of `pattern`, recorded when photographs were recognised right
# (see below): at 64 pixels all sides are even, at 75 some are odd and are padded otherwise.
RECORDED = {
    ("efficientnet-lite0", 64): (74.5944, 1291.9348),
    ("efficientnet-lite0", 75): (51.7416, 862.9052),
    ("efficientnet-lite1", 75): (54.3495, 889.5602),
    ("efficientnet-lite2", 75): (59.5988, 1005.9776),
}
PALACE = 698  # of ImageNet's classes


def pretrained(name, shape):
    pytest.importorskip(PACKAGED[name.partition("@")[0]].package)
    return build_encoder(name, shape)[0].eval()


def pattern(side):
    colour, row, column = torch.meshgrid(*map(torch.arange, (3, side, side)), indexing="ij")
    values = (7 + colour) * row + (3 + 2 * colour) * column + row * column // 8
    return (values % 256).to(torch.uint8)[None]


@pytest.mark.parametrize(("name", "side"), RECORDED)
def test_features_are_those_of_the_published_weights(name, side):
    with torch.inference_mode():
        features = pretrained(f"{name}@{side}", (3, side, side))(pattern(side))
    assert features.shape == (1, 1280)
    found = features.norm().item(), features.sum().item()
    assert found == pytest.approx(RECORDED[name, side], rel=1e-4)


def test_a_photograph_is_recognised():
    encoder = pretrained("efficientnet-lite0", (3, 427, 427))
    photograph = torch.from_numpy(load_sample_image("china.jpg").copy()).permute(2, 0, 1)
    classifier = torch.load(weights_file("efficientnet-lite0"), weights_only=True)
    with torch.inference_mode():
        features = encoder(photograph[None, :, :, 106:533])
        logits = F.linear(features, classifier["_fc.weight"], classifier["_fc.bias"])
    assert logits.argmax().item() == PALACE


@pytest.mark.parametrize(
    ("variant", "blocks", "parameters"),
    [
        # Published: 4.7, 5.4 and 6.1 million, 1,281,000 of them in the classifier.
        ("efficientnet-lite0", 16, 4_652_008),
        ("efficientnet-lite1", 21, 5_416_680),
        ("efficientnet-lite2", 21, 6_092_072),
    ],
)
def test_variants_have_their_published_sizes(variant, blocks, parameters):
    assert set(VARIANTS) == set(PACKAGED)
    with torch.device("meta"):
        network = EfficientNetLite(variant)
    assert len(network._blocks) == blocks
    assert sum(p.numel() for p in network.parameters()) == parameters - 1_281_000


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_convolutions_pad_as_tensorflow(side, kernel):
    # Where TensorFlow's "same" puts the first window: its padding is floor(needed / 2) at the left.
    convolution = SameConv2d(1, 1, kernel, 2)
    with torch.no_grad():
        convolution.weight.fill_(0.0)
        convolution.weight[0, 0, 0, 0] = 1.0  # what is at the window's corner
    image = torch.arange(1.0, side * side + 1).view(1, 1, side, side)
    out = convolution(image)
    n = -(-side // 2)
    left = max(0, (n - 1) * 2 + kernel - side) // 2
    wanted = F.pad(image, (left, kernel, left, kernel))[:, :, : 2 * n : 2, : 2 * n : 2]
    assert torch.equal(out, wanted)


def test_batch_norm_follows_slowly_as_where_it_was_trained():
    network = EfficientNetLite("efficientnet-lite0").train()
    network._bn0(torch.full((2, 32, 2, 2), 5.0))
    assert network._bn0.running_mean.tolist() == pytest.approx([0.05] * 32)  # TensorFlow's 0.99


def test_the_features_of_the_last_two_blocks_stand_before_the_others():
    encoder = pretrained("efficientnet-lite0", (3, 64, 64))
    blocks, maps = encoder.backbone._blocks, []
    for block in blocks[-2:]:
        block.register_forward_hook(lambda *seen: maps.append(seen[-1].mean(dim=(2, 3)) / 10))
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, last = encoder.features(x, 2), encoder(x)
    assert found.shape == (2, 192 + 320 + 1280)
    torch.testing.assert_close(found, torch.cat([*maps[:2], last], dim=1))
    assert torch.equal(encoder.features(x, 1), last)


def test_the_folded_network_computes_the_same_without_batch_norm():
    rng = torch.Generator().manual_seed(0)
    net = EfficientNetLite("efficientnet-lite0").eval()
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.running_mean.normal_(0, 0.1, generator=rng)
        norm.running_var.uniform_(0.5, 2, generator=rng)
        nn.init.uniform_(norm.weight, 0.5, 1.5, generator=rng)
    encoder = Encoder(net, torch.zeros(3, 1, 1), torch.ones(3, 1, 1))
    fast = for_inference(encoder)
    x = torch.rand(2, 3, 64, 64, generator=rng)
    with torch.no_grad():
        torch.testing.assert_close(fast.features(x, 2), encoder.features(x, 2))
    assert not [module for module in fast.modules() if isinstance(module, nn.BatchNorm2d)]
    assert [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)] == norms
