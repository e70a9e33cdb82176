"""Tasks learnt on features of a frozen backbone: each image passes through it once per view."""

import numpy as np
import pytest
import torch
from torch import nn

from lmrc import (
    EWCClassifier,
    FineTuneClassifier,
    JointClassifier,
    LMRCClassifier,
    LMRCPlusClassifier,
    LwFClassifier,
    load,
)
from lmrc.nets.network import Encoder
from lmrc.training import features
from lmrc.training.ranks import Ranks


class Counted(nn.Module):
    """Features of each column of an image, which tell left from right; counts what it is given."""

    n = 0

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        Counted.n += len(x)
        return torch.relu(self.weight * x.mean(dim=2).flatten(1))


def images(n=40):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 4
    X = rng.integers(0, 99, (n, 8, 8, 3)) + 50 * (y % 2)[:, None, None, None]
    X[y < 2, :, :3] += 100
    return X.astype(np.uint8), y


X, Y = images()
PARTS = [(X[i == Y % 2], Y[i == Y % 2]) for i in range(2)]
METHODS = [
    EWCClassifier,
    FineTuneClassifier,
    JointClassifier,
    LMRCClassifier,
    LMRCPlusClassifier,
    LwFClassifier,
]


def frozen(method=LMRCPlusClassifier, **settings):
    settings = {"epochs": 5, "batch_size": 8, "random_state": 0, "freeze": True} | settings
    if method is LMRCPlusClassifier:
        settings = {"first_epochs": 5, "predict_with": "lda"} | settings
    return method(backbone=Counted, **settings)


@pytest.mark.parametrize("method", METHODS)
def test_each_image_passes_through_a_frozen_backbone_once_per_view(method, tmp_path):
    model, views = frozen(method), 2 if method is LMRCPlusClassifier else 1
    for n_learnt, part in enumerate(PARTS, start=1):
        Counted.n = 0
        model.partial_fit(*part)
        n_before = 20 * (n_learnt - 1) if method is JointClassifier else 0
        built = 2 if n_learnt == 1 or n_before else 0  # to find the width
        assert Counted.n == built + views * (20 + n_before)
    assert torch.equal(model.network_.encoder.backbone.weight, torch.ones(1))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", backbone=Counted).partial_fit(X, Y)
    assert model.decision_function(X).shape == again.decision_function(X).shape == (40, 4)


@pytest.mark.parametrize("method", [EWCClassifier, LMRCPlusClassifier])
def test_a_backbone_may_be_frozen_for_one_task_and_learn_another(method, tmp_path):
    model = frozen(method)
    for n_learnt, freeze in enumerate([True, False, True]):
        before = getattr(model, "network_", frozen(method).fit(X, Y).network_).encoder.backbone
        model.set_params(freeze=freeze).partial_fit(X, Y + 4 * n_learnt)
        assert torch.equal(before.weight, model.network_.encoder.backbone.weight) == freeze
        model.save(tmp_path / "model")
        model = load(tmp_path / "model", backbone=Counted)


def test_heads_learn_from_the_features_and_predict_from_images():
    model = frozen(LMRCClassifier, epochs=60, learning_rate=0.5).fit(X, Y)
    assert model.score(X, Y) > 0.9
    head, encoder = model.network_.head, model.network_.encoder
    x = torch.from_numpy(X).permute(0, 3, 1, 2)
    torch.testing.assert_close(model.network_(x), head(encoder(x)))


def test_a_flipped_image_has_the_same_scores_where_features_are_averaged():
    model = frozen().fit(X, Y)
    scores = model.similarities(X)
    assert model.score(X, Y) > 0.9
    np.testing.assert_allclose(scores, model.similarities(X[:, :, ::-1]), atol=1e-5)
    model = frozen(test_time_flip=False).fit(X, Y)
    assert np.abs(model.similarities(X) - model.similarities(X[:, :, ::-1])).max() > 0.1


def test_exemplars_are_images_still_and_take_part_as_features():
    model = frozen(memory_per_class=3, predict_with="ensemble")
    for part in PARTS:
        model.partial_fit(*part)
    assert model.memory_.x.shape == (12, 3, 8, 8)
    assert "review" in model.history_[-1]
    model.forget(0)
    assert model.predict(X).min() == 1


def test_features_that_would_fill_the_memory_are_on_disk(monkeypatch):
    encoder = Encoder(Counted(), torch.zeros(1, 1, 1), torch.ones(1, 1, 1)).eval()
    x = torch.from_numpy(X).permute(0, 3, 1, 2)
    how = {"flip": True, "bf16": False}
    monkeypatch.setattr(features, "ELEMENTS", 8 * 192)  # in parts
    in_memory = features.extract(encoder, x, 1, **how)
    torch.testing.assert_close(in_memory, features.features_of(encoder, x, 1, flip=True))
    expected = frozen().fit(X, Y).similarities(X)
    made, file = [], features.tempfile.TemporaryFile
    monkeypatch.setattr(features, "available_memory", lambda: 0)
    monkeypatch.setattr(
        features.tempfile, "TemporaryFile", lambda **how: made.append(file(**how)) or made[-1]
    )
    on_disk = features.extract(encoder, x, 1, **how)
    assert len(made) == 1
    assert torch.equal(on_disk, in_memory)
    np.testing.assert_array_equal(frozen().fit(X, Y).similarities(X), expected)


def test_of_several_processes_each_computes_a_part_of_the_features(monkeypatch):
    encoder = Encoder(Counted(), torch.zeros(1, 1, 1), torch.ones(1, 1, 1)).eval()
    x = torch.from_numpy(X).permute(0, 3, 1, 2)
    how = {"flip": False, "bf16": False}
    whole, found = features.extract(encoder, x, 1, **how), torch.zeros(40, 24)
    monkeypatch.setattr("lmrc.training.ranks.distributed.broadcast", lambda rows, rank: None)
    for rank in range(3):
        monkeypatch.setattr(features, "current", lambda rank=rank: Ranks(rank, 3))
        Counted.n, own = 0, Ranks(rank, 3).part(40)
        found[own] = features.extract(encoder, x, 1, **how)[own]
        assert 13 <= Counted.n <= 14
    assert torch.equal(found, whole)


@pytest.mark.parametrize(
    ("shape", "freeze", "rotated"),
    [
        ((8, 8, 3), False, True),
        ((8, 6, 3), False, False),
        ((5,), False, False),
        ((8, 8, 3), True, False),
    ],
)
def test_rotations_are_for_square_images_and_a_backbone_that_learns(
    shape, freeze, rotated, tmp_path
):
    rng = np.random.default_rng(0)
    kind = "float32" if len(shape) == 1 else "uint8"
    x, y = rng.integers(0, 256, (12, *shape)).astype(kind), np.arange(12) % 2
    quick = {"epochs": 1, "first_epochs": 1, "predict_with": "lda", "random_state": 0}
    model = LMRCPlusClassifier(freeze=freeze, **quick).partial_fit(x, y)
    assert model.label_vectors_.shape == ((2, 4, 100) if rotated else (2, 100))
    model.save(tmp_path / "model")
    # What it came to at the first task stays, whatever is frozen later.
    model = load(tmp_path / "model").set_params(freeze=not freeze).partial_fit(x, y + 2)
    assert model.label_vectors_.shape == ((4, 4, 100) if rotated else (4, 100))
    assert model.predict(x).shape == (12,)
