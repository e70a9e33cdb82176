import copy
import json
from types import MappingProxyType

import numpy as np
import pytest
import torch

from lmrc import LabelMapping, LMRCClassifier, LMRCPlusClassifier, load
from lmrc.data.datasets import digits
from lmrc.methods.rng import LABELS, derived_seed
from lmrc.statistics import classifiers
from lmrc.training.memory import Memory

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(5, 8)) * 4
Y = np.repeat(["ant", "bee", "cat", "dog", "eel"], 20)
X = (np.repeat(CENTRES, 20, axis=0) + RNG.normal(size=(100, 8))).astype(np.float32)
DIGITS = digits()
FLAT = [x.reshape(len(x), -1).astype(np.float32) for x in (DIGITS.X_train, DIGITS.X_test)]


@pytest.fixture
def model():
    model = LMRCClassifier(epochs=8, memory_per_class=3, random_state=0)
    for part in (slice(0, 40), slice(40, 60), slice(60, 100)):
        model.partial_fit(X[part], Y[part])
    return model


def test_the_class_is_forgotten_and_the_others_are_predicted_as_before(model):
    before = model.similarities(X)
    model.forget("bee")
    assert model.classes_.tolist() == ["ant", "cat", "dog", "eel"]
    assert [head.tolist() for head in model.heads_] == [["ant"], ["cat"], ["dog", "eel"]]
    np.testing.assert_allclose(model.similarities(X), np.delete(before, 1, axis=1), atol=1e-6)
    assert model.label_vectors_.shape == (4, 100)
    assert np.bincount(model.memory_.y).tolist() == [3, 3, 3, 3]


def test_a_head_without_classes_is_removed(model):
    before = model.similarities(X)
    model.forget("cat")
    assert len(model.heads_) == len(model.network_.head) == 2
    np.testing.assert_allclose(model.similarities(X), np.delete(before, 2, axis=1), atol=1e-6)


def test_a_model_that_forgot_is_saved_and_goes_on_learning(model, tmp_path):
    model.forget("bee").forget("ant").save(tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    again.partial_fit(X[:40], Y[:40])
    assert again.classes_.tolist() == ["cat", "dog", "eel", "ant", "bee"]
    assert again.score(X[:40], Y[:40]) > 0.9


def test_what_cannot_be_forgotten(model):
    with pytest.raises(ValueError, match="'yak' is none of"):
        model.forget("yak")
    for label in ("ant", "bee", "cat", "dog"):
        model.forget(label)
    with pytest.raises(ValueError, match="only class"):
        model.forget("eel")
    assert model.classes_.tolist() == ["eel"]


def test_a_renamed_class_is_predicted_and_learnt_under_its_new_name(model, tmp_path):
    before = model.similarities(X)
    model.rename("bee", "bumblebee").save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.classes_.tolist() == ["ant", "bumblebee", "cat", "dog", "eel"]
    assert [head.tolist() for head in again.heads_] == [
        ["ant", "bumblebee"],
        ["cat"],
        ["dog", "eel"],
    ]
    np.testing.assert_array_equal(again.similarities(X), before)
    again.partial_fit(X[20:40], np.repeat("bumblebee", 20))  # a class that is known opens no head
    assert len(again.heads_) == 3
    assert (again.predict(X[20:40]) == "bumblebee").mean() > 0.9


def test_what_a_class_cannot_be_called(model):
    for label, name, said in (
        ("yak", "gnu", "'yak' is none of"),
        ("bee", "cat", "'cat' is a class already"),
        ("bee", 3, "3 is not of the same type as 'bee'"),
        ("bee", " ", "cannot be empty"),
    ):
        with pytest.raises(ValueError, match=said):
            model.rename(label, name)
    assert model.classes_.tolist() == ["ant", "bee", "cat", "dog", "eel"]


def test_weights_of_classes_follow_their_names():
    weights = MappingProxyType({"ant": 2.0, "bee": 3.0, "yak": 1.0})  # a mapping of any kind
    model = LMRCClassifier(epochs=1, class_weight=weights, random_state=0)
    model.fit(X[:60], Y[:60]).rename("ant", "emmet").forget("bee")
    assert model.class_weight == {"emmet": 2.0, "yak": 1.0}
    model.partial_fit(X[60:], Y[60:])


def test_a_parallel_prediction_is_that_of_before_or_after(model, monkeypatch):
    """As when another thread forgets a class between the scores and the names."""
    scores = type(model).scores

    def forget_meanwhile(self, network, x):
        found = scores(self, network, x)
        if "ant" in model.classes_:
            model.forget("ant")
        return found

    before = model.predict(X[20:])
    monkeypatch.setattr(type(model), "scores", forget_meanwhile)
    np.testing.assert_array_equal(model.predict(X[20:]), before)
    np.testing.assert_array_equal(model.predict(X[20:]), before)
    assert "ant" not in model.classes_


def test_numbers_stay_numbers():
    model = LMRCClassifier(epochs=1, random_state=0).fit(X[:40], np.arange(40, dtype=np.int16) % 2)
    model.rename(1, np.int64(5))
    assert model.classes_.dtype == np.int64
    assert model.classes_.tolist() == [0, 5]
    assert model.rename(5, 70_000).classes_.tolist() == [0, 70_000]


def test_large_numbers_stay_whole_and_those_beyond_64_bits_are_refused():
    model = LMRCClassifier(epochs=1, random_state=0).fit(X[:40], np.arange(40) % 2)
    model.rename(1, 4006381333955).rename(0, 2**53 + 1)
    assert model.classes_.tolist() == [2**53 + 1, 4006381333955]
    assert model.classes_.dtype == np.int64
    with pytest.raises(ValueError, match="too large"):
        model.rename(4006381333955, 2**63)


@pytest.mark.parametrize("label", [[0, 1], True, np.array([0])])
def test_what_is_not_one_label_is_none_of_the_classes(label):
    model = LMRCClassifier(epochs=1, random_state=0).fit(X[:40], np.arange(40) % 2)
    for amend in (model.forget, lambda label: model.rename(label, 7)):
        with pytest.raises(ValueError, match="is none of the classes"):
            amend(label)
    assert model.predict(X[:40]).shape == (40,)


def test_the_same_calls_give_the_same_model_after_a_class_was_forgotten(model):
    again = copy.copy(model)
    for one in (model, again):
        one.forget("bee").partial_fit(X[20:40], Y[20:40])
    assert model.seed_ == again.seed_ != 0
    np.testing.assert_array_equal(model.label_vectors_, again.label_vectors_)
    np.testing.assert_array_equal(model.similarities(X), again.similarities(X))


def test_the_length_of_a_name_goes_with_it(model, tmp_path):
    model.rename("bee", "bumblebee").rename("cat", "caterpillar").rename("caterpillar", "kitten")
    assert model.classes_.dtype == "<U9"
    model.forget("bumblebee").save(tmp_path / "m")
    text = (tmp_path / "m" / "manifest.json").read_text()
    assert '"label_type": "<U6"' in text
    assert load(tmp_path / "m").classes_.dtype == model.heads_[0].dtype == "<U6"
    labels = np.array(["ant", "hippopotamus"] * 20)  # a name that is only in the user's array
    few = LMRCClassifier(epochs=1, random_state=0).fit(X[:40:2], labels[::2])
    few.save(tmp_path / "few")
    assert '"label_type": "<U3"' in (tmp_path / "few" / "manifest.json").read_text()


@pytest.mark.parametrize("statistics", ["low-rank", "full", "shared"])
def test_what_is_left_depends_on_nothing_that_a_forgotten_class_had(statistics):
    settings = {"rotations": "none", "objective": "cosine", "statistics": statistics}
    model = LMRCPlusClassifier(
        **settings, epochs=1, first_epochs=1, memory_per_class=2, random_state=0
    )
    model.fit(X[:60], Y[:60]).partial_fit(X[60:], Y[60:])
    other = copy.copy(model)
    other.statistics_ = {name: tensor.clone() for name, tensor in model.statistics_.items()}
    for tensor in other.statistics_.values():
        if len(tensor.shape) and len(tensor) == 5:
            tensor[1] += 1  # as if it were another class
    other.memory_ = Memory(model.memory_.x + (model.memory_.y == 1)[:, None], model.memory_.y)
    other.classifiers_ = {name: tensor + 1 for name, tensor in model.classifiers_.items()}
    for one in (model, other):
        one.forget("bee").check_saved()
    for name in ("statistics_", "classifiers_"):
        for key, tensor in getattr(model, name).items():
            assert torch.equal(tensor, getattr(other, name)[key]), key
    assert model.score(X[Y != "bee"], Y[Y != "bee"]) == other.score(X[Y != "bee"], Y[Y != "bee"])


def test_prediction_is_tuned_as_it_was_before_a_class_was_forgotten(monkeypatch):
    """On pseudo-features that are cut at 0 where those of the network are, and on exemplars'."""
    seen = []
    tune = classifiers.finetune

    def noted(*given, **how):
        seen.append((how["non_negative"], {row: x.shape[1] for row, x in how["real"].items()}))
        return tune(*given, **how)

    monkeypatch.setattr(classifiers, "finetune", noted)
    plain = {"rotations": "none", "objective": "cosine", "first_epochs": 1}
    for backbone, memory in (("mlp", 2), (torch.nn.Linear(8, 4), 0)):
        model = LMRCPlusClassifier(backbone=backbone, memory_per_class=memory, **plain)
        model.fit(X, Y).forget("bee")
    assert seen == [(True, {}), (True, dict.fromkeys(range(4), 2)), (False, {}), (False, {})]


# --- An attack from outside: recognise the class from the folder alone ----------------------------


def taught_digits(cls, **settings):
    model = cls(random_state=0, device="cpu", **settings)
    for task in (range(5), range(5, 10)):
        now = np.flatnonzero(np.isin(DIGITS.y_train, task))[:500]
        model.partial_fit(FLAT[0][now], DIGITS.y_train[now])
    return model


def forgotten(model, path, label):
    """Return a copy of the model that forgot a class, as whoever has the folder sees it."""
    copy.copy(model).forget(label).save(path)
    return load(path, device="cpu")


def recognised(score, label):
    """Return the share of a class's test images that a score finds with 1 % false alarms."""
    own = DIGITS.y_test == label
    return float((score[own] > score[~own].quantile(0.99)).float().mean())


def test_rows_of_the_others_do_not_give_a_forgotten_class_back(tmp_path, monkeypatch):
    """They were centred on the mean of all classes: minus their sum was the row that had gone."""
    monkeypatch.setattr(classifiers, "STEPS", 30)
    plain = {"rotations": "none", "objective": "cosine", "freeze": False}
    model = taught_digits(LMRCPlusClassifier, first_epochs=15, epochs=10, **plain)
    for label in (0, 7):
        after = forgotten(model, tmp_path / f"{label}", label)
        with torch.no_grad():
            features = after.network_.encoder(torch.as_tensor(FLAT[1]))
        for way in ("lda", "linear"):
            row = -after.classifiers_[f"{way}_weight"].sum(dim=1)[0]
            assert recognised(features @ row, label) < 0.2, (way, label)


def test_neither_the_seed_nor_the_head_gives_a_label_vector_back(tmp_path):
    model = taught_digits(LMRCClassifier, epochs=25)
    vectors, found = torch.as_tensor(model.label_vectors_), []
    for label in range(10):
        first = label - label % 5
        own = vectors[label]
        others = vectors[[row for row in range(first, first + 5) if row != label]]
        left = forgotten(model, tmp_path / f"{label}", label)
        said = json.loads((tmp_path / f"{label}" / "manifest.json").read_text())
        said = said["versions"][-1]["model"]
        for seed in (said["seed_"], said["settings"]["random_state"]):
            stream = derived_seed(seed, label // 5, LABELS)
            drawn = LabelMapping(random_state=stream, vectors=vectors[:first]).extend(5)
            assert np.abs(drawn @ own.numpy()).max() < 0.5
        with torch.no_grad():
            responses = left.network_(torch.as_tensor(FLAT[1]))[:, label // 5]
        # By the vector, which whoever guesses the seed has; and by being far from all others.
        by_vector = recognised(responses @ own, label)
        found.append([by_vector, recognised(-(responses @ others.T).amax(dim=1), label)])
        # What a head has learnt is in the span of its label vectors, of which one is missing.
        weight = left.network_.head.weight[label // 5].detach()
        unknown = weight - torch.linalg.pinv(others) @ others @ weight
        assert abs(torch.linalg.svd(unknown)[0][:, 0] @ own) < 0.5
    assert np.mean(found, axis=0).max() < 0.3
