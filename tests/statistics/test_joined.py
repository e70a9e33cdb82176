"""Statistics of all rotations of an image as one vector."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lmrc.nets.multihead import MultiHead
from lmrc.statistics import classifiers, covariances
from lmrc.statistics.classes import ClassStatistics, Summary, by_rotation, concatenated
from lmrc.statistics.covariances import COVARIANCES, LowRank, LowRankShared
from lmrc.statistics.drift import LinearMap
from lmrc.statistics.prediction_rules import PredictionRules

WIDTH, ROTATIONS, CLASSES = 6, 4, 3


def features(c, n=200, seed=0):
    """Classes differ by a little in the first rotation; images differ by much, in all alike."""
    generator = torch.Generator().manual_seed(10 * seed + c)
    image = 5 * torch.randn(1, n, WIDTH, generator=generator)
    x = image + 0.3 * torch.randn(ROTATIONS, n, WIDTH, generator=generator)
    x[0, :, c] += 1.5
    return x.double()


@pytest.fixture(autouse=True)
def lossless(monkeypatch):
    monkeypatch.setattr(covariances, "RANK", ROTATIONS * WIDTH)


def statistics(kind="low-rank", is_joined=True):
    shape = (1, ROTATIONS * WIDTH) if is_joined else (ROTATIONS, WIDTH)
    kept = ClassStatistics.empty(kind, *shape)
    for c in range(CLASSES):
        x = features(c)
        kept = kept.with_class(c, Summary.of(concatenated(x) if is_joined else x, x.shape[1]))
    return kept


def test_joined_rotations_come_apart_again():
    x = features(0)
    whole = concatenated(x)
    assert whole.shape == (1, 200, ROTATIONS * WIDTH)
    torch.testing.assert_close(whole[0, 3, WIDTH : 2 * WIDTH], x[1, 3])
    torch.testing.assert_close(by_rotation(whole, ROTATIONS), x)
    torch.testing.assert_close(by_rotation(x, ROTATIONS), x)


@pytest.mark.parametrize("kind", COVARIANCES)
def test_drift_moves_each_rotation(kind):
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64).T
    drift = LinearMap(weight, torch.randn(WIDTH, generator=generator, dtype=torch.float64))
    moved, expected = statistics(kind).mapped(drift), ClassStatistics.empty(kind, 1, 24)
    for c in range(CLASSES):
        x = concatenated(drift(features(c)))
        expected = expected.with_class(c, Summary.of(x, x.shape[1]))
    torch.testing.assert_close(moved.means, expected.means, atol=1e-3, rtol=1e-4)
    for row in range(CLASSES):
        found, wanted = moved.covariances.matrix(row), expected.covariances.matrix(row)
        assert (found - wanted).norm() < 1e-4 * wanted.norm()


def test_directions_of_many_features_are_found_iteratively_and_alike(monkeypatch):
    matrix = Summary.of(concatenated(features(0)), 200).covariance.numpy()
    monkeypatch.setattr(covariances, "RANK", 5)
    diagonal = 20 * matrix.diagonal() * (np.arange(len(matrix)) < 3)  # so that some are negative
    found = []
    for many in (len(matrix) + 1, 1):
        monkeypatch.setattr(covariances, "ITERATIVE", many)
        factors, rest = LowRank.empty(len(matrix))._cut(matrix, diagonal)
        found.append(factors @ factors.T + np.diag(rest))
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


def test_many_features_may_not_vary_at_all(monkeypatch):
    monkeypatch.setattr(covariances, "ITERATIVE", 1)
    monkeypatch.setattr(covariances, "RANK", 5)
    for kind in (LowRank, LowRankShared):
        kept = kind.empty(24).updated(0, torch.zeros(24, 24).double())
        assert not kept.mapped(torch.eye(WIDTH).double()).matrix(0).any()


@pytest.mark.parametrize("rule", ["lda", "linear"])
def test_prediction_knows_how_rotations_vary_together(rule, monkeypatch):
    """No rotation by itself tells the class, but the difference between two of them does."""
    monkeypatch.setattr(classifiers, "STEPS", 100)
    torch.manual_seed(0)
    head = MultiHead(WIDTH, 20)
    head.add_head()
    vectors = F.normalize(torch.randn(CLASSES, ROTATIONS, 20), dim=-1)

    def accuracy(kept):
        found = classifiers.finetune(
            head,
            vectors,
            kept,
            [CLASSES],
            scale=16.0,
            non_negative=False,
            generator=torch.Generator().manual_seed(1),
        )
        rules = PredictionRules(head, vectors, [CLASSES], found)
        right = [
            rules.scores([rule], features(c, seed=1).float())[rule].argmax(dim=1) == c
            for c in range(CLASSES)
        ]
        return torch.cat(right).float().mean()

    monkeypatch.setattr(covariances, "RANK", WIDTH)
    assert accuracy(statistics("low-rank+shared")) > 0.85
    assert accuracy(statistics(is_joined=False)) < 0.6
