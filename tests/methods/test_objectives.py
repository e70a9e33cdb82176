from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from lmrc import LMRCClassifier, LMRCPlusClassifier
from lmrc.training.batches import MiniBatch
from lmrc.training.memory import Memory

HEAD_OF = [0, 0, 1, 2, 2]  # of five classes; the last head is the new one
NONE, FIRST, ALL = [], [0, 1], [0, 1, 2]  # classes of the old heads with exemplars


@pytest.fixture(params=[None, 4])
def case(request):
    """Label vectors, responses, and a mini-batch with all classes in it."""
    torch.manual_seed(0)
    rotations = request.param
    vectors = nn.functional.normalize(torch.randn(5, rotations or 1, 6), dim=-1)
    o = nn.functional.normalize(torch.randn(10, 3, 6), dim=-1)
    y = torch.arange(10) % 5
    rotation = None if rotations is None else torch.arange(10) % 4
    return vectors, o, MiniBatch(torch.zeros(10, 1), y, torch.bincount(y), 3, True, rotation)


def losses(objective, o, batch, vectors, exemplars, scale=16.0):
    model = LMRCPlusClassifier(objective=objective, scale=scale, response_weight=0)
    model.heads_ = np.split(np.arange(5), [2, 3])
    model.labels_ = {"vectors": vectors}
    y = torch.tensor(exemplars, dtype=torch.long)
    model.memory_ = Memory(torch.zeros(len(y), 1), y) if exemplars else None
    return model.losses(o, None, batch)


def rows_of(batch, some):
    rotation = None if batch.rotation is None else batch.rotation[some]
    return replace(batch, x=batch.x[some], y=batch.y[some], rotation=rotation)


def by_hand(vectors, o, batch, scale):
    """Cross-entropy of each sample over the vectors of the head that its class belongs to."""
    losses = []
    for i, y in enumerate(batch.y.tolist()):
        k = HEAD_OF[y]
        classes = [c for c in range(5) if HEAD_OF[c] == k]
        rotation = 0 if batch.rotation is None else int(batch.rotation[i])
        right = classes.index(y) * vectors.shape[1] + rotation
        logits = scale * vectors[classes].flatten(0, 1) @ o[i, k]
        losses.append(nn.functional.cross_entropy(logits, torch.tensor(right)))
    return torch.stack(losses)


def test_softmax_is_within_the_head_that_the_class_belongs_to(case):
    vectors, o, batch = case
    terms = losses("softmax", o, batch, vectors, NONE, 7.0)
    expected, known = by_hand(vectors, o, batch, 7.0), batch.y < 3
    torch.testing.assert_close(terms["new"], expected * ~known)
    torch.testing.assert_close(terms["review"], expected * known)


def test_new_classes_alone_teach_the_new_head_alone(case):
    vectors, o, batch = case
    new = batch.y >= 3
    o.requires_grad_()
    alone = replace(rows_of(batch, new), reviews=False)
    terms = losses("softmax", o[new], alone, vectors, NONE)
    assert terms.keys() == {"new"}
    torch.testing.assert_close(terms["new"], by_hand(vectors, o, batch, 16.0)[new])
    terms["new"].sum().backward()
    assert (o.grad[:, :2] == 0).all()
    assert (o.grad[new, 2] != 0).any(dim=1).all()


def test_known_classes_alone_have_no_new_term(case):
    vectors, o, batch = case
    again = replace(batch, n_known=5)
    for objective in ("softmax", "cosine", "both"):
        assert losses(objective, o, again, vectors, NONE).keys() == {"review"}


def test_both_is_the_sum(case):
    vectors, o, batch = case
    for exemplars in (NONE, FIRST, ALL):
        one, other, sums = (
            losses(objective, o, batch, vectors, exemplars)
            for objective in ("cosine", "softmax", "both")
        )
        for name in ("new", "review"):
            torch.testing.assert_close(sums[name], one[name] + other[name])


def test_softmax_alone_computes_no_cosine_terms(case, monkeypatch):
    def refuse(*_):
        raise AssertionError("it is dropped")

    vectors, o, batch = case
    monkeypatch.setattr(LMRCClassifier, "_class_losses", refuse)
    assert losses("softmax", o, batch, vectors, NONE).keys() == {"new", "review"}


def test_cosine_takes_the_vector_of_the_rotation(case):
    vectors, o, batch = case
    new = losses("cosine", o, batch, vectors, NONE)["new"]
    rotation = torch.zeros(10, dtype=torch.long) if batch.rotation is None else batch.rotation
    torch.testing.assert_close(new, -(o[:, 2] * vectors[batch.y, rotation]).sum(dim=1))


def test_an_old_head_learns_new_classes_only_with_exemplars_of_its_own(case):
    vectors, o, batch = case
    o.requires_grad_()
    losses("cosine", o, batch, vectors, FIRST)["review"].sum().backward()
    assert (o.grad[:, 0] != 0).any(dim=1).all()
    assert ((o.grad[:, 1] != 0).any(dim=1) == (batch.y < 3)).all()


@pytest.mark.parametrize("counts", [[2, 2, 2, 2, 2], [1, 1, 1, 9, 9]])
def test_with_exemplars_a_softmax_across_heads_weighs_all_classes_alike(case, counts):
    vectors, o, batch = case
    counts = torch.tensor(counts)
    terms = losses("softmax", o, replace(batch, counts=counts), vectors, ALL, 7.0)
    logits = torch.stack(
        [7.0 * o[:, HEAD_OF[c]] @ vectors[c].T + counts[c].log() for c in range(5)], dim=1
    ).flatten(1)
    right = batch.y * vectors.shape[1] + (0 if batch.rotation is None else batch.rotation)
    expected = nn.functional.cross_entropy(logits, right, reduction="none")
    torch.testing.assert_close(terms["balanced"], expected)


def test_without_exemplars_or_known_classes_no_softmax_goes_across_heads(case):
    vectors, o, batch = case
    again = losses("softmax", o, batch, vectors, NONE)
    assert "balanced" not in again
    first = replace(batch, y=batch.y % 2 + 3, reviews=False)
    assert "balanced" not in losses("softmax", o, first, vectors, ALL)


def test_a_class_that_has_no_sample_is_not_suppressed(case):
    vectors, o, batch = case
    there = batch.y != 0
    few = replace(rows_of(batch, there), counts=torch.tensor([0, 2, 2, 2, 2]))
    vectors.requires_grad_()
    term = losses("softmax", o[there], few, vectors, ALL)["balanced"]
    (slope,) = torch.autograd.grad(term.sum(), vectors)
    assert term.isfinite().all()
    assert (slope[0] == 0).all()
    assert (slope[1:] != 0).any(dim=-1).all()
