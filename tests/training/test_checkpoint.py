import copy

import numpy as np
import pytest
import torch
from torch import nn

from lmrc import EWCClassifier, LMRCClassifier
from lmrc.training.checkpoint import Checkpoint, pack_training, unpack_training

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 16, 16, 3), dtype=np.uint8)
LABELS = np.repeat([0, 1, 2, 3], 15)


class InterruptedTrainingError(Exception):
    pass


def with_batch_norm():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())


class InMemory(Checkpoint):
    """Keeps the state of each epoch, and ends the training after one of them."""

    def __init__(self, stop_after=None):
        self.stop_after, self.kept = stop_after, None

    def restore(self, network, optimiser):
        if self.kept is None:
            return []
        records, tensors = self.kept
        unpack_training(tensors, network, optimiser)
        return list(records)

    def save(self, records, network, optimiser):
        tensors = {name: t.clone() for name, t in pack_training(network, optimiser).items()}
        self.kept = copy.copy(records), tensors
        if len(records) == self.stop_after:
            raise InterruptedTrainingError


def learn(model, *batches):
    for part in batches:
        model.partial_fit(IMAGES[part], LABELS[part])
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: LMRCClassifier(backbone=with_batch_norm, epochs=4, batch_size=16, random_state=3),
        lambda: LMRCClassifier(
            backbone="cnn", epochs=4, memory_per_class=2, class_weight="balanced", random_state=3
        ),
        lambda: EWCClassifier(backbone="cnn", epochs=4, random_state=3),
    ],
)
def test_training_goes_on_bit_for_bit(make):
    first, second = slice(0, 30), slice(30, 60)
    whole = learn(make(), first, second)
    model = learn(make(), first)
    model.checkpoint = InMemory(stop_after=2)
    with pytest.raises(InterruptedTrainingError):
        learn(model, second)
    assert model.n_tasks_ == 1
    model.checkpoint.stop_after = None
    learn(model, second)
    for name, weight in whole.network_.state_dict().items():
        assert torch.equal(weight, model.network_.state_dict()[name]), name
    assert model.history_ == whole.history_
