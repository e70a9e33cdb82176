import torch
from torch.nn import functional as F

from lmrc.nets.erasing import erase_class
from lmrc.nets.multihead import MultiHead


def test_an_erased_class_leaves_weights_like_those_of_other_heads():
    """Of another size, they would tell that there was a class, and drown the others' responses."""
    torch.manual_seed(0)
    heads = MultiHead(64, 20)
    for _ in range(2):
        heads.add_head()
    vectors = F.normalize(torch.randn(4, 1, 20), dim=-1)
    before = heads.weight.detach().clone()
    erase_class(heads, 0, vectors[0], vectors[1:], torch.Generator().manual_seed(0))
    assert torch.equal(heads.weight[1], before[1])
    along = (vectors[0] @ heads.weight[0]).std()  # the weights of the class's direction, new ones
    assert 0.5 < along / before[0].std() < 2
    assert 0.5 < heads.weight[0].std() / before[0].std() < 2
