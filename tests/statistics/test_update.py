"""Statistics from one task to the next, and the features that are handed on for tuning."""

import pytest
import torch
from torch import nn

from lmrc import LMRCPlusClassifier
from lmrc.nets.network import Encoder
from lmrc.statistics import update
from lmrc.statistics.classes import ClassStatistics, Summary
from lmrc.statistics.gather import gather
from lmrc.statistics.update import update_statistics
from lmrc.training.memory import Memory

HOW = {"layers": 1, "augment": "none", "rotated": False}


def encoder_of(backbone):
    return Encoder(backbone, torch.zeros(2), torch.ones(2)).eval()


def kept_again(finetune=True, new=None):
    """Two classes of four exemplars each, of which one comes again with an odd sample."""
    encoder = encoder_of(nn.Identity())
    first = Memory(torch.rand(8, 2), torch.arange(8) % 2)
    batch = new or Memory(torch.tensor([[9.0, 9.0]]), torch.tensor([0]))
    how = HOW | {"generator": torch.Generator()}
    kept = ClassStatistics.empty("full", 1, 2)
    kept = update_statistics(
        kept, None, encoder, first, Memory.empty(first.x), finetune=finetune, **how
    ).statistics
    return first, update_statistics(
        kept, encoder, encoder, batch, first, finetune=finetune, **how
    ).real


def rows(features):
    return {tuple(row) for row in features.tolist()}


def test_a_known_class_that_comes_again_is_tuned_on_its_exemplars_too():
    buffer, real = kept_again()
    assert sorted(real) == [0, 1]
    assert rows(real[1][0]) == rows(buffer.x[1::2])
    assert real[0].shape == (1, 4, 2)
    assert (9.0, 9.0) in rows(real[0][0])
    assert len(rows(real[0][0]) & rows(buffer.x[::2])) == 3


def test_a_new_class_is_tuned_on_as_many_samples_as_there_are_exemplars_of_a_class():
    new = Memory(torch.rand(50, 2), torch.full((50,), 2))
    _, real = kept_again(new=new)
    assert {row: len(part[0]) for row, part in real.items()} == {0: 4, 1: 4, 2: 4}
    assert rows(real[2][0]) < rows(new.x)


def test_nothing_is_handed_on_where_nothing_is_tuned():
    assert kept_again(finetune=False)[1] == {}


def test_a_large_exemplar_buffer_is_not_passed_on_whole(monkeypatch):
    monkeypatch.setattr(update, "MAX_REAL", 3)
    _, real = kept_again()
    assert {row: len(part[0]) for row, part in real.items()} == {0: 3, 1: 3}


# --- Drift: the new network's features are a linear map of the old one's --------------------------


def drifted(batch, buffer=None, weight=((2.0, 1.0), (0.0, 1.0)), bias=(0.0, 3.0)):
    """A class at (1, 5) before, and the samples of a task that follows; old features are inputs."""
    old, layer = encoder_of(nn.Identity()), nn.Linear(2, 2)
    layer.weight.data, layer.bias.data = torch.tensor(weight).T, torch.tensor(bias)
    covariance = torch.tensor([[1.0, 0.5], [0.5, 2.0]]).double()
    before = ClassStatistics.empty("full", 1, 2)
    before = before.with_class(0, Summary(torch.tensor([[1.0, 5.0]]).double(), covariance, 10.0))
    batch = Memory(batch, torch.ones(len(batch), dtype=torch.long))
    buffer = (
        Memory.empty(batch.x) if buffer is None else Memory(buffer, torch.zeros(len(buffer)).long())
    )
    how = HOW | {"generator": torch.Generator(), "finetune": False}
    return update_statistics(before, old, encoder_of(layer), batch, buffer, **how), covariance


@pytest.mark.parametrize("exemplars", [0, 3])
def test_statistics_move_as_the_features_of_new_samples_did(exemplars):
    generator = torch.Generator().manual_seed(0)
    batch = 3 * torch.randn(200, 2, generator=generator)
    (kept, *_), before = drifted(batch, torch.randn(exemplars, 2, generator=generator))
    weight, near = torch.tensor([[2.0, 1.0], [0.0, 1.0]]), {"atol": 0.1, "rtol": 0.03}
    torch.testing.assert_close(kept.means[0, 0], torch.tensor([2.0, 9.0]), **near)
    expected = weight.T.double() @ before @ weight.double()
    torch.testing.assert_close(kept.covariances.matrix(0), expected, **near)
    # Those of the new class are of the new features, and need no map.
    features = batch @ weight + torch.tensor([0.0, 3.0])
    torch.testing.assert_close(kept.means[1, 0], features.mean(dim=0))
    torch.testing.assert_close(
        kept.covariances.matrix(1).float(), features.T.cov(correction=0), rtol=1e-4, atol=1e-4
    )


def test_exemplars_show_a_drift_that_new_samples_do_not():
    """The new class does not vary in the direction that is stretched; the old one does."""
    generator = torch.Generator().manual_seed(0)
    line = torch.randn(50, 2, generator=generator) * torch.tensor([1.0, 0.0])
    exemplars = torch.randn(50, 2, generator=generator)
    for buffer, expected in [(None, 5.0), (exemplars, 10.0)]:
        (kept, *_), _ = drifted(line, buffer, ((1.0, 0.0), (0.0, 2.0)), (0.0, 0.0))
        assert kept.means[0, 0].tolist() == pytest.approx([1.0, expected], rel=0.03)


def test_a_classifier_moves_its_statistics_as_its_network_moved():
    class Stretched(LMRCPlusClassifier):
        """Its second task stretches all features, and moves them no further."""

        def init_network(self, frozen, x):
            network = super().init_network(frozen, x)
            if frozen is not None:
                network.encoder.backbone.weight.data *= 2
            return network

    x = torch.randn(4, 50, 8, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1]).repeat_interleave(50)
    x[::2] += 1
    settings = {"statistics": "full", "predict_with": "lda", "rotations": "none"}
    settings |= {"epochs": 1, "first_epochs": 1, "learning_rate": 1e-9, "random_state": 0}
    model = Stretched(backbone=nn.Linear(8, 8, bias=False), **settings)
    before = model.partial_fit(x[:2].flatten(0, 1), y).statistics_["means"]
    after = model.partial_fit(x[2:].flatten(0, 1), y + 2).statistics_["means"]
    assert (after[:2] - 2 * before).norm() < 0.1 * before.norm()


@pytest.mark.parametrize(("lowest", "expected"), [(0.0, True), (-0.1, False)])
def test_features_are_taken_for_non_negative_where_none_is_below_zero(lowest, expected):
    x = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    x[7, 1] = lowest
    found, _ = drifted(x, None, ((1.0, 0.0), (0.0, 1.0)), (0.0, 0.0))
    assert found.non_negative is expected


@pytest.mark.parametrize(("augment", "views"), [("none", 1), ("crop", 2)])
def test_of_augmented_images_two_views_are_taken_and_count_as_one_image(augment, views):
    encoder = Encoder(nn.Flatten(), torch.zeros(1, 1, 1), torch.ones(1, 1, 1)).eval()
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    how = HOW | {"augment": augment, "generator": torch.Generator().manual_seed(0)}
    (found,) = (now for (now,) in gather([encoder], x, **how))
    assert found.shape == (1, views * 5, 64)
    assert len(rows(found[0])) == views * 5  # no view twice
    images = Memory(x, torch.zeros(5, dtype=torch.long))
    empty, none = ClassStatistics.empty("shared", 1, 64), Memory.empty(x)
    kept = update_statistics(empty, None, encoder, images, none, finetune=False, **how).statistics
    assert kept.counts.tolist() == [5]
