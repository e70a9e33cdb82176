from types import MappingProxyType

import numpy as np
import pytest

from lmrc import LMRCClassifier, load

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(5, 8)) * 4
Y = np.repeat(["ant", "bee", "cat", "dog", "eel"], 20)
X = (np.repeat(CENTRES, 20, axis=0) + RNG.normal(size=(100, 8))).astype(np.float32)


@pytest.fixture
def model():
    model = LMRCClassifier(epochs=8, memory_per_class=3, random_state=0)
    for part in (slice(0, 40), slice(40, 60), slice(60, 100)):
        model.partial_fit(X[part], Y[part])
    return model


def test_the_class_is_gone_and_the_others_answer_as_before(model):
    before = model.similarities(X)
    model.forget("bee")
    assert model.classes_.tolist() == ["ant", "cat", "dog", "eel"]
    assert [head.tolist() for head in model.heads_] == [["ant"], ["cat"], ["dog", "eel"]]
    np.testing.assert_allclose(model.similarities(X), np.delete(before, 1, axis=1), atol=1e-6)
    assert model.label_vectors_.shape == (4, 100)
    assert np.bincount(model.memory_.y).tolist() == [3, 3, 3, 3]


def test_a_head_that_governs_nothing_goes_too(model):
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


def test_a_renamed_class_answers_and_learns_on_under_its_new_name(model, tmp_path):
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
    settings = {"epochs": 1, "class_weight": {"ant": 2.0, "bee": 3.0}, "random_state": 0}
    model = LMRCClassifier(**settings).fit(X[:60], Y[:60]).rename("ant", "emmet").forget("bee")
    assert model.class_weight == {"emmet": 2.0}
    model.partial_fit(X[60:], Y[60:])


def test_who_asks_beside_it_gets_the_answer_of_before_or_after(model, monkeypatch):
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


def test_weights_of_a_forgotten_class_go_in_any_mapping():
    weights = MappingProxyType({0: 2.0, 1: 3.0, 5: 1.0})
    model = LMRCClassifier(epochs=1, random_state=0, class_weight=weights)
    model.fit(X[:40], np.arange(40) % 2).rename(0, 9).forget(1)
    assert model.class_weight == {9: 2.0, 5: 1.0}
