"""The paper's LMRC stays what it was, whatever LMRC+ needs."""

import itertools

import numpy as np
import pytest
import torch

from lmrc import (
    EWCClassifier,
    FineTuneClassifier,
    JointClassifier,
    LMRCClassifier,
    LMRCPlusClassifier,
    LwFClassifier,
)
from lmrc.checks import blobs


class Plain(LMRCClassifier):
    """Losses and scores of the paper, written out."""

    def losses(self, o, v, batch):
        c = self.labels_["vectors"][batch.y]
        similarity = (o * c[:, None]).sum(dim=-1)
        k = 0 if v is None else v.shape[1]
        terms = {}
        if o.shape[1] > k:
            terms["new"] = -similarity[:, -1]  # Eq. 1
        if k and self.memory_per_class > 0:
            terms["review"] = -similarity[:, :k].sum(dim=1)  # Eq. 9
        elif k and batch.reviews:
            terms["review"] = -similarity[:, :k].sum(dim=1) * (batch.y < batch.n_known)
        if v is not None:
            terms["response"] = -self.response_weight * (o[:, :k] * v).sum(dim=(1, 2))  # Eq. 7
        return terms

    def scores(self, network, x):
        o, c = network(x), self.labels_["vectors"]
        head_of = itertools.chain(*([k] * len(head) for k, head in enumerate(self.heads_)))
        return torch.stack([(o[:, k] * c[i]).sum(dim=1) for i, k in enumerate(head_of)], dim=1)


@pytest.mark.parametrize("memory", [0, 3])
def test_training_is_bit_for_bit_the_papers(memory):
    models = [c(epochs=3, memory_per_class=memory, random_state=0) for c in (LMRCClassifier, Plain)]
    for model in models:
        for X, y in [*blobs(), blobs(seed=1)[0]]:
            model.partial_fit(X, y)
    ours, plain = models
    assert ours.history_ == plain.history_
    for one, other in zip(ours.network_.parameters(), plain.network_.parameters(), strict=True):
        assert torch.equal(one, other)
    X = blobs()[0][0]
    np.testing.assert_allclose(ours.similarities(X), plain.similarities(X), atol=1e-6)


def test_chance_and_schedule_are_those_of_the_first_release():
    """Losses as version 0.1.0 had them: another draw or another rate would show in them."""
    model = LMRCClassifier(epochs=3, random_state=0)
    for X, y in blobs():
        model.partial_fit(X, y)
    before = [0.133616, -0.129251, -0.488108, -0.938646, -1.266894, -1.606788]
    before += [-2.046706, -2.316142, -2.519944]
    assert [h["loss"] for h in model.history_] == pytest.approx(before, rel=1e-3)
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 14)
    colour = rng.integers(0, 256, (4, 1, 1, 3))
    X = np.clip(colour[y] + rng.integers(-60, 60, (56, 16, 16, 3)), 0, 255).astype(np.uint8)
    settings = {"backbone": "cnn", "batch_size": 8, "learning_rate": 0.01, "memory_per_class": 2}
    model = LMRCClassifier(epochs=2, random_state=0, **settings)
    for part in (y < 2, y >= 2):
        model.partial_fit(X[part], y[part])
    before = [-0.127368, -0.469018, -1.196124, -1.49834]
    assert [h["loss"] for h in model.history_] == pytest.approx(before, rel=1e-3)


#: How all methods learn unless they are told otherwise: a measured number stands for these.
TRAINING = {
    "memory_per_class": 0,
    "epochs": 70,
    "first_epochs": None,
    "batch_size": 128,
    "learning_rate": 0.05,
    "first_learning_rate": None,
    "schedule": "halving",
    "halve_at": (50 / 70, 60 / 70),
    "momentum": 0.9,
    "weight_decay": 5e-4,
}
OWN = {"label_dim": 100, "threshold": 0.15, "max_tries": 10_000, "response_weight": 1.0}
PLUS = {
    "response_weight": 3.0,
    "scale": 16.0,
    "rotations": "auto",
    "objective": "both",
    "statistics": "low-rank",
}
PLUS |= {"epochs": 60, "first_epochs": 100, "learning_rate": 0.02, "first_learning_rate": 0.05}


@pytest.mark.parametrize(
    ("method", "own"),
    [
        (LMRCClassifier, OWN),
        (LMRCPlusClassifier, OWN | PLUS | {"schedule": "cosine", "feature_layers": 2}),
        (FineTuneClassifier, {}),
        (JointClassifier, {}),
        (EWCClassifier, {"penalty_weight": 1000.0}),
        (LwFClassifier, {"distillation_weight": 1.0, "temperature": 2.0}),
    ],
)
def test_methods_learn_as_their_results_were_measured(method, own):
    settings, expected = method().get_params(), TRAINING | own
    assert {name: settings[name] for name in expected} == expected
