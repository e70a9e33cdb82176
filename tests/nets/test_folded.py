import pytest
import torch
from torch import nn

from lmrc.nets.backbones import build
from lmrc.nets.folded import fold


@pytest.mark.parametrize("size", [32, 80])
def test_a_folded_resnet_computes_what_the_network_does_in_evaluation_mode(size):
    torch.manual_seed(0)
    network = build("resnet18", (3, size, size))
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.2, 0.2)
                module.running_var.uniform_(0.5, 2)
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.2, 0.2)
    network.eval()
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(
            fold(network, torch.float32)(x), network(x), atol=1e-3, rtol=1e-4
        )
        # Its weights are copies: what happens to the network later is nothing to it.
        folded, before = fold(network, torch.float32), network(x)
        network.conv1.weight.zero_()
        torch.testing.assert_close(folded(x), before, atol=1e-3, rtol=1e-4)


def test_a_resnet_that_several_gpus_trained_is_folded():
    network = nn.SyncBatchNorm.convert_sync_batchnorm(build("resnet18", (3, 16, 16))).eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        folded = fold(network, torch.float32)(x)
        torch.testing.assert_close(folded, network(x), atol=1e-3, rtol=1e-4)


def test_a_backbone_of_another_kind_is_not_folded():
    class Variant(type(build("resnet18", (3, 32, 32)))):
        def forward(self, x):
            return super().forward(x) + 1

    assert fold(build("cnn", (3, 32, 32)), torch.float32) is None
    assert fold(Variant((3, 32, 32), (1, 1, 1, 1)), torch.float32) is None


@pytest.mark.parametrize(
    "alter",
    [
        lambda network: setattr(network, "layer4", nn.Identity()),
        lambda network: network.layer3.append(nn.Dropout2d(0.1)),
        lambda network: setattr(network.layer2[0].conv2, "dilation", (2, 2)),
    ],
    ids=["a layer less", "another module", "dilated"],
)
def test_a_resnet_that_was_altered_is_not_folded(alter):
    network = build("resnet18", (3, 32, 32))
    alter(network)
    assert fold(network, torch.float32) is None
