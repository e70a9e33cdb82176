"""Ensembles of LMRC+: several networks as one classifier."""

import json

import numpy as np
import pytest
import torch

from lmrc import LMRCPlusClassifier, ModelFileError, load
from lmrc.methods.members import Networks
from lmrc.practice import export
from lmrc.store import folder
from lmrc.training.loop import TrainingError

QUICK = {"backbone": "mlp", "freeze": False, "rotations": "none", "epochs": 2, "first_epochs": 2}
QUICK |= {"label_dim": 16, "threshold": 0.5, "batch_size": 16, "device": "cpu", "random_state": 0}
RNG = np.random.default_rng(0)
Y = np.repeat(np.arange(6), 30)
CENTRES = RNG.integers(40, 216, (6, 6, 6))
X = np.clip(CENTRES[Y] + RNG.normal(0, 60, (len(Y), 6, 6)), 0, 255).astype(np.uint8)
X_TEST = np.clip(CENTRES[Y] + RNG.normal(0, 60, (len(Y), 6, 6)), 0, 255).astype(np.uint8)


def learnt(tasks=((0, 1, 2), (3, 4, 5)), **settings):
    model = LMRCPlusClassifier(**{**QUICK, **settings})
    for task in tasks:
        model.partial_fit(X[np.isin(Y, task)], Y[np.isin(Y, task)])
    return model


@pytest.fixture(scope="module")
def three():
    return learnt(members=3, calibration_share=0.1, memory_per_class=2)


def standardised(scores):
    return (scores - scores.mean(axis=1, keepdims=True)) / scores.std(axis=1, keepdims=True)


@pytest.mark.parametrize("rule", ["ensemble", "wta"])
def test_it_averages_networks_that_were_trained_with_the_members_seeds(rule):
    model = learnt(members=2, predict_with=rule)
    seeds = [member.seed_ for member in model.members_]
    assert seeds[0] == 0
    assert seeds[1] not in (0, 1)  # else models of neighbouring seeds would share networks
    single = [learnt(random_state=seed, predict_with=rule) for seed in seeds]
    expected = np.mean([standardised(one.similarities(X_TEST)) for one in single], axis=0)
    np.testing.assert_allclose(model.similarities(X_TEST), expected, atol=1e-5)
    assert (model.predict(X_TEST) == model.classes_[expected.argmax(axis=1)]).all()
    by_rule = model.similarities_by_rule(X_TEST)
    np.testing.assert_allclose(by_rule[rule], expected, atol=1e-5)
    for member, one in zip(model.members_, single, strict=True):
        np.testing.assert_array_equal(member.similarities(X_TEST), one.similarities(X_TEST))


def test_of_two_classes_scores_are_not_standardised():
    model = learnt([(0, 1)], members=2)
    assert len(np.unique(np.abs(model.similarities(X_TEST)).round(4))) > 10


def test_one_member_is_the_model_itself_and_its_folder_is_as_before(tmp_path):
    model = learnt([(0, 1)])
    (member,) = model.members_
    np.testing.assert_array_equal(member.similarities(X_TEST), model.similarities(X_TEST))
    model.save(tmp_path)
    (version,) = folder.versions(tmp_path)
    assert "members" not in version["model"]
    assert "members" not in version["model"]["settings"]
    assert "members" not in version["files"]


def test_probabilities_and_thresholds_are_of_the_ensemble(three):
    found = three.outputs(X_TEST)
    assert np.abs(found.probabilities.sum(axis=1) - 1).max() < 1e-5
    assert (three.classes_[found.probabilities.argmax(axis=1)] == three.predict(X_TEST)).all()
    np.testing.assert_array_equal(found.similarities, three.similarities(X_TEST))
    rule = f"{three.prediction_rule_}."
    counts = [m.calibration_[f"{rule}counts"] for m in (three, *three.members_)]
    assert counts[0].tolist() == [3.0] * 6
    assert all(torch.equal(counts[0], other) for other in counts)
    share = (found.unknown > three.unknown_threshold(0.1)).mean()
    assert 0.02 < share < 0.5  # of three images a class, and of features that have drifted
    # As the logarithms of the probabilities are: one scale for all scores.
    logits = np.log(found.probabilities)
    logits -= logits.mean(axis=1, keepdims=True)
    scale = three.calibration_[f"{rule}scale"].item()
    np.testing.assert_allclose(logits, scale * found.similarities, atol=2e-2, rtol=1e-3)


def test_all_members_hold_out_the_same_images(monkeypatch):
    held = []
    hold_out = LMRCPlusClassifier._hold_out

    def spy(self, samples):
        found = hold_out(self, samples)
        held.append(found[1].x[:])
        return found

    monkeypatch.setattr(LMRCPlusClassifier, "_hold_out", spy)
    learnt([(0, 1, 2)], members=2, calibration_share=0.1)
    assert len(held) > 2
    assert all(torch.equal(held[0], other) for other in held)


def test_a_saved_one_goes_on_as_if_it_had_never_been_away(three, tmp_path):
    three.save(tmp_path)
    back = load(tmp_path, device="cpu")
    for name in ("similarities", "probabilities", "unknown"):
        np.testing.assert_array_equal(
            getattr(back.outputs(X_TEST), name), getattr(three.outputs(X_TEST), name)
        )
    assert len(back.members_) == 3
    assert [m.seed_ for m in back.members_] == [m.seed_ for m in three.members_]
    assert len(back.memory_) == len(three.memory_) == 12  # as many as one network would have
    again = X[Y == 1], Y[Y == 1]  # a known class, once more
    outputs = [model.partial_fit(*again).outputs(X_TEST) for model in (back, load(tmp_path))]
    assert (outputs[0].unknown == outputs[1].unknown).all()
    assert (outputs[0].unknown != three.outputs(X_TEST).unknown).any()


def test_a_member_can_be_saved_alone(three, tmp_path):
    member = three.members_[1]
    member.save(tmp_path)
    back = load(tmp_path, device="cpu")
    assert back.members == 1
    np.testing.assert_array_equal(back.predict_proba(X_TEST), member.predict_proba(X_TEST))


def test_forgetting_and_renaming_reach_all_members(three, tmp_path):
    three.save(tmp_path)
    model = load(tmp_path, device="cpu").forget(1).rename(2, 20)
    assert model.classes_.tolist() == [0, 20, 3, 4, 5]
    found = model.outputs(X_TEST[Y != 1])
    assert found.probabilities.shape[1] == 5
    wanted = np.where(Y == 2, 20, Y)[Y != 1]
    assert (model.predict(X_TEST[Y != 1]) == wanted).mean() > 0.5
    for member, before in zip(model.members_, three.members_, strict=True):
        assert member.seed_ != before.seed_
        assert member.classes_.tolist() == model.classes_.tolist()
        assert len(member.labels_["vectors"]) == 5
        assert len(member.statistics_["means"]) == 5
    assert model.calibration_["ensemble.counts"].tolist() == [3.0] * 5
    model.save(tmp_path)
    np.testing.assert_array_equal(load(tmp_path).predict_proba(X_TEST), model.predict_proba(X_TEST))
    seeds = [m.seed_ for m in three.members_]
    moved = load(tmp_path, device="cpu")
    moved._move_seed_on()  # of versions from before the class
    assert not {m.seed_ for m in moved.members_} & {m.seed_ for m in model.members_}
    assert [m.seed_ for m in three.members_] == seeds


def test_a_failed_member_leaves_the_model_as_it_was(three, tmp_path, monkeypatch):
    three.save(tmp_path)
    model = load(tmp_path, device="cpu")
    before, done = model.similarities(X_TEST), []

    def fails_at_the_second(self, network, samples):
        done.append(self)
        if len(done) == 2:
            raise RuntimeError("no memory")

    monkeypatch.setattr(LMRCPlusClassifier, "after_task", fails_at_the_second)
    with pytest.raises(RuntimeError, match="no memory"):
        model.partial_fit(X[Y == 1], Y[Y == 1])
    np.testing.assert_array_equal(model.similarities(X_TEST), before)


def test_a_member_that_diverged_is_no_part_of_a_model(monkeypatch):
    after_task, done = LMRCPlusClassifier.after_task, []

    def spoils_the_second(self, network, samples):
        after_task(self, network, samples)
        done.append(self)
        if len(done) == 2:
            network.head.bias.data.fill_(torch.nan)

    monkeypatch.setattr(LMRCPlusClassifier, "after_task", spoils_the_second)
    with pytest.raises(TrainingError, match="training diverged"):
        learnt([(0, 1)], members=2, predict_with="lda")


def test_many_images_are_predicted_as_few_are(three):
    assert isinstance(three._network_for(1), Networks)
    one_by_one = np.concatenate([three.similarities(x[None]) for x in X_TEST[:20]])
    np.testing.assert_allclose(three.similarities(X_TEST)[:20], one_by_one, atol=1e-4)


def test_parameters_set_later_are_for_all_members(three, tmp_path):
    three.save(tmp_path)
    model = load(tmp_path, device="cpu").set_params(predict_with="lda")
    each = [m.similarities(X_TEST) for m in model.members_]
    np.testing.assert_allclose(
        model.similarities(X_TEST), np.mean([standardised(s) for s in each], axis=0), atol=1e-5
    )


@pytest.mark.usefixtures("onnx_operators")
def test_export_has_all_members_in_one_graph():
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = learnt([(0, 1, 2)], members=2, calibration_share=0.1, predict_with="lda")
    content = export.to_onnx(model)
    export.check_outputs(model, content)
    outputs = onnxruntime.InferenceSession(content).run(None, {"images": X_TEST[..., None]})
    for found, expected in zip(outputs, model.outputs(X_TEST), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_its_number_is_fixed_by_the_first_task():
    model = learnt([(0, 1)])
    with pytest.raises(ValueError, match="members was 1 at the first task and is now 2"):
        model.set_params(members=2).partial_fit(X[Y == 2], Y[Y == 2])


@pytest.mark.parametrize("settings", [{"freeze": True}, {"backbone": "auto", "freeze": "auto"}])
def test_a_frozen_backbone_is_refused(settings):
    vectors = X.reshape(len(X), -1).astype(np.float32)
    model = LMRCPlusClassifier(**{**QUICK, "members": 2, **settings})
    with pytest.raises(ValueError, match=r"all members would have the same features: set members"):
        model.fit(vectors, Y)


@pytest.mark.parametrize("change", ["fewer", "no tensors", "another class's"])
def test_malformed_members_are_refused(three, tmp_path, change):
    three.save(tmp_path)
    description, tensors = folder.read(tmp_path)
    if change == "fewer":
        description["members"] = description["members"][:1]
    elif change == "no tensors":
        del tensors["members"]
    else:
        tensors["members"]["1.labels.vectors"] = tensors["members"]["1.labels.vectors"][:-1]
    with folder.writing(tmp_path):
        folder.write(tmp_path, json.loads(json.dumps(description)), tensors)
    with pytest.raises(ModelFileError, match="does not hold a model"):
        load(tmp_path)
