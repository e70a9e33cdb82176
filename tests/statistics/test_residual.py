"""The residual: how far features are from where those of a class vary."""

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from lmrc.statistics.covariances import RANK
from lmrc.statistics.residual import (
    add_factors,
    factors_of,
    left_out_residuals,
    of_statistics,
    residuals,
)
from lmrc.statistics.ridge import expand, normalised
from lmrc.statistics.scatter import Scatter
from lmrc.statistics.update import add_task
from lmrc.training.memory import Memory

CPU, WIDTH, PROJECTIONS = torch.device("cpu"), 30, 8
NONE = Scatter.empty(2 * WIDTH + PROJECTIONS)
NO_FACTORS = torch.zeros(0, RANK, WIDTH)


def images(n, row, seed):
    """Return features of a class, which vary in four directions of its own."""
    own = torch.Generator().manual_seed(row)
    mean, mix = torch.randn(WIDTH, generator=own), torch.randn(4, WIDTH, generator=own)
    rng = torch.Generator().manual_seed(100 + seed)
    noise = 0.05 * torch.randn(n, WIDTH, generator=rng)
    return 2 * mean + torch.randn(n, 4, generator=rng) @ mix + noise


def task(*sizes, first=0):
    x = [images(n, first + row, row) for row, n in enumerate(sizes)]
    y = torch.arange(first, first + len(sizes)).repeat_interleave(torch.tensor(sizes))
    return Memory(torch.cat(x), y)


def learnt(samples, scatter=NONE):
    return add_task(scatter, samples, PROJECTIONS, CPU)


def centres(scatter):
    return scatter.means[None, :, WIDTH : 2 * WIDTH]


def test_images_off_the_directions_of_a_class_have_a_large_residual():
    samples = task(100, 100)
    scatter, factors = learnt(samples), add_factors(NO_FACTORS, NONE, samples)
    held = normalised(torch.cat([images(50, 0, 7), images(50, 1, 8)]))
    found = residuals(centres(scatter), factors, held[None])[0]
    assert found.shape == (100, 2)
    assert float(found[:50, 0].max()) < float(found[50:, 0].min())
    assert float(found[50:, 1].max()) < float(found[:50, 1].min())
    # Farther along a direction is not farther from the class; off them it is.
    along = F.normalize(factors[0, -1], dim=0)
    off = torch.linalg.svd(factors[0])[2][-1]
    moved = torch.stack([centres(scatter)[0, 0] + 0.3 * way for way in (0 * off, along, off)])
    moved = moved / centres(scatter)[0, 0].norm()
    still, near, far = residuals(centres(scatter), factors, moved[None])[0, :, 0].tolist()
    assert near < far
    assert far - still > 3 * (near - still)


def test_left_out_as_if_the_others_alone_had_been_learnt():
    samples = task(5, 3)
    found = left_out_residuals(NO_FACTORS, NONE, samples, torch.tensor([7, 1, 4]))
    for i, own in ((7, 1), (1, 0), (4, 0)):
        rest = samples.at(torch.nonzero(torch.arange(8) != i).flatten())
        x = normalised(samples.x[i : i + 1])[None]
        wanted = residuals(centres(learnt(rest)), add_factors(NO_FACTORS, NONE, rest), x)
        assert float(found[[7, 1, 4].index(i)]) == pytest.approx(float(wanted[0, 0, own]), abs=1e-4)
    factors = add_factors(NO_FACTORS, NONE, samples)
    inside = residuals(centres(learnt(samples)), factors, normalised(samples.x)[None])
    assert float(found[1]) > float(inside[0, 1, 0])


def test_a_class_that_comes_again_is_as_if_learnt_at_once():
    both = task(10, 9)
    again = both.at(torch.arange(4, 10))
    first = both.at(torch.tensor([0, 1, 2, 3, *range(10, 19)]))
    before = add_factors(NO_FACTORS, NONE, first)
    scatter = learnt(first)
    found, wanted = add_factors(before, scatter, again), add_factors(NO_FACTORS, NONE, both)
    assert_close(found.mT @ found, wanted.mT @ wanted, rtol=0, atol=1e-5)
    # A single new image of a known class is left out: the class as it was is what is left.
    one = again.at(torch.tensor([0]))
    off = left_out_residuals(before, scatter, one, torch.tensor([0]))
    wanted = residuals(centres(scatter), before, normalised(one.x)[None])[0, :, 0]
    assert_close(off, wanted, rtol=0, atol=1e-4)


def test_factors_follow_from_exact_statistics_of_an_earlier_model():
    samples = task(10, 7, 1)
    scatter, wanted = learnt(samples), add_factors(NO_FACTORS, NONE, samples)
    found = factors_of(scatter, WIDTH)
    assert_close(found.mT @ found, wanted.mT @ wanted, rtol=0, atol=1e-5)
    assert not bool(found[2].any())
    pooled = learnt(task(60, 60))
    assert pooled.is_pooled
    one, other = factors_of(pooled, WIDTH)
    assert torch.equal(one, other)
    assert 0.8 < float(one.square().sum() / pooled.of(WIDTH, 2 * WIDTH).covariance().trace()) <= 1


@pytest.mark.parametrize("kind", ["low-rank", "full", "shared"])
def test_class_statistics_of_features_of_any_length(kind):
    x = images(200, 0, 1) / 3
    scatter = Scatter.empty(WIDTH).added([(0, x), (1, images(200, 0, 2) / 3)])
    statistics = scatter.class_statistics(kind)
    factors, sizes = of_statistics(statistics)
    assert factors.shape == (2, RANK, WIDTH)
    assert_close(sizes[0], x.norm(dim=1).square().mean().sqrt(), rtol=0.05, atol=0)
    means = statistics.means.transpose(0, 1) / sizes[:, None]
    own, other = (
        residuals(means, factors, (scale * f)[None])[0, :, 0]
        for scale, f in ((7, images(50, 0, 3)), (1, images(50, 1, 3)))
    )
    assert float(own.max()) < float(other.min())


def test_one_image_and_features_that_are_all_zero_are_no_error():
    once = Memory(torch.zeros(1, WIDTH), torch.tensor([0]))
    factors = add_factors(NO_FACTORS, NONE, once)
    found = residuals(centres(learnt(once)), factors, torch.zeros(1, 2, WIDTH))
    assert bool(found.isfinite().all())
    assert expand(once.x, PROJECTIONS).isfinite().all()
