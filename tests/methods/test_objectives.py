from dataclasses import replace

import pytest
import torch
from torch import nn

from lmrc.methods.objectives import Setting, both, cosine, softmax
from lmrc.training.batches import MiniBatch

SIZES = [2, 1, 2]  # classes of three heads; the last head is the new one
GOVERNOR = [0, 0, 1, 2, 2]
NONE, ALL = [False, False], [True, True]  # of the old heads, those with exemplars


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


def setting(vectors, exemplars, scale):
    return Setting(vectors.flatten(0, 1), SIZES, exemplars, scale)


def rows_of(batch, some):
    rotation = None if batch.rotation is None else batch.rotation[some]
    return replace(batch, x=batch.x[some], y=batch.y[some], rotation=rotation)


def split(o):
    """The responses of the two old heads, and of the new one."""
    return o[:, :2], o[:, 2:]


def by_hand(vectors, o, batch, scale):
    """Cross-entropy of each sample over the vectors of the head that governs its class."""
    losses = []
    for i, y in enumerate(batch.y.tolist()):
        k = GOVERNOR[y]
        classes = [c for c in range(5) if GOVERNOR[c] == k]
        rotation = 0 if batch.rotation is None else int(batch.rotation[i])
        right = classes.index(y) * vectors.shape[1] + rotation
        logits = scale * vectors[classes].flatten(0, 1) @ o[i, k]
        losses.append(nn.functional.cross_entropy(logits, torch.tensor(right)))
    return torch.stack(losses)


def test_softmax_is_within_the_head_that_governs_the_class(case):
    vectors, o, batch = case
    terms = softmax(*split(o), batch, setting(vectors, NONE, 7.0))
    expected, known = by_hand(vectors, o, batch, 7.0), batch.y < 3
    torch.testing.assert_close(terms["new"], expected * ~known)
    torch.testing.assert_close(terms["review"], expected * known)


def test_new_classes_alone_teach_the_new_head_alone(case):
    vectors, o, batch = case
    new = batch.y >= 3
    o.requires_grad_()
    alone = replace(rows_of(batch, new), reviews=False)
    terms = softmax(*split(o[new]), alone, setting(vectors, NONE, 16.0))
    assert terms.keys() == {"new"}
    torch.testing.assert_close(terms["new"], by_hand(vectors, o, batch, 16.0)[new])
    terms["new"].sum().backward()
    assert (o.grad[:, :2] == 0).all()
    assert (o.grad[new, 2] != 0).any(dim=1).all()


def test_known_classes_alone_have_no_new_term(case):
    vectors, o, batch = case
    again = replace(batch, n_known=5)
    now = setting(vectors, [False] * 3, 16.0)
    assert softmax(o, o[:, 3:], again, now).keys() == {"review"}
    assert cosine(o, o[:, 3:], again, now).keys() == {"review"}


def test_both_is_the_sum(case):
    vectors, o, batch = case
    for exemplars in (NONE, [True, False], ALL):
        now = setting(vectors, exemplars, 16.0)
        one, other, sums = (f(*split(o), batch, now) for f in (cosine, softmax, both))
        for name in ("new", "review"):
            torch.testing.assert_close(sums[name], one[name] + other[name])


def test_cosine_takes_the_vector_of_the_rotation(case):
    vectors, o, batch = case
    new = cosine(*split(o), batch, setting(vectors, NONE, 1.0))["new"]
    rotation = torch.zeros(10, dtype=torch.long) if batch.rotation is None else batch.rotation
    torch.testing.assert_close(new, -(o[:, 2] * vectors[batch.y, rotation]).sum(dim=1))


def test_an_old_head_learns_new_classes_only_with_exemplars_of_its_own(case):
    vectors, o, batch = case
    o.requires_grad_()
    cosine(*split(o), batch, setting(vectors, [True, False], 1.0))["review"].sum().backward()
    assert (o.grad[:, 0] != 0).any(dim=1).all()
    assert ((o.grad[:, 1] != 0).any(dim=1) == (batch.y < 3)).all()


@pytest.mark.parametrize("counts", [[2, 2, 2, 2, 2], [1, 1, 1, 9, 9]])
def test_with_exemplars_a_softmax_across_heads_weighs_all_classes_alike(case, counts):
    vectors, o, batch = case
    counts = torch.tensor(counts)
    terms = softmax(*split(o), replace(batch, counts=counts), setting(vectors, ALL, 7.0))
    logits = torch.stack(
        [7.0 * o[:, GOVERNOR[c]] @ vectors[c].T + counts[c].log() for c in range(5)], dim=1
    ).flatten(1)
    right = batch.y * vectors.shape[1] + (0 if batch.rotation is None else batch.rotation)
    expected = nn.functional.cross_entropy(logits, right, reduction="none")
    torch.testing.assert_close(terms["balanced"], expected)


def test_without_exemplars_or_known_classes_no_softmax_goes_across_heads(case):
    vectors, o, batch = case
    again = softmax(*split(o), batch, setting(vectors, NONE, 16.0))
    assert "balanced" not in again
    first = replace(batch, y=batch.y % 2 + 3, reviews=False)
    assert "balanced" not in softmax(*split(o), first, setting(vectors, ALL, 16.0))


def test_a_class_that_has_no_sample_is_not_suppressed(case):
    vectors, o, batch = case
    there = batch.y != 0
    few = replace(rows_of(batch, there), counts=torch.tensor([0, 2, 2, 2, 2]))
    vectors.requires_grad_()
    term = softmax(*split(o[there]), few, setting(vectors, ALL, 16.0))["balanced"]
    (slope,) = torch.autograd.grad(term.sum(), vectors)
    assert term.isfinite().all()
    assert (slope[0] == 0).all()
    assert (slope[1:] != 0).any(dim=-1).all()
