"""Every classifier of lmrc passes the public checks, and the checks detect broken ones."""

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
    checks,
)
from lmrc.methods import catalog

CLASSIFIERS = {
    "lmrc": LMRCClassifier(epochs=2, random_state=0),
    "lmrc with exemplars": LMRCClassifier(epochs=2, random_state=0, memory_per_class=3),
    "lmrc with own backbone": LMRCClassifier(
        epochs=2,
        random_state=0,
        backbone=nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2)),
    ),
    "lmrc+": LMRCPlusClassifier(
        epochs=2, first_epochs=None, random_state=0, rotations="none", predict_with="lda"
    ),
    "lmrc+ with exemplars": LMRCPlusClassifier(
        epochs=2,
        first_epochs=None,
        random_state=0,
        rotations="none",
        objective="both",
        statistics="shared",
        predict_with="lda",
        memory_per_class=3,
    ),
    "finetune": FineTuneClassifier(epochs=2, random_state=0),
    "ewc": EWCClassifier(epochs=2, random_state=0),
    "lwf-mc": LwFClassifier(epochs=2, random_state=0),
    "lwf-mt": LwFClassifier(heads="multi", epochs=2, random_state=0),
    "joint": JointClassifier(epochs=2, random_state=0),
}


@pytest.mark.parametrize("check", checks.ALL, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifier(name, check):
    check(CLASSIFIERS[name])


class Moves(LMRCClassifier):
    """Samples all label vectors anew in every task."""

    def expand(self, network, n_new):
        super().expand(network, n_new)
        vectors = torch.randn_like(self.labels_["vectors"])
        self.labels_ = {"vectors": nn.functional.normalize(vectors)}


class Learns(FineTuneClassifier):
    """Changes its weights in prediction."""

    def scores(self, network, x):
        network.head.bias.mul_(0.9)
        return super().scores(network, x)


class Centred(FineTuneClassifier):
    """Scores depend on the other rows."""

    def scores(self, network, x):
        scores = super().scores(network, x)
        return scores - scores.mean(0)


class Negated(FineTuneClassifier):
    """Predicts the lowest score."""

    def scores(self, network, x):
        return -super().scores(network, x)


class Narrow(FineTuneClassifier):
    """Scores only the classes of the first task."""

    def scores(self, network, x):
        return super().scores(network, x)[:, :2]


class InPlace(FineTuneClassifier):
    """Changes the current model during training."""

    def expand(self, network, n_new):
        super().expand(network, n_new)
        if hasattr(self, "network_"):
            self.network_.encoder.mean.add_(1)


class Hoards(FineTuneClassifier):
    """Grows with the number of samples."""

    def _remember(self, x, targets):
        super()._remember(x, targets)
        self.network_.register_buffer("hoard", x.clone())


class HoardsInSecret(FineTuneClassifier):
    """Keeps the samples in an attribute that is not saved."""

    def _remember(self, x, targets):
        super()._remember(x, targets)
        self.hoard_ = x.clone()


class Counts(FineTuneClassifier):
    """Counts its predictions."""

    def predict(self, X):
        self.calls = getattr(self, "calls", 0) + 1
        return super().predict(X)


class Reckless(FineTuneClassifier):
    """Takes seeds from the global RNG."""

    def _seed(self, *purpose):
        return int(torch.randint(0, 2**31, ()))


class Amnesic(LMRCClassifier):
    """Does not save its number of tasks."""

    saved_values = tuple(name for name in LMRCClassifier.saved_values if name != "n_tasks_")
    n_tasks_ = 0


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Moves, checks.check_old_classes_keep_their_position),
        (Learns, checks.check_predict_changes_nothing),
        (Centred, checks.check_rows_are_independent),
        (Negated, checks.check_highest_score_wins),
        (Narrow, checks.check_highest_score_wins),
        (InPlace, checks.check_interrupted_task_changes_nothing),
        (Hoards, checks.check_model_grows_by_heads_only),
        (HoardsInSecret, checks.check_model_grows_by_heads_only),
        (Counts, checks.check_predict_changes_nothing),
        (Reckless, checks.check_same_seed_same_model),
    ],
)
def test_checks_detect_a_broken_classifier(broken, check):
    with pytest.raises(AssertionError):
        check(broken(epochs=2, random_state=0))


def test_saving_check_detects_an_attribute_that_is_not_saved(monkeypatch):
    monkeypatch.setattr(catalog, "classes", lambda: {"Amnesic": Amnesic})
    with pytest.raises(AssertionError):
        checks.check_saved_model_continues(Amnesic(epochs=2, random_state=0))
