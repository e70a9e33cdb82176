from dataclasses import replace

import pytest
import torch
from torch import nn

from lmrc.methods.objectives import Setting, both, cosine, softmax
from lmrc.nets.multihead import MultiHead
from lmrc.training.batches import MiniBatch

SIZES = [2, 1, 2]  # classes of three heads; the last head is the new one
GOVERNOR = [0, 0, 1, 2, 2]
NONE, ALL = [False, False], [True, True]  # of the old heads, those that the pool has samples of


@pytest.fixture(params=[None, 4])
def case(request):
    """Heads, responses, and a mini-batch with all classes in it."""
    torch.manual_seed(0)
    turns = request.param
    head = MultiHead(3, 6, n_heads=3, turns=turns)
    shape = (5, 6) if turns is None else (5, turns, 6)
    head.add_label_vectors(nn.functional.normalize(torch.randn(shape), dim=-1))
    o = nn.functional.normalize(torch.randn(10, 3, 6), dim=-1)
    y = torch.arange(10) % 5
    turn = None if turns is None else torch.arange(10) % 4
    return head, o, MiniBatch(torch.zeros(10, 1), y, y < 3, turn, torch.bincount(y))


def split(o):
    """The responses of the two old heads, and of the new one."""
    return o[:, :2], o[:, 2:]


def by_hand(head, o, batch, scale):
    """Cross-entropy of each sample over the vectors of the head that governs its class."""
    losses = []
    for i, y in enumerate(batch.y.tolist()):
        k = GOVERNOR[y]
        classes = [c for c in range(5) if GOVERNOR[c] == k]
        vectors = head.by_turn[classes].flatten(0, 1)
        turns = head.by_turn.shape[1]
        right = classes.index(y) * turns + (0 if batch.turn is None else int(batch.turn[i]))
        logits = scale * vectors @ o[i, k]
        losses.append(nn.functional.cross_entropy(logits, torch.tensor(right)))
    return torch.stack(losses)


def test_softmax_is_within_the_head_that_governs_the_class(case):
    head, o, batch = case
    setting = Setting(SIZES, pooled=NONE, scale=7.0)
    terms, expected = softmax(*split(o), head, batch, setting), by_hand(head, o, batch, 7.0)
    torch.testing.assert_close(terms["new"], expected * ~batch.known)
    torch.testing.assert_close(terms["review"], expected * batch.known)


def test_new_classes_alone_teach_the_new_head_alone(case):
    head, o, batch = case
    new = batch.y >= 3
    turn = None if batch.turn is None else batch.turn[new]
    o.requires_grad_()
    alone = MiniBatch(batch.x[new], batch.y[new], None, turn)
    terms = softmax(*split(o[new]), head, alone, Setting(SIZES, pooled=NONE, scale=16.0))
    assert terms.keys() == {"new"}
    torch.testing.assert_close(terms["new"], by_hand(head, o, batch, 16.0)[new])
    terms["new"].sum().backward()
    assert (o.grad[:, :2] == 0).all()
    assert (o.grad[new, 2] != 0).any(dim=1).all()


def test_known_classes_alone_have_no_new_term(case):
    head, o, batch = case
    setting = Setting(SIZES, pooled=[False] * 3, scale=16.0)
    assert softmax(o, o[:, 3:], head, batch, setting).keys() == {"review"}
    assert cosine(o, o[:, 3:], head, batch, setting).keys() == {"review"}


def test_both_is_the_sum(case):
    head, o, batch = case
    for pooled in (NONE, [True, False], ALL):
        setting = Setting(SIZES, pooled=pooled, scale=16.0)
        one, other, sums = (f(*split(o), head, batch, setting) for f in (cosine, softmax, both))
        for name in ("new", "review"):
            torch.testing.assert_close(sums[name], one[name] + other[name])


def test_cosine_takes_the_vector_of_the_turn(case):
    head, o, batch = case
    new = cosine(*split(o), head, batch, Setting(SIZES, pooled=NONE, scale=1.0))["new"]
    turn = torch.zeros(10, dtype=torch.long) if batch.turn is None else batch.turn
    torch.testing.assert_close(new, -(o[:, 2] * head.by_turn[batch.y, turn]).sum(dim=1))


def test_an_old_head_learns_new_classes_only_where_the_pool_has_its_own(case):
    head, o, batch = case
    o.requires_grad_()
    cosine(*split(o), head, batch, Setting(SIZES, [True, False], 1.0))["review"].sum().backward()
    assert (o.grad[:, 0] != 0).any(dim=1).all()
    assert ((o.grad[:, 1] != 0).any(dim=1) == batch.known).all()


@pytest.mark.parametrize("counts", [[2, 2, 2, 2, 2], [1, 1, 1, 9, 9]])
def test_with_a_pool_a_softmax_across_heads_weighs_all_classes_alike(case, counts):
    head, o, batch = case
    turns = head.by_turn.shape[1]
    counts = torch.tensor(counts)
    terms = softmax(
        *split(o), head, replace(batch, counts=counts), Setting(SIZES, pooled=ALL, scale=7.0)
    )
    logits = torch.stack(
        [7.0 * o[:, GOVERNOR[c]] @ head.by_turn[c].T + counts[c].log() for c in range(5)], dim=1
    ).flatten(1)
    right = batch.y * turns + (0 if batch.turn is None else batch.turn)
    expected = nn.functional.cross_entropy(logits, right, reduction="none")
    torch.testing.assert_close(terms["across"], expected)


def test_without_a_pool_or_known_classes_no_softmax_goes_across_heads(case):
    head, o, batch = case
    again = softmax(*split(o), head, batch, Setting(SIZES, pooled=NONE, scale=16.0))
    assert "across" not in again
    first = MiniBatch(batch.x, batch.y % 2 + 3, None, batch.turn)
    assert "across" not in softmax(*split(o), head, first, Setting(SIZES, pooled=ALL, scale=16.0))


def test_a_class_that_has_no_sample_is_not_suppressed(case):
    head, o, batch = case
    there = batch.y != 0
    turn = None if batch.turn is None else batch.turn[there]
    few = MiniBatch(batch.x[there], batch.y[there], batch.known[there], turn)
    few = replace(few, counts=torch.tensor([0, 2, 2, 2, 2]))
    setting = Setting(SIZES, pooled=ALL, scale=16.0)
    head.label_vectors.requires_grad_()
    term = softmax(*split(o[there]), head, few, setting)["across"]
    (slope,) = torch.autograd.grad(term.sum(), head.label_vectors)
    assert term.isfinite().all()
    assert (slope[0] == 0).all()
    assert (slope[1:] != 0).any(dim=-1).all()
