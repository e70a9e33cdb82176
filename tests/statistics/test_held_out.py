"""What held-out images tell: logit scale, offsets and thresholds, from sums by class."""

import pytest
import torch
from torch.testing import assert_close

from lmrc.statistics.held_out import SCALES, HeldOut


def images(n, true_scale, seed=0):
    """Return scores of which a softmax at a scale is right, unknown scores, and classes."""
    rng = torch.Generator().manual_seed(seed)
    scores = torch.rand(n, 4, generator=rng)
    y = torch.multinomial((true_scale * scores).softmax(dim=1), 1, generator=rng).flatten()
    return scores, torch.randn(n, generator=rng) + y, y


@pytest.mark.parametrize("true_scale", [3.0, 30.0])
def test_the_scale_is_that_by_which_classes_came(true_scale):
    found = HeldOut.of(*images(5000, true_scale)).logit_scale()
    assert found == pytest.approx(true_scale, rel=0.15)


def test_few_correct_images_do_not_make_the_model_certain():
    scores = torch.eye(3)
    few = HeldOut.of(scores, torch.zeros(3), torch.arange(3)).logit_scale()
    assert few < 20 < SCALES[-1]
    assert HeldOut.empty(3).logit_scale(50.0) == pytest.approx(50.0, rel=0.1)


def test_tasks_one_by_one_tell_what_all_images_do():
    scores, unknown, y = images(3000, 10.0)
    whole = HeldOut.of(scores, unknown, y)
    parts = [HeldOut.of(scores[r], unknown[r], y[r]) for r in torch.arange(3000).split(1000)]
    joined = HeldOut.empty(2).joined(parts[0]).joined(parts[1]).joined(parts[2])
    assert_close(joined.counts, whole.counts)
    assert_close(joined.losses, whole.losses, rtol=1e-4, atol=1e-2)
    assert_close(joined.unknown[:, 3:-3], whole.unknown[:, 3:-3], rtol=0, atol=0.25)
    assert_close(joined.without(1).losses, joined.losses[[0, 2, 3]])


def test_a_threshold_loses_the_share_of_known_images():
    scores, unknown, y = images(4000, 10.0)
    told = HeldOut.of(scores, unknown, y)
    offsets = told.offsets()
    assert_close(offsets, torch.arange(4.0) - 1.5, rtol=0, atol=0.15)
    for share in (0.05, 0.2):
        lost = (unknown - offsets[y] > told.threshold(share, offsets)).float().mean()
        assert float(lost) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("each", [3, 5, 20])
def test_a_threshold_of_few_images_loses_no_more(each):
    y = torch.arange(400).repeat_interleave(each)
    unknown = torch.randn(len(y), generator=torch.Generator().manual_seed(0))
    few = HeldOut.of(torch.zeros(len(y), 400), unknown, y)
    new = torch.randn(10_000, generator=torch.Generator().manual_seed(1))
    lost = (new > few.threshold(0.05, torch.zeros(400))).float().mean()
    assert 0.01 < float(lost) < 0.06


def test_others_are_refused():
    HeldOut.empty(3).check(3)
    with pytest.raises(ValueError, match="counts is not of shape"):
        HeldOut.empty(3).check(2)
