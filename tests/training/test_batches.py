import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmrc.training.batches import split_sizes


@given(n=st.integers(1, 500), size=st.integers(2, 64))
def test_no_sample_is_dropped_and_none_stands_alone(n, size):
    sizes = split_sizes(n, size)
    assert sum(sizes) == n
    assert max(sizes) <= size + 1
    assert n == 1 or min(sizes) > 1
    assert all(s == size for s in sizes[:-1])


def test_every_sample_comes_once_with_its_label(epoch):
    x = torch.arange(23.0)[:, None]
    batches = epoch(x, torch.arange(23) % 7)
    seen = torch.cat([batch.x for batch in batches])[:, 0]
    assert seen.sort().values.tolist() == list(range(23))
    assert torch.equal(torch.cat([batch.y for batch in batches]), seen.long() % 7)


def test_order_is_by_seed_alone(epoch):
    x, y = torch.arange(50.0)[:, None], torch.zeros(50, dtype=torch.long)
    first, again, other = (
        torch.cat([batch.x for batch in epoch(x, y, seed=seed)]) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_known_marks_classes_that_were_there_before(epoch):
    y = torch.tensor([0, 1, 2, 3] * 3)
    for batch in epoch(torch.zeros(12, 1), y, n_known=2):
        assert (batch.n_known, batch.reviews) == (2, True)
    assert not any(batch.reviews for batch in epoch(torch.zeros(12, 1), y + 2, n_known=2))


@pytest.mark.parametrize("augment", ["none", "crop+flip", "resized-crop+flip"])
def test_inputs_in_host_memory_make_the_same_mini_batches(augment, epoch):
    x = torch.randint(0, 255, (23, 3, 9, 8), dtype=torch.uint8)
    y = torch.arange(23) % 5
    resident = epoch(x, y, augment=augment)
    pinned = epoch(x, y, augment=augment, resident=False)
    for one, other in zip(resident, pinned, strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
