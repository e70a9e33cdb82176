"""LMRC+ on a frozen backbone: exact statistics, and the prediction rules made of them."""

import copy

import numpy as np
import pytest
import torch

from lmrc import LMRCClassifier, LMRCPlusClassifier, ModelFileError, load
from lmrc.practice.info import describe, print_info
from lmrc.statistics.prediction_rules import RULES
from lmrc.store import folder

EXACT = ("lda", "ncm", "ridge")


def vectors():
    rng = np.random.default_rng(0)
    y = np.arange(72) % 6
    return (rng.normal(size=(6, 10))[y] + 0.5 * rng.normal(size=(72, 10))).astype(np.float32), y


X, Y = vectors()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Weights, and with them how inputs are normalised: else the first task would set it."""
    place = tmp_path_factory.mktemp("teacher")
    LMRCClassifier(epochs=1, random_state=0).fit(X, Y).save(place)
    (file,) = place.glob("weights-*")
    return file


@pytest.fixture
def model(weights):
    quick = {"epochs": 1, "first_epochs": 1, "projections": 200, "random_state": 0}
    return LMRCPlusClassifier(freeze=True, weights=weights, **quick)


def learn(model, *tasks):
    for rows in tasks:
        model.partial_fit(X[rows], Y[rows])
    return model


def of(*labels):
    return np.isin(Y, labels)


def scores(model):
    by_rule = model.similarities_by_rule(X)
    return {rule: by_rule[rule][:, np.argsort(model.classes_)] for rule in EXACT}


def same(one, other):
    mine, its = scores(one), scores(other)
    for rule in EXACT:
        np.testing.assert_allclose(mine[rule], its[rule], atol=1e-5, err_msg=rule)


def test_tasks_one_by_one_are_as_good_as_all_at_once(model, tmp_path):
    joint = learn(copy.copy(model), of(0, 1, 2, 3, 4, 5))
    first, last = np.arange(72) < 40, np.arange(72) >= 40
    same(learn(copy.copy(model), of(5, 2), of(0), of(3, 1, 4)), joint)
    same(learn(copy.copy(model), first & of(0, 3, 5), of(1, 2), last & of(0, 3, 5), of(4)), joint)
    assert joint.prediction_rule_ == "ridge"
    assert joint.prediction_rules_ == ("wta", "lda", "ncm", "ridge")
    assert joint.score(X, Y) > 0.95
    assert np.array_equal(joint.similarities(X), joint.similarities_by_rule(X)["ridge"])
    joint.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert np.array_equal(joint.similarities(X), again.similarities(X))


def test_heads_are_trained_only_if_prediction_needs_them(model):
    learn(model, of(0, 1, 2), of(3, 4, 5))
    assert not model.history_
    before = model.network_.head.weight[0].clone()
    learn(model, of(0, 1))  # known classes: no new head
    assert np.array_equal(model.network_.head.weight[0].detach(), before.detach())
    assert model.set_params(predict_with="wta").score(X, Y) > 0.6
    learn(model, of(5))
    assert [record["task"] for record in model.history_] == [3]
    assert (
        len(model.set_params(predict_with="ensemble").partial_fit(X[of(1)], Y[of(1)]).classes_) == 6
    )


def test_a_forgotten_class_was_never_there(model):
    forgotten = learn(copy.copy(model), of(0, 1, 2), of(3, 4, 5)).forget(4)
    same(forgotten, learn(copy.copy(model), of(0, 1, 2), of(3, 5)))


def test_one_image_of_a_class_is_enough(model):
    rows = np.arange(72) < 6
    learn(model, rows & of(0, 1, 2), rows & of(3, 4, 5))
    assert model.score(X, Y) > 0.8
    assert all(np.isfinite(part).all() for part in scores(model).values())


def test_rules_of_pseudo_features_are_there_if_predict_with_needs_them(model, tmp_path):
    model.set_params(predict_with="ensemble", memory_per_class=2)
    learn(model, of(0, 1, 2), of(3, 4, 5))
    rules = tuple(rule for rule in RULES if rule != "snapshots")
    assert model.prediction_rules_ == rules
    assert not model.statistics_
    model.forget(3)
    assert model.prediction_rules_ == rules
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").set_params(predict_with="ridge").score(X, Y) > 0.6


def test_exact_statistics_become_others_when_the_backbone_learns_again(model, tmp_path):
    learn(model, of(0, 1, 2)).set_params(freeze=False)
    assert model.prediction_rule_ == "ridge"
    learn(model, of(3, 4))
    assert model.prediction_rule_ == "ensemble"
    assert (len(model.scatter_), len(model.statistics_["means"])) == (0, 5)
    model.set_params(freeze=True)
    learn(model, of(5))  # of the classes before, there are no exact ones
    assert model.prediction_rule_ == "ensemble"
    assert model.predict(X).shape == (72,)
    model.set_params(predict_with="ridge")
    with pytest.raises(ValueError, match="frozen from the first task on"):
        learn(model, of(5))


@pytest.mark.parametrize("settings", [{"freeze": False}, {"rotations": "all"}])
def test_the_ridge_regression_needs_features_that_stay(settings):
    with pytest.raises(ValueError, match="predict_with='ridge' needs a backbone that is frozen"):
        LMRCPlusClassifier(**{"freeze": True, "predict_with": "ridge"} | settings).fit(X, Y)


def test_without_statistics_there_are_none(model):
    learn(model.set_params(statistics="none"), of(0, 1))
    assert (model.scatter_, model.prediction_rule_) == ({}, "wta")


def test_info_says_what_the_statistics_hold_and_take(model, tmp_path):
    said = []
    model.set_params(projections=50)
    for n_classes, text in ((6, "exact, "), (6, "exact, scatter matrices summed up, ")):
        learn(model, of(*range(n_classes))).save(tmp_path / "model")
        groups = (model.scatter_, model.classifiers_)
        size = sum(tensor.nbytes for group in groups for tensor in group.values())
        assert describe(tmp_path / "model")["statistics_bytes"] == size
        said.clear()
        print_info(tmp_path / "model", said.append)
        (line,) = (line for line in said if line.startswith("class statistics of the features: "))
        assert f": {text}" in line
        assert f" features and {model.projections} random projections" in line
        assert ("growing with the images up to" in line) == (text == "exact, ")
        for _ in range(4):  # the same samples over and over: more than half of the inputs
            learn(model, of(*range(n_classes)))


def forge(place, change):
    with folder.writing(place):
        folder.amend(place, change)


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("scatter", "means", torch.zeros(6, 3)),
        ("scatter", "counts", torch.zeros(6, dtype=torch.int64)),
        ("scatter", "factors", torch.zeros(1, 712)),
        ("scatter", "within", torch.full((712 * 713 // 2,), torch.nan)),
        ("scatter", "more", torch.zeros(1)),
        ("classifiers", "ridge_weight", torch.zeros(6, 455)),
        ("classifiers", "ridge_weight", None),
        ("statistics", "means", torch.zeros(6, 1, 256)),
    ],
)
def test_forged_statistics_are_refused(group, name, value, model, tmp_path):
    learn(model, of(0, 1, 2, 3, 4, 5)).save(tmp_path / "model")
    load(tmp_path / "model")

    def change(content):
        description, tensors = content
        changed = {**tensors.get(group, {}), name: value}
        return description, tensors | {
            group: {key: tensor for key, tensor in changed.items() if tensor is not None}
        }

    forge(tmp_path / "model", change)
    with pytest.raises(ModelFileError):
        load(tmp_path / "model")
