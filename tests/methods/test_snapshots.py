"""Snapshot ensembles: networks of earlier tasks predict, too."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from lmrc import LMRCPlusClassifier, ModelFileError, load
from lmrc.methods.persistence import model_from
from lmrc.methods.state import pack
from lmrc.nets.backbones import ResNet
from lmrc.practice.info import describe
from lmrc.statistics.classes import arranged, by_rotation
from lmrc.statistics.earlier import Earlier
from lmrc.statistics.prediction_rules import RULES, linear_scores
from lmrc.training.rotations import all_rotations

N = 12
Y = np.repeat(np.arange(6), N)
RNG = np.random.default_rng(0)
COLOURS = RNG.integers(30, 200, (6, 1, 1, 3))
X = np.clip(COLOURS[Y] + RNG.normal(0, 40, (len(Y), 6, 6, 3)), 0, 255).astype(np.uint8)
X[:, :3, :3] //= 2  # shows how an image is rotated


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6 * 6 * 3, 8)

    def forward(self, x):
        return self.layer(x.flatten(1)).relu()


def learn(model, *tasks):
    for task in tasks:
        model.partial_fit(X[np.isin(Y, task)], Y[np.isin(Y, task)])
    return model


TASKS = [(0, 1), (2, 3), (4, 5)]


def taught(*tasks, **settings):
    quick = {"backbone": Small, "epochs": 3, "first_epochs": 3, "batch_size": 16}
    quick |= {"learning_rate": 0.01, "label_dim": 20, "threshold": 0.5, "augment": "none"}
    quick |= {"predict_with": "snapshots", "device": "cpu", "random_state": 0}
    return learn(LMRCPlusClassifier(**quick | settings), *(tasks or TASKS))


@pytest.fixture(scope="module")
def learnt():
    """A model of three tasks that has probabilities, not to be changed."""
    return taught(calibration_share=0.1)


def tasks_of(model):
    """The tasks after which a snapshot was the network."""
    return sorted({name.partition(".")[0] for name in model.snapshots_} - {"tasks"})


def with_rule(model, rule):
    return copy.copy(model).set_params(predict_with=rule)


def same(one, other):
    assert one.snapshots_.keys() == other.snapshots_.keys()
    assert all(torch.equal(one.snapshots_[name], t) for name, t in other.snapshots_.items())
    for mine, its in zip(one.outputs(X), other.outputs(X), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_networks_of_earlier_tasks_predict_and_nothing_else_changes(learnt):
    plain = taught(calibration_share=0.1, predict_with="ensemble")
    weights = plain.network_.state_dict()
    assert all(torch.equal(t, weights[name]) for name, t in learnt.network_.state_dict().items())
    assert (tasks_of(learnt), tasks_of(plain)) == (["0", "1"], [])
    by_rule = learnt.similarities_by_rule(X)
    assert list(by_rule) == [rule for rule in RULES if rule != "ridge"]
    assert list(plain.similarities_by_rule(X)) == [rule for rule in by_rule if rule != "snapshots"]
    np.testing.assert_array_equal(by_rule["snapshots"], learnt.similarities(X))
    for rule, found in by_rule.items():
        np.testing.assert_array_equal(found, with_rule(learnt, rule).similarities(X))
    switched = with_rule(learnt, "lda")
    np.testing.assert_array_equal(
        switched.similarities_by_rule(X)["snapshots"], by_rule["snapshots"]
    )
    np.testing.assert_array_equal(by_rule["ensemble"], plain.similarities(X))
    assert not len(with_rule(learnt, "ensemble")._network_for(1).snapshots)  # nor take time
    pairs = zip(by_rule["snapshots"], by_rule["ensemble"], strict=True)
    alike = np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs])
    assert 0.5 < alike < 0.999


def test_before_there_are_snapshots_the_rule_is_the_ensemble(tmp_path):
    one = taught((0, 1, 2), calibration_share=0.1)
    assert tasks_of(one) == []
    assert "snapshots" in one.prediction_rules_
    by_rule = one.similarities_by_rule(X)
    np.testing.assert_array_equal(by_rule["snapshots"], by_rule["ensemble"])
    np.testing.assert_array_equal(one.similarities(X), by_rule["ensemble"])
    with_rule(one, "ensemble").save(tmp_path / "m")  # though its calibration is of both
    same(load(tmp_path / "m", backbone=Small, device="cpu"), with_rule(one, "ensemble"))


def test_residuals_are_of_the_newest_network_and_units_of_all(learnt):
    x, found = torch.from_numpy(X).permute(0, 3, 1, 2), {}
    for rule in ("ensemble", "snapshots"):
        model = with_rule(learnt, rule)
        found[rule] = model._scores_and_residuals((rule,), model._network_for(1), x)[1]
    torch.testing.assert_close(found["snapshots"], found["ensemble"])
    names = (f"{task}means" for task in ("0.", "1."))
    means = [learnt.statistics_["means"], *(learnt.snapshots_[name] for name in names)]
    expected = [by_rotation(part.transpose(0, 1), 4) for part in means]
    assert torch.equal(learnt._mean_features(), torch.cat(expected, dim=-1))


def standardised(scores):
    return (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True, correction=0)


@pytest.mark.parametrize(("rotations", "joins"), [("none", False), ("all", False), ("all", True)])
def test_statistics_of_a_snapshot_are_exact_for_classes_learnt_after_it(rotations, joins):
    model, networks, means = taught(TASKS[0], rotations=rotations, join_rotations=joins), [], []
    for task in (*TASKS[1:], TASKS[1]):
        networks.append(copy.deepcopy(model.network_))
        means.append(model.statistics_["means"])
        learn(model, task)
    assert tasks_of(model) == ["0", "2"]  # of the second task's classes, the newest network is
    x = torch.from_numpy(X).permute(0, 3, 1, 2)
    scores = standardised(torch.from_numpy(with_rule(model, "ensemble").similarities(X)))
    near = {"atol": 2e-3, "rtol": 2e-3}  # networks are kept in half precision
    for task, first_new in ((0, 0), (2, 4)):
        own = {name[2:]: t for name, t in model.snapshots_.items() if name.startswith(f"{task}.")}
        assert own["counts"].tolist() == [N, N, 2 * N, 2 * N, N, N]
        with torch.no_grad():
            features = networks[task].encoder(all_rotations(x) if rotations == "all" else x)
        expected = features.view(-1, 6, N, 8).mean(dim=2)
        found = by_rotation(own["means"].transpose(0, 1), len(expected))
        torch.testing.assert_close(found[:, first_new:], expected[:, first_new:], **near)
        # Of classes before, they are what they were then.
        assert torch.equal(own["means"][:2], means[task][:2])
        features = arranged(features.view(-1, len(X), 8), len(own["linear_weight"]))
        votes = linear_scores(features, own["linear_weight"], own["linear_bias"]).mean(dim=0)
        scores = scores + 0.5 * standardised(votes)
    torch.testing.assert_close(torch.from_numpy(model.similarities(X)), scores, atol=0.02, rtol=0)
    if rotations == "none":  # as long as nothing is learnt, it does not matter that it is frozen
        frozen = copy.copy(model).set_params(freeze=True)
        np.testing.assert_allclose(frozen.similarities(X), model.similarities(X), atol=1e-4)


def test_a_saved_model_predicts_and_goes_on_the_same(learnt, tmp_path):
    learnt.save(tmp_path / "m")
    model, again = copy.copy(learnt), load(tmp_path / "m", backbone=Small, device="cpu")
    same(model, again)
    np.testing.assert_array_equal(again.similarities(X), learnt.similarities(X))
    size = sum(tensor.nbytes for tensor in learnt.snapshots_.values())
    assert describe(tmp_path / "m")["snapshot_bytes"] == size
    for one in (model, again):
        learn(one, TASKS[0])  # known classes again: no other is left of the first network's
        assert tasks_of(one) == ["1", "2"]
    same(model, again)


def test_a_forgotten_class_leaves_no_snapshot_of_it(learnt):
    model = copy.copy(learnt).forget(0)
    assert tasks_of(model) == ["0", "1"]
    assert {t.shape[0] for name, t in model.snapshots_.items() if name.endswith("means")} == {5}
    model.check_saved()
    model.forget(1)
    assert tasks_of(model) == ["1"]
    model.check_saved()
    assert model.outputs(X).similarities.shape == (len(X), 4)
    assert (model.predict_proba(X).argmax(axis=1) == model.similarities(X).argmax(axis=1)).all()
    model.forget(2).forget(3)
    assert tasks_of(model) == []
    np.testing.assert_array_equal(
        model.similarities(X), with_rule(model, "ensemble").similarities(X)
    )


def test_a_model_may_be_switched_to_the_ensemble_and_back(learnt, tmp_path):
    with_rule(learnt, "ensemble").save(tmp_path / "m")
    again = load(tmp_path / "m", backbone=Small, device="cpu")
    assert again.prediction_rule_ == "ensemble"
    same(again, with_rule(learnt, "ensemble"))
    same(again.set_params(predict_with="snapshots"), learnt)
    learn(again.set_params(predict_with="ensemble"), TASKS[1])
    assert not again.snapshots_
    assert "snapshots" not in again.prediction_rules_
    with pytest.raises(ValueError, match="did not learn its last task with that"):
        with_rule(again, "snapshots").predict(X)
    again.save(tmp_path / "m")
    learn(again.set_params(predict_with="snapshots"), TASKS[2])
    assert tasks_of(again) == ["3"]  # of the network before: those of others are gone
    again.check_saved()
    assert np.isfinite(again.similarities(X)).all()
    learn(again.set_params(predict_with="ensemble", keep_encoders=False), TASKS[0])
    assert not again.snapshots_


def test_members_have_snapshots_of_their_own(tmp_path):
    model = taught(members=2, calibration_share=0.1)
    first, second = model.members_
    assert tasks_of(first) == tasks_of(second) == ["0", "1"]
    assert not torch.equal(first.snapshots_["0.means"], second.snapshots_["0.means"])
    each = [member.similarities(X) for member in (first, second)]
    each = [(s - s.mean(axis=1, keepdims=True)) / s.std(axis=1, keepdims=True) for s in each]
    np.testing.assert_allclose(model.similarities(X), np.mean(each, axis=0), atol=1e-5)
    by_rule = model.similarities_by_rule(X)
    np.testing.assert_array_equal(by_rule["snapshots"], model.similarities(X))
    np.testing.assert_array_equal(by_rule["ensemble"], with_rule(model, "ensemble").similarities(X))
    model.save(tmp_path / "m")
    again = load(tmp_path / "m", backbone=Small, device="cpu")
    same(again, model)
    for one in (model, again):
        learn(one, TASKS[0]).forget(3)
    same(again, model)
    assert [tasks_of(member) for member in again.members_] == [["1", "2"]] * 2


def test_mirror_images_and_folded_backbones_are_looked_at_by_snapshots_too():
    backbone = ResNet((3, 6, 6), (1, 1, 1, 1), channels=4)
    model = taught(backbone=backbone, augment="crop+flip", rotations="one", epochs=1)
    assert model._forward_passes == 8
    whole = model.similarities(X)
    one_by_one = np.concatenate([model.similarities(X[i : i + 1]) for i in range(6)])
    np.testing.assert_allclose(whole[:6], one_by_one, atol=1e-3)
    np.testing.assert_allclose(model.similarities(X[:, :, ::-1]), whole, atol=1e-3)
    assert not np.allclose(whole, with_rule(model, "ensemble").similarities(X), atol=0.1)


@pytest.mark.parametrize("settings", [{"keep_encoders": False}, {"freeze": True}])
def test_it_is_refused_where_there_are_no_networks_of_earlier_tasks(settings):
    with pytest.raises(ValueError, match="predict_with='snapshots' needs networks of earlier"):
        taught(TASKS[0], **settings)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("0.linear_weight", lambda t: t[:, :5], "classifier of a snapshot"),
        ("1.linear_bias", lambda t: t.double(), "classifier of a snapshot"),
        ("0.linear_bias", None, "linear_bias"),
        ("0.means", lambda t: t[..., :8], "means"),
        ("1.counts", lambda t: 0 * t, "counts"),
        ("1.means", lambda t: t * torch.nan, "NaN"),
        ("0.more", lambda t: torch.zeros(1), "more"),
        ("tasks", lambda t: t[:1], "snapshots that it names"),
        ("tasks", None, "tasks"),
    ],
)
def test_damaged_snapshots_are_refused(learnt, name, value, message):
    description, tensors = pack(learnt)
    snapshots = dict(tensors["snapshots"])
    before = snapshots.pop(name, None)
    if value:
        snapshots[name] = value(before)
    with pytest.raises(ModelFileError, match=message):
        model_from("m", description, {**tensors, "snapshots": snapshots}, backbone=Small)


@pytest.mark.parametrize("task", ["2", "x"])
def test_snapshots_without_their_network_are_refused(learnt, task):
    description, tensors = pack(learnt)
    other = {name.replace("1.", f"{task}."): t for name, t in tensors["snapshots"].items()}
    other["tasks"] = torch.tensor([0, 2])
    with pytest.raises(ModelFileError, match=r"networks of its snapshots|invalid literal"):
        model_from("m", description, {**tensors, "snapshots": other}, backbone=Small)
    alone = {name: part for name, part in tensors.items() if name != "earlier"}
    with pytest.raises(ModelFileError, match="networks of its snapshots"):
        model_from("m", description, alone, backbone=Small)


def test_encoders_are_built_once_for_each_state_of_a_model(learnt, monkeypatch):
    one, built = copy.copy(learnt).forget(5), []
    like = Earlier.encoders_like
    monkeypatch.setattr(Earlier, "encoders_like", lambda *a: built.append(0) or like(*a))
    first = one.predict(X)
    np.testing.assert_array_equal(copy.copy(one).predict(X), first)
    assert len(built) == 1
    learn(one, TASKS[1])
    fresh = model_from("m", *pack(one), backbone=Small)  # has them from its own tensors
    np.testing.assert_array_equal(one.similarities(X), fresh.similarities(X))
