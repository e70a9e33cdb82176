"""Joint training: all samples are kept, and each task begins anew."""

import numpy as np
import pytest
import torch

from lmrc import FineTuneClassifier, JointClassifier, ModelFileError, load
from lmrc.checks import blobs
from lmrc.training.device import Execution

(X, Y), (X2, Y2), _ = blobs()


def quick(cls, **settings):
    return cls(**{"epochs": 3, "random_state": 0} | settings)


def test_joint_remembers_all_and_begins_anew():
    model = quick(JointClassifier, epochs=20).partial_fit(X, Y)
    before = model.network_.encoder.backbone[1].weight
    model.partial_fit(X2, Y2)
    assert len(model.memory_) == len(X) + len(X2)
    correlation = torch.corrcoef(
        torch.stack([before.flatten(), model.network_.encoder.backbone[1].weight.flatten()])
    )[0, 1]
    assert abs(correlation) < 0.2, "the new network must not start from the old one's weights"
    assert model.score(np.concatenate([X, X2]), np.concatenate([Y, Y2])) > 0.97


def test_every_task_is_trained_as_long_as_the_first_one():
    model = quick(JointClassifier, epochs=1, first_epochs=2, schedule="halving")
    model.set_params(learning_rate=0.01, first_learning_rate=0.03)
    model.partial_fit(X, Y).partial_fit(X2, Y2)
    assert [entry["learning_rate"] for entry in model.history_] == [0.03, 0.015] * 2


def test_whether_training_is_long_is_told_by_all_samples(monkeypatch):
    work, pick = [], Execution.pick
    monkeypatch.setattr(
        "lmrc.methods.base.Execution.pick", lambda *a: work.append(a[-1]) or pick(*a)
    )
    quick(JointClassifier, epochs=1).partial_fit(X, Y).partial_fit(X2, Y2)
    assert work == [X.size, X.size + X2.size]


def test_joint_begins_with_its_weights_after_load_too(tmp_path):
    quick(FineTuneClassifier).fit(X, Y).save(tmp_path / "teacher")
    (file,) = (tmp_path / "teacher").glob("weights-*")
    model = quick(JointClassifier, weights=file, learning_rate=1e-9).partial_fit(X, Y)
    model.save(tmp_path / "model")
    began_with = model.network_.encoder.backbone[1].weight
    model.partial_fit(X2, Y2)
    file.unlink()
    for part in ("once", "twice"):  # what was read is written again
        read = load(tmp_path / "model").partial_fit(X2, Y2)
        torch.testing.assert_close(read.network_.encoder.backbone[1].weight, began_with)
        np.testing.assert_array_equal(read.decision_function(X), model.decision_function(X), part)
        load(tmp_path / "model").save(tmp_path / "model")


def test_weights_to_begin_with_that_do_not_fit_are_refused(tmp_path):
    model = quick(JointClassifier).fit(X, Y)
    model.start_ = {"0.weight": torch.zeros(2, 2)}
    model.save(tmp_path / "model")
    with pytest.raises(ModelFileError, match="weights to begin with are not of the network's"):
        load(tmp_path / "model")
