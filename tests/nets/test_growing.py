import torch

from lmrc.nets.growing import GrowingLinear


def test_growing_linear_keeps_old_outputs():
    torch.manual_seed(0)
    head, x = GrowingLinear(6), torch.randn(5, 6)
    head.add_classes(2)
    before, weight, bias = head(x), head.weight, head.bias
    head.add_classes(3)
    assert head(x).shape == (5, 5)
    assert torch.equal(head.weight[:2], weight)
    assert torch.equal(head.bias[:2], bias)
    torch.testing.assert_close(head(x)[:, :2], before)  # a wider product may round differently
