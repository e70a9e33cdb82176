"""Exact statistics: those of tasks one by one are those of all samples at once."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch.nn import functional as F

from lmrc.statistics import classifiers, prediction_rules, ridge
from lmrc.statistics.ridge import (
    expand,
    normalised,
    projection,
    ridge_inputs,
    ridge_regression,
    ridge_scores,
    shrinkage,
)
from lmrc.statistics.scatter import Scatter, mirrored, products

WIDTH, PROJECTIONS, CLASSES = 12, 100, 5
INPUTS = 2 * WIDTH + PROJECTIONS
CPU = torch.device("cpu")


def samples(n_of_class, seed=0, spread=0.4):
    """Features behind a ReLU, classes around centres of their own; some are 0 for a class."""
    rng = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(1))
    noise = spread * torch.randn(sum(n_of_class), WIDTH, generator=rng)
    y = torch.repeat_interleave(torch.tensor(n_of_class))
    return (centres[y] + noise).relu(), y


def learnt(parts):
    """Statistics of (features, class) pairs in this order, and the order of the classes."""
    scatter, order = Scatter.empty(INPUTS), []
    for x, label in parts:
        order += [label] if label not in order else []
        scatter = scatter.added([(order.index(label), expand(x, PROJECTIONS))])
    return scatter, order


def all_learnt(counts, **how):
    """Return samples, their classes, and statistics of all classes in order."""
    x, y = samples(counts, **how)
    return x, y, learnt([(x[y == c], c) for c in range(CLASSES)])[0]


def scores(scatter, order, x):
    """Scores by each rule that is exact, columns by label."""
    kept, normal = classifiers.exact(scatter, WIDTH, CPU).classifiers, normalised(x)[None]
    found = {
        "lda": prediction_rules.comparable(prediction_rules.linear(kept, "lda", normal)),
        "ncm": prediction_rules.nearest_mean(scatter.of(WIDTH, 2 * WIDTH).means[None], normal),
        "ridge": ridge_scores(kept["ridge_weight"], x),
    }
    return {rule: part[:, np.argsort(order)] for rule, part in found.items()}


def same(found, wanted, atol=1e-5):
    for rule, part in wanted.items():
        torch.testing.assert_close(found[rule], part, atol=atol, rtol=0)


TEST, TEST_Y = samples([40] * CLASSES, seed=9)


@pytest.mark.parametrize("counts", [[9, 8, 10, 9, 7], [60] * 5, [40, 3, 1, 25, 2], [1] * 5])
@pytest.mark.parametrize("seed", range(4))
def test_order_and_split_of_the_tasks_do_not_matter(counts, seed):
    x, y = samples(counts)
    joint = learnt([(x[y == c], c) for c in range(CLASSES)])
    rng = np.random.default_rng(seed)
    parts = []
    for c in range(CLASSES):  # each in up to three parts, of any size
        cuts = np.sort(rng.integers(0, counts[c] + 1, 2)).tolist()
        own = x[y == c][torch.from_numpy(rng.permutation(counts[c]))]
        chunks = own.tensor_split(cuts)
        parts += [(chunk, c) for chunk in chunks if len(chunk)]
    rng.shuffle(parts)
    scatter, order = learnt(parts)
    assert scatter.is_pooled == joint[0].is_pooled == (sum(counts) > 67)
    same(scores(scatter, order, TEST), scores(*joint, TEST))


def test_a_forgotten_class_was_never_there():
    x, y, scatter = all_learnt([9, 8, 10, 9, 7])
    rest, _ = learnt([(x[y == c], c) for c in (0, 1, 3, 4)])
    for name, tensor in rest.tensors().items():
        assert torch.equal(scatter.without(2).tensors()[name], tensor), name


def test_of_many_samples_a_forgotten_class_leaves_no_mean_and_no_share_of_the_sum():
    x, y, scatter = all_learnt([60] * 5)
    rest, _ = learnt([(x[y == c], c) for c in (0, 1, 3, 4)])
    forgotten = scatter.without(2)
    assert scatter.is_pooled
    assert torch.equal(forgotten.means, rest.means)
    torch.testing.assert_close(forgotten.covariance(), scatter.covariance())


@pytest.mark.parametrize("each", [9, 60])
def test_statistics_of_some_inputs_are_a_part_of_those_of_all(each, monkeypatch):
    monkeypatch.setattr("lmrc.statistics.scatter.BLOCK", 7)  # several, and a rest
    x, y, scatter = all_learnt([each] * 5)
    samples_ = torch.cat([expand(x[y == c], PROJECTIONS) for c in range(CLASSES)]).double()
    means = torch.stack([part.mean(dim=0) for part in samples_.split(each)])
    away = samples_ - means.repeat_interleave(each, dim=0)
    for start, stop in ((0, WIDTH), (WIDTH, 2 * WIDTH), (WIDTH, None)):
        wanted = (away.T @ away / len(away))[start:stop, start:stop]
        torch.testing.assert_close(
            scatter.of(start, stop).covariance(), wanted, atol=1e-5, rtol=1e-5
        )


def test_exact_statistics_give_the_gaussians_of_each_class():
    x, y, scatter = all_learnt([9, 8, 10, 9, 7])
    found = scatter.of(0, WIDTH).class_statistics("full")
    for c in range(CLASSES):
        torch.testing.assert_close(found.means[c, 0], x[y == c].mean(dim=0))
        wanted = x[y == c].double().T.cov(correction=0)
        torch.testing.assert_close(found.covariances.matrix(c), wanted, atol=1e-5, rtol=1e-5)
    *_, whole = all_learnt([60] * 5)
    found = whole.of(0, WIDTH).class_statistics("full")
    torch.testing.assert_close(
        found.covariances.matrix(3), whole.of(0, WIDTH).covariance(), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("each", [9, 60])
def test_the_weights_are_those_of_a_ridge_regression_onto_one_hot_classes(each, monkeypatch):
    monkeypatch.setattr(ridge, "RIDGES", (0.1,))
    monkeypatch.setattr(ridge, "FIRST_TRIED", 0)
    x, y, scatter = all_learnt([each] * CLASSES)
    inputs = ridge_inputs(x, PROJECTIONS).double()
    alpha = 0.1 * inputs.square().sum() / inputs.shape[1]
    regression = Ridge(alpha=float(alpha), fit_intercept=False).fit(inputs, F.one_hot(y))
    wanted = torch.from_numpy(regression.coef_).float()
    found = ridge_regression(scatter.of(WIDTH), CPU).weight
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("each", "spread", "low", "high"), [(3, 2.0, 1, 100), (60, 0.1, 0, 0.1)])
def test_the_ridge_is_strong_where_classes_are_few_noisy_samples(
    each, spread, low, high, monkeypatch
):
    *_, scatter = all_learnt([each] * CLASSES, spread=spread)
    scatter = scatter.of(WIDTH)
    found = ridge_regression(scatter, CPU).weight
    by_ridge = {}
    for strength in ridge.RIDGES:
        with monkeypatch.context() as one:
            one.setattr(ridge, "RIDGES", (strength,))
            one.setattr(ridge, "FIRST_TRIED", 0)
            by_ridge[strength] = ridge_regression(scatter, CPU).weight
    chosen = [strength for strength, weights in by_ridge.items() if torch.equal(weights, found)]
    assert len(chosen) == 1
    assert low <= chosen[0] <= high


def test_small_classes_are_not_swallowed_by_large_ones():
    x, y, scatter = all_learnt([200, 200, 200, 200, 4], spread=1.0)
    test, test_y = samples([100] * CLASSES, seed=3, spread=1.0)
    right = {
        rule: (part.argmax(dim=1) == test_y)[test_y == 4].float().mean()
        for rule, part in scores(scatter, range(CLASSES), test).items()
    }
    inputs = ridge_inputs(x, PROJECTIONS)
    plain = Ridge(alpha=100, fit_intercept=False).fit(inputs, F.one_hot(y))
    guess = torch.from_numpy(plain.predict(ridge_inputs(test, PROJECTIONS))).argmax(dim=1)
    swallowed = (guess == 4)[test_y == 4].float().mean()
    assert swallowed < 0.2
    assert min(right.values()) > swallowed + 0.3


def test_a_trace_is_estimated_where_there_are_many_samples(monkeypatch):
    *_, scatter = all_learnt([60] * CLASSES)
    exact = scores(scatter, range(CLASSES), TEST)
    monkeypatch.setattr(ridge, "EXACT", 10)
    same(scores(scatter, range(CLASSES), TEST), exact)
    probes = ridge._probes(1000)
    assert probes.shape == (1000, ridge.PROBES)
    assert float(probes.square().sum()) == pytest.approx(1000)


def test_one_projection_for_all_models():
    assert projection(3, 8, CPU).sign().tolist() == [
        [-1, 1, -1, 1, 1, 1, 1, 1],
        [1, -1, -1, -1, -1, -1, 1, -1],
        [1, 1, -1, -1, -1, -1, 1, -1],
    ]
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    inputs = expand(x, 8)
    assert torch.equal(inputs[:, :3], x)
    torch.testing.assert_close(inputs[:, 3:6].norm(dim=1), torch.ones(500))
    torch.testing.assert_close(inputs[:, 3:6].sign(), x.sign())
    wanted = float(inputs[:, 3:6].square().mean())
    assert float(inputs[:, 6:].square().mean()) == pytest.approx(wanted, rel=0.1)


def test_a_covariance_of_few_samples_shrinks_further():
    rng = np.random.default_rng(0)
    amounts = []
    for n in (5, 50, 5000):
        x = torch.from_numpy(rng.normal(size=(n, 20)) * np.linspace(0.1, 2, 20))
        amounts.append(shrinkage(x.T @ x / n, n))
    assert 1 > amounts[0] > 0.5 > amounts[1] > 0.05 > amounts[2] > 0
    assert shrinkage(torch.zeros(3, 3), 1) == 1  # one sample of each class


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("counts", torch.ones(5)),
        ("counts", torch.zeros(5, dtype=torch.int64)),
        ("means", torch.zeros(5, 3)),
        ("ranks", torch.full((5,), -1)),
        ("ranks", torch.tensor([43, 0, 0, 0, 0])),
        ("factors", torch.zeros(2, INPUTS)),
        ("factors", torch.zeros(38, INPUTS, dtype=torch.float64)),
        ("within", torch.zeros(7)),
        ("within", torch.zeros((INPUTS) * (INPUTS + 1) // 2)),
    ],
)
def test_forged_statistics_are_refused(name, value):
    *_, scatter = all_learnt([9, 8, 10, 9, 7])
    scatter.check(CLASSES, INPUTS)
    with pytest.raises(ValueError, match="scatter's"):
        Scatter(**scatter.tensors() | {name: value}).check(CLASSES, INPUTS)


@pytest.mark.parametrize(("n", "each"), [(5, 1), (20, 3), (20, 30)])
def test_half_of_the_products_make_all_of_them(n, each, monkeypatch):
    monkeypatch.setattr("lmrc.statistics.scatter.BLOCK", 7)  # several, and a rest
    rows = torch.randn(n, each, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(mirrored(products(rows)), rows @ rows.T)
    twice = products(rows, products(rows))
    torch.testing.assert_close(mirrored(twice), 2 * rows @ rows.T)


@pytest.mark.parametrize(("each", "spread"), [(6, 0.4), (60, 0.4), (60, 2.0), (2, 2.0)])
def test_the_best_ridge_is_found_by_few_decompositions(each, spread, monkeypatch):
    """Each decomposition takes seconds where there are thousands of images."""
    *_, scatter = all_learnt([each] * CLASSES, spread=spread)
    scatter = scatter.of(WIDTH)
    means, n = scatter.means.double(), each * CLASSES
    values, vectors = torch.linalg.eigh(scatter.covariance() + means.T @ means / CLASSES)
    targets = vectors.T @ means.T / CLASSES
    ridges = torch.tensor(ridge.RIDGES, dtype=torch.float64)[:, None] * values.mean()
    fits = values / (values + ridges)
    along = targets.square().sum(dim=1) / (values + ridges)
    left = 1 - fits.sum(dim=1) / n  # generalised cross-validation
    errors = (1 - 2 * along.sum(dim=1) + (along * fits).sum(dim=1)) / left.square()
    best = int(torch.where(left > 1e-9, errors, torch.inf).argmin())
    decompositions = []

    def cholesky(matrix, real=torch.linalg.cholesky):
        decompositions.append(len(matrix))
        return real(matrix)

    monkeypatch.setattr(torch.linalg, "cholesky", cholesky)
    for first in range(len(ridge.RIDGES)):
        monkeypatch.setattr(ridge, "FIRST_TRIED", first)
        decompositions.clear()
        found = ridge_regression(scatter, CPU).ridge
        assert found == pytest.approx(float(ridges[best]), rel=1e-6)
        assert len(decompositions) <= abs(first - best) + 2
