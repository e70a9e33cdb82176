"""Probabilities and unknown scores of LMRC+: calibrated without exemplars."""

import copy

import numpy as np
import pytest
import torch

from lmrc import LMRCClassifier, LMRCPlusClassifier, ModelFileError, load
from lmrc.methods import calibrated
from lmrc.statistics.ridge import normalised
from lmrc.store import folder

QUICK = {"epochs": 2, "first_epochs": 2, "projections": 100, "random_state": 0}


def blobs(n_classes, each, seed, spread=0.5):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(n_classes), each)
    centres = np.random.default_rng(0).normal(size=(n_classes, 10))
    return (centres[y] + spread * rng.normal(size=(len(y), 10))).astype(np.float32), y


X, Y = blobs(6, 24, seed=1)
X_TEST, Y_TEST = blobs(6, 200, seed=2)


def learnt(rule="auto", tasks=((0, 1), (2, 3)), **settings):
    model = LMRCPlusClassifier(**{"freeze": True, "predict_with": rule, **QUICK, **settings})
    for task in tasks:
        rows = np.isin(Y, task)
        model.partial_fit(X[rows], Y[rows])
    return model


@pytest.fixture(scope="module")
def frozen():
    return learnt()


def known(labels=(0, 1, 2, 3)):
    return X_TEST[np.isin(Y_TEST, labels)], Y_TEST[np.isin(Y_TEST, labels)]


@pytest.mark.parametrize("rule", ["ridge", "lda", "ncm", "ensemble"])
@pytest.mark.parametrize("freeze", [True, False])
def test_probabilities_are_calibrated_and_agree_with_predict(rule, freeze):
    if rule == "ridge" and not freeze:
        pytest.skip("for a frozen backbone")
    share = {} if freeze else {"calibration_share": 0.25, "epochs": 20, "first_epochs": 20}
    model, (x, y) = learnt(rule, freeze=freeze, **share), known()
    p = model.predict_proba(x)
    assert p.shape == (len(x), 4)
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(model.classes_[p.argmax(axis=1)], model.predict(x))
    confidence, accuracy = p.max(axis=1).mean(), model.score(x, y)
    assert abs(confidence - accuracy) < 0.12
    assert np.array_equal(model.outputs(x).similarities, model.similarities(x))


def test_unknown_images_score_higher_and_the_threshold_keeps_known_ones(frozen):
    (x, _), (other, _) = known(), known((4, 5))
    of_known, of_other = frozen.unknown_scores(x), frozen.unknown_scores(other)
    higher = (of_other[:, None] > of_known[None]).mean()  # AUROC
    assert higher > 0.75
    lost = [(of_known > frozen.unknown_threshold(share)).mean() for share in (0.05, 0.3)]
    assert lost[0] < 0.15
    assert 0.15 < lost[1] < 0.5
    with pytest.raises(ValueError, match="above 0 and below 1"):
        frozen.unknown_threshold(1.5)


def as_images(x):
    return np.clip(128 + 25 * np.repeat(x, 10, axis=1).reshape(-1, 10, 10, 1), 0, 255).astype("u1")


@pytest.fixture(scope="module")
def of_images():
    rows = Y < 4
    model = LMRCPlusClassifier(backbone="cnn", freeze=True, predict_with="ridge", **QUICK)
    return model.partial_fit(as_images(X[rows]), Y[rows])


@pytest.mark.parametrize(
    ("given", "rule", "weight", "relative"),
    [("vectors", "ridge", 2, 0.5), ("images", "ridge", 3, 0), ("images", "ncm", 2, 0.5)],
)
def test_the_unknown_score_is_that_of_the_documentation(
    frozen, of_images, given, rule, weight, relative
):
    """The two formulas of docs/trust.md, from statistics alone."""
    x = X_TEST[:50]
    if given == "images":
        frozen, x = copy.copy(of_images).set_params(predict_with=rule), as_images(x)
    outputs, kept = frozen.outputs(x), frozen.calibration_
    x = torch.tensor(x if given == "vectors" else x.transpose(0, 3, 1, 2))
    features, _ = frozen._views(frozen.network_, x)
    features = normalised(features)[0].double()
    means = frozen._rule_tensors["class_means"][0].double() / kept["sizes"][:, None]
    factors = kept["factors"].double()
    variances = factors.square().sum(dim=2)
    directions = factors / variances.sqrt()[..., None]
    rest = (1 - means.square().sum(dim=1)) / means.shape[1]
    away = features[:, None] - means
    along = torch.einsum("ncw,crw->ncr", away, directions).square()
    weights = variances / (variances + rest[:, None])
    residuals = (away.square().sum(dim=2) - (weights * along).sum(dim=2)).sqrt()
    best, predicted = torch.tensor(outputs.similarities).max(dim=1)
    own = residuals[torch.arange(50), predicted]
    unknown = weight * (own - relative * residuals.mean(dim=1))
    unknown -= best / kept[f"{rule}.unit"] + kept[f"{rule}.offsets"][predicted]
    np.testing.assert_allclose(outputs.unknown, unknown, atol=1e-5)


def test_saved_and_loaded(frozen, tmp_path):
    frozen.save(tmp_path / "model")
    again, (x, _) = load(tmp_path / "model"), known()
    for mine, its in zip(frozen.outputs(x), again.outputs(x), strict=True):
        assert np.array_equal(mine, its)
    assert again.unknown_threshold() == frozen.unknown_threshold()
    rows = np.isin(Y, (4, 5))
    a, b = (m.partial_fit(X[rows], Y[rows]).predict_proba(x) for m in (learnt(), again))
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_calibration_without_weights_keeps_its_score(of_images, tmp_path):
    """As saved before there were others for images."""
    of_images.save(tmp_path / "model")
    description, tensors = folder.read(tmp_path / "model")
    old = {name: t for name, t in tensors["calibration"].items() if name != "weights"}
    folder.write(tmp_path / "old", description, {**tensors, "calibration": old})
    model, x = load(tmp_path / "old"), as_images(X_TEST[:50])
    _, residuals = model._scores_and_residuals(
        ("ridge",), model.network_, torch.tensor(x.transpose(0, 3, 1, 2))
    )
    now, before = of_images.outputs(x), model.outputs(x)
    residuals = residuals.detach().numpy()
    own = residuals[np.arange(50), now.similarities.argmax(axis=1)]
    fewer = own + residuals.mean(axis=1)  # 3 r, and 2 (r - mean / 2)
    np.testing.assert_allclose(now.unknown - before.unknown, fewer, atol=1e-5)
    model.partial_fit(as_images(X[Y == 4]), Y[Y == 4])
    assert model.calibration_["weights"].tolist() == [2, 0.5]
    assert of_images.calibration_["weights"].tolist() == [3, 0]


def test_a_forged_calibration_is_refused(frozen, tmp_path):
    frozen.save(tmp_path / "model")
    description, tensors = folder.read(tmp_path / "model")
    calibration = tensors["calibration"]
    for name, wrong in (
        ("ridge.offsets", torch.zeros(9)),
        ("sizes", torch.zeros(4)),
        ("weights", torch.zeros(3)),
    ):
        forged = {**tensors, "calibration": {**calibration, name: wrong}}
        folder.write(tmp_path / "forged", description, forged)
        with pytest.raises(ModelFileError, match="calibration"):
            load(tmp_path / "forged")


@pytest.mark.parametrize("other_score", [False, True])
def test_a_model_saved_before_says_what_to_do_and_has_both_after_a_task(
    frozen, tmp_path, other_score
):
    frozen.save(tmp_path / "model")
    description, tensors = folder.read(tmp_path / "model")
    calibration = {**tensors.pop("calibration"), "map": torch.zeros(2, 2)}
    old = {"calibration": calibration} if other_score else {}
    folder.write(tmp_path / "old", description | {"format": 3}, {**tensors, **old})
    old, (x, _) = load(tmp_path / "old"), known()
    assert not hasattr(old, "predict_proba")
    with pytest.raises(ValueError, match="earlier lmrc"):
        old.outputs(x)
    rows = Y == 1
    old.partial_fit(X[rows], Y[rows])
    assert old.predict_proba(x).shape == (len(x), 4)


def test_forget_rename_and_a_known_class_again():
    model, (x, _) = learnt(), known()
    before = model.calibration_["ridge.counts"].sum()
    model.rename(3, 7)
    assert model.predict_proba(x).shape == (len(x), 4)
    model.forget(1)
    assert model.classes_.tolist() == [0, 2, 7]
    assert model.predict_proba(x).shape == (len(x), 3)
    assert model.calibration_["ridge.counts"].sum() == before - 24
    assert model.unknown_scores(known((1,))[0]).mean() > model.unknown_scores(known((0,))[0]).mean()
    rows = Y == 0
    model.partial_fit(X[rows], Y[rows])
    assert model.calibration_["ridge.counts"][0] == 48


def test_a_task_with_one_image_of_each_class_is_learnt():
    model = LMRCPlusClassifier(freeze=True, **QUICK)
    first = [int(np.flatnonzero(c == Y)[0]) for c in (0, 1)]
    model.partial_fit(X[first], Y[first])
    assert len(model.predict(X[:3])) == 3
    with pytest.raises(ValueError, match="one image of each class"):
        model.unknown_scores(X[:3])
    rows = np.isin(Y, (2, 3))
    model.partial_fit(X[rows], Y[rows])
    assert model.predict_proba(X[:3]).shape == (3, 4)


@pytest.mark.parametrize("rule", ["auto", "lda"])
def test_accuracy_on_images_that_are_left_out_in_turn(rule):
    X, y = blobs(4, 15, seed=3, spread=1.2)
    old, new = (np.flatnonzero(np.isin(y, labels)) for labels in ((0, 1), (2, 3)))
    settings = {"freeze": True, "predict_with": rule, **QUICK}
    first = LMRCPlusClassifier(**settings).partial_fit(X[old], y[old])
    without = {2: 0, 3: 0}
    for i in new:
        rest = new[new != i]
        model = copy.deepcopy(first).partial_fit(X[rest], y[rest])
        without[y[i]] += int(model.predict(X[[i]])[0] == y[i])
    first.partial_fit(X[new], y[new])
    assert sum(without.values()) < (first.predict(X[new]) == y[new]).sum()  # not those it learnt
    labels, predicted = first.left_out_
    assert len(labels) == 30
    assert {i: (predicted[labels == i] == i).sum() for i in (2, 3)} == without


def test_held_out_images_are_not_learnt(monkeypatch):
    trained = []
    learner = LMRCPlusClassifier(freeze=False, calibration_share=0.25, **QUICK)
    train = calibrated.WithClassStatistics._train
    monkeypatch.setattr(
        calibrated.WithClassStatistics,
        "_train",
        lambda self, network, before, samples, n: (
            trained.append(samples) or train(self, network, before, samples, n)
        ),
    )
    learner.partial_fit(X[Y < 2], Y[Y < 2])
    (samples,) = trained
    assert torch.bincount(samples.y).tolist() == [18, 18]
    assert learner.statistics_["counts"].tolist() == [18, 18]
    assert learner.calibration_["ensemble.counts"].tolist() == [6, 6]


@pytest.mark.parametrize(("freeze", "has"), [(True, True), ("later", True), (False, False)])
def test_who_will_have_probabilities_of_a_pretrained_backbone(freeze, has):
    model = LMRCPlusClassifier(backbone="efficientnet-lite0", freeze=freeze)
    assert hasattr(model, "predict_proba") == has


def test_who_has_no_probabilities():
    assert not hasattr(LMRCClassifier(), "predict_proba")
    model = learnt(freeze=False, tasks=((0, 1),))
    assert not hasattr(model, "predict_proba")
    with pytest.raises(ValueError, match="calibration_share"):
        model.unknown_scores(X)
    with pytest.raises(ValueError, match="statistics"):
        learnt(freeze=False, tasks=((0, 1),), statistics="none", predict_with="wta").outputs(X)
    with pytest.raises(ValueError, match="set predict_with to 'lda' or 'ncm' or 'ridge'"):
        learnt("wta").outputs(X)
