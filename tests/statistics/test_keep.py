"""Features of images that a model keeps beside its statistics, where it has a pool."""

import torch
from torch import nn

from lmrc.nets.network import Trunk
from lmrc.statistics.classes import ClassStatistics
from lmrc.statistics.keep import brought_up_to_date
from lmrc.training.memory import Memory


def test_a_known_class_that_comes_again_is_tuned_on_its_pooled_samples_too():
    """A class may come again with one sample, and an odd one."""
    trunk = Trunk(nn.Identity(), torch.zeros(2), torch.ones(2)).eval()
    first = Memory(torch.rand(8, 2), torch.arange(8) % 2)
    again = Memory(torch.tensor([[9.0, 9.0]]), torch.tensor([0]))
    how = {"layers": 1, "augment": "none", "rotated": False, "generator": torch.Generator()}
    kept = ClassStatistics.empty("full", 1, 2)
    kept, *_ = brought_up_to_date(kept, None, trunk, first, Memory.empty(first.x), **how)
    real = brought_up_to_date(kept, trunk, trunk, again, first, **how).real
    assert sorted(real) == [0, 1]
    for row, own in ((0, [again.x, first.x[::2]]), (1, [first.x[1::2]])):
        torch.testing.assert_close(real[row][0].sort(dim=0)[0], torch.cat(own).sort(dim=0)[0])
