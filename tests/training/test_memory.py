import torch

from lmrc.training.memory import Memory

BOTH = torch.arange(2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def updated(n_per_class, classes, per_class, memory=None, seed=0):
    y = torch.tensor(classes).repeat_interleave(n_per_class)
    x = torch.arange(float(len(y)))[:, None] + 1000 * y[:, None]
    start = Memory.empty(x) if memory is None else memory
    return start.updated(x, y, per_class, torch.randperm(len(y), generator=generator(seed)))


def test_holds_so_many_of_each_class_with_their_labels():
    memory = updated(30, [0, 1, 2], 5)
    assert torch.bincount(memory.y).tolist() == [5, 5, 5]
    assert torch.equal((memory.x[:, 0] // 1000).long(), memory.y)
    assert len(memory.x.unique()) == 15


def test_a_small_class_is_kept_whole():
    assert torch.bincount(updated(3, [0, 1], 5).y).tolist() == [3, 3]


def test_what_is_kept_stays():
    first = updated(30, [0, 1], 5)
    second = updated(30, [2, 3], 5, first, seed=1)
    assert torch.bincount(second.y).tolist() == [5, 5, 5, 5]
    assert torch.equal(second.x[:10], first.x)
    assert len(first) == 10, "the earlier buffer is not changed in place"


def test_a_class_that_recurs_is_filled_up_not_sampled_again():
    first = updated(3, [0], 5)
    second = updated(30, [0, 1], 5, first, seed=1)
    assert torch.bincount(second.y).tolist() == [5, 5]
    assert set(first.x[:, 0].tolist()) <= set(second.x[:, 0].tolist())


def test_a_smaller_buffer_drops_exemplars():
    memory = updated(30, [2], 2, updated(30, [0, 1], 5))
    assert torch.bincount(memory.y).tolist() == [2, 2, 2]


def test_exemplars_depend_on_the_seed():
    samples = [set(updated(30, [0], 5, seed=seed).x[:, 0].tolist()) for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]


def test_bytes_beside_floats_are_scaled():
    images = torch.full((2, 1, 2, 2), 255, dtype=torch.uint8)
    memory = Memory.empty(images).updated(images, torch.zeros(2, dtype=torch.long), 2, BOTH)
    floats = torch.full((2, 1, 2, 2), 0.5)
    mixed = memory.updated(floats, torch.ones(2, dtype=torch.long), 2, BOTH)
    assert mixed.x[:, 0, 0, 0].tolist() == [1.0, 1.0, 0.5, 0.5]
