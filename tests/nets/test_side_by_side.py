import pytest
import torch
from torch import nn

from lmrc.nets.efficientnet import EfficientNetLite
from lmrc.nets.network import Encoder
from lmrc.nets.side_by_side import SideBySide

X = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def two(small_pretrained):
    torch.manual_seed(0)
    return [EfficientNetLite("efficientnet-lite0").eval() for _ in range(2)]


@torch.no_grad()
def test_features_are_those_of_both_and_the_last_layers_come_last(two):
    net = SideBySide(*two)
    last = torch.cat([backbone(X) for backbone in two], dim=1)
    torch.testing.assert_close(net(X), last)
    before = two[0].width_before
    first = torch.cat([backbone.last_two(X)[:, :before] for backbone in two], dim=1)
    torch.testing.assert_close(net.last_two(X), torch.cat([first, last], dim=1))
    assert net.width_before == first.shape[1]
    folded = net.folded()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    torch.testing.assert_close(folded.last_two(X), net.last_two(X), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_backbones_with_one_layer_of_features_and_no_folded_form():
    two = [nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5)) for _ in range(2)]
    net = SideBySide(*two)
    encoder = Encoder(net, torch.zeros(3, 1, 1), torch.ones(3, 1, 1))
    assert encoder.features(X, 2).shape == (2, 10)
    torch.testing.assert_close(net.folded()(X), torch.cat([b(X) for b in two], dim=1))
