"""Features of images that a model keeps beside its statistics, where it has a pool."""

import torch
from torch import nn

from lmrc.nets.network import Trunk
from lmrc.statistics import keep
from lmrc.statistics.classes import ClassStatistics
from lmrc.statistics.keep import brought_up_to_date
from lmrc.training.memory import Memory


def kept_again(tuned=True, new=None):
    """Two classes of four samples in the pool, of which one comes again with an odd sample."""
    trunk = Trunk(nn.Identity(), torch.zeros(2), torch.ones(2)).eval()
    first = Memory(torch.rand(8, 2), torch.arange(8) % 2)
    batch = new or Memory(torch.tensor([[9.0, 9.0]]), torch.tensor([0]))
    how = {"layers": 1, "augment": "none", "rotated": False, "generator": torch.Generator()}
    kept = ClassStatistics.empty("full", 1, 2)
    kept = brought_up_to_date(
        kept, None, trunk, first, Memory.empty(first.x), tuned=tuned, **how
    ).statistics
    return first, brought_up_to_date(kept, trunk, trunk, batch, first, tuned=tuned, **how).real


def rows(features):
    return {tuple(row) for row in features.tolist()}


def test_a_known_class_that_comes_again_is_tuned_on_its_pooled_samples_too():
    pool, real = kept_again()
    assert sorted(real) == [0, 1]
    assert rows(real[1][0]) == rows(pool.x[1::2])
    assert real[0].shape == (1, 4, 2)
    assert (9.0, 9.0) in rows(real[0][0])
    assert len(rows(real[0][0]) & rows(pool.x[::2])) == 3


def test_a_new_class_is_tuned_on_as_many_samples_as_the_pool_has_of_a_class():
    new = Memory(torch.rand(50, 2), torch.full((50,), 2))
    _, real = kept_again(new=new)
    assert {row: len(part[0]) for row, part in real.items()} == {0: 4, 1: 4, 2: 4}
    assert rows(real[2][0]) < rows(new.x)


def test_nothing_is_handed_on_where_nothing_is_tuned():
    assert kept_again(tuned=False)[1] == {}


def test_a_large_pool_is_not_handed_on_whole(monkeypatch):
    monkeypatch.setattr(keep, "MOST_REAL", 3)
    _, real = kept_again()
    assert {row: len(part[0]) for row, part in real.items()} == {0: 3, 1: 3}
