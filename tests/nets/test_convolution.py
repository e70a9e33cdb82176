import pytest
import torch
from torch.nn import functional as F

from lmrc.nets.convolution import Conv2d, DetachedWeight, weight_gradient


@pytest.mark.parametrize(
    ("stride", "padding", "kernel"), [(1, 1, 3), (2, 0, 1), ((2, 1), (0, 2), (3, 5))]
)
def test_gradients_are_those_of_torchs_own_convolution(stride, padding, kernel):
    layer = Conv2d(3, 4, kernel, stride, padding, bias=False)
    x = torch.rand(2, 3, 7, 9, requires_grad=True)
    own = torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])
    computed = []
    weight = DetachedWeight(layer.weight.detach(), lambda *how: computed.append(how))
    layer.detach_weight(weight)
    out = layer(x)
    torch.testing.assert_close(out, F.conv2d(x, layer.weight, None, stride, padding))
    (of_x,) = torch.autograd.grad(out.square().sum(), [x])
    torch.testing.assert_close(of_x, own[0])
    (how,) = computed
    torch.testing.assert_close(weight_gradient(*how), own[1])
    layer.attach_weight()
    (of_weight,) = torch.autograd.grad(layer(x).square().sum(), [layer.weight])
    assert torch.equal(of_weight, own[1])
