"""LwF: the distillation holds what was learnt, with one head and with several."""

import numpy as np
import pytest
import torch

from lmrc import FineTuneClassifier, LwFClassifier
from lmrc.checks import blobs
from lmrc.training.batches import MiniBatch

(X, Y), (X2, Y2), _ = blobs()


def quick(cls, **settings):
    return cls(**{"epochs": 3, "random_state": 0} | settings)


@pytest.mark.parametrize("heads", ["single", "multi"])
def test_the_distillation_has_a_gradient(heads, assert_gradient):
    assert_gradient(quick(LwFClassifier, heads=heads), "distillation")


def test_single_head_distillation_by_hand(linear):
    model = quick(LwFClassifier, distillation_weight=3.0)
    old, new = linear(torch.tensor([[1.0], [2.0]])), linear(torch.tensor([[0.5], [1.0], [4.0]]))
    x = torch.tensor([[2.0]])
    terms = model.losses(new(x), old(x), MiniBatch(x, torch.tensor([2]), torch.ones(3), 2))
    logits = torch.tensor([1.0, 2.0, 8.0])
    torch.testing.assert_close(terms["new"], -logits.log_softmax(0)[2:])
    taught = torch.tensor([2.0, 4.0]).div(2).softmax(0)
    expected = -3 * (taught * logits[:2].div(2).log_softmax(0)).sum()
    torch.testing.assert_close(terms["distillation"][0], expected)


def test_multi_head_losses_and_scores_by_hand(linear):
    model = quick(LwFClassifier, heads="multi")
    model.heads_ = [np.array([0, 1]), np.array([2]), np.array([3, 4])]
    old, new = linear(torch.tensor([[1.0], [2.0], [3.0]])), linear(torch.arange(5.0)[:, None])
    x = torch.tensor([[2.0]])
    terms = model.losses(new(x), old(x), MiniBatch(x, torch.tensor([4]), torch.ones(5), 3))
    torch.testing.assert_close(terms["new"], -torch.tensor([6.0, 8.0]).log_softmax(0)[1:])
    first = -(torch.tensor([1.0, 2.0]).softmax(0) * torch.tensor([0.0, 1.0]).log_softmax(0)).sum()
    # A head of one class has nothing to distil: its softmax is 1 whatever it says.
    torch.testing.assert_close(terms["distillation"][0], first)
    expected = [
        torch.tensor([0.0, 2.0]).softmax(0),
        torch.ones(1),
        torch.tensor([6.0, 8.0]).softmax(0),
    ]
    torch.testing.assert_close(model.scores(new, x)[0], torch.cat(expected))


def test_lwf_without_distillation_is_fine_tuning():
    models = [quick(LwFClassifier, distillation_weight=0.0), quick(FineTuneClassifier)]
    answers = [m.partial_fit(X, Y).partial_fit(X2, Y2).predict(X) for m in models]
    np.testing.assert_array_equal(*answers)
