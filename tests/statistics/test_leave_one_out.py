"""Each image scored by statistics without it, in closed form: as if these were computed anew."""

import pytest
import torch
from torch.testing import assert_close

from lmrc.statistics import classifiers, leave_one_out, prediction_rules
from lmrc.statistics.ridge import expand
from lmrc.statistics.scatter import Scatter
from lmrc.statistics.update import add_task
from lmrc.training.memory import Memory

CPU = torch.device("cpu")
WIDTH, PROJECTIONS = 12, 30


def task(each, duplicates=False):
    """Return images of three classes, unlike in number; some the same, in one class all."""
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(3).repeat(each)[: 3 * each - 2]
    x = torch.rand(len(y), WIDTH, generator=rng) + 0.4 * torch.eye(WIDTH)[y]
    if duplicates:
        x[y == 1] = x[1].clone()
        x[3] = x[0].clone()
    return Memory(x, y)


def fitted(samples):
    scatter = add_task(Scatter.empty(2 * WIDTH + PROJECTIONS), samples, PROJECTIONS, CPU)
    left_out = leave_one_out.leave_out(scatter, samples, PROJECTIONS, CPU, torch.Generator())
    return left_out, classifiers.exact(scatter, WIDTH, CPU)


def statistics_without(left_out, i, start, stop=None):
    """Return the class means and the scatter matrix without an image, computed anew."""
    x, y = left_out.x[:, start:stop], left_out.y
    rest = torch.arange(len(y)) != i
    means = torch.stack([x[rest & (y == row)].mean(dim=0) for row in range(3)])
    away = (x - means[y])[rest]
    return x[i], means, away.T @ away


@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("each", [4, 40])  # fewer than the inputs, and more
def test_as_if_statistics_were_computed_anew(each, duplicates):
    left_out, fit = fitted(task(each, duplicates))
    n, found = len(left_out.y), leave_one_out.scores(left_out, fit, WIDTH)
    eye = torch.eye(WIDTH, dtype=torch.float64)
    size = fit.factor.square().sum() / WIDTH  # the mean variance, which shrinkage does not change
    for i in range(0, n, 3):
        x, u, scatter = statistics_without(left_out, i, WIDTH, 2 * WIDTH)
        cosines = (u @ x) / u.norm(dim=1) / x.norm()
        assert_close(found["ncm"][i], cosines, rtol=0, atol=1e-6)
        shrunk = (1 - fit.shrinkage) * scatter / n + fit.shrinkage * size * eye
        scores = u @ torch.linalg.solve(shrunk, x)
        scores -= (u * torch.linalg.solve(shrunk, u.T).T).sum(dim=1) / 2
        wanted = prediction_rules.standardised(scores[None])[0]
        assert_close(found["lda"][i], wanted, rtol=0, atol=1e-4)
        x, u, scatter = statistics_without(left_out, i, WIDTH)
        system = scatter / n + u.T @ u / 3
        system.diagonal().add_(fit.regression.ridge)
        wanted = u @ torch.linalg.solve(system, x) / 3
        # With duplicates the ridge is tiny, and weights are stored in float32.
        assert_close(found["ridge"][i], wanted, rtol=0, atol=1e-3 if duplicates else 1e-4)


def test_the_only_image_of_a_class_is_not_left_out_and_no_class_fills_the_memory(monkeypatch):
    samples = task(8)
    once = Memory(torch.cat([samples.x, samples.x[:1]]), torch.cat([samples.y, torch.tensor([3])]))
    left_out, _ = fitted(once)
    assert torch.bincount(left_out.y).tolist() == [8, 7, 7]
    scatter = left_out.scatter
    assert_close(left_out.x.float(), expand(left_out.x[:, :WIDTH].float(), PROJECTIONS))
    monkeypatch.setattr(leave_one_out, "MAX_IMAGES", 20)
    fewer = leave_one_out.leave_out(scatter, once, PROJECTIONS, CPU, torch.Generator())
    assert torch.bincount(fewer.y).tolist() == [5, 5, 5]


def test_a_class_of_black_images_can_be_scored():
    samples = task(4)
    samples.x[samples.y == 1] = 0
    left_out, fit = fitted(samples)
    assert leave_one_out.scores(left_out, fit, WIDTH)["ridge"].isfinite().all()
