import numpy as np
import pytest

from lmrc.evaluation.label_errors import confused_pairs, cross_validate


@pytest.fixture
def clusters():
    rng = np.random.default_rng(0)
    labels = np.repeat(["a", "b", "c"], 30)
    centres = rng.normal(size=(3, 40)).repeat(30, axis=0)
    return (centres + 0.4 * rng.normal(size=(90, 40))).astype(np.float32), labels


def test_flipped_labels_have_the_lowest_margins(clusters):
    features, labels = clusters
    wrong = labels.copy()
    wrong[[3, 40, 80]] = ["b", "c", "a"]
    suggested, margin = cross_validate(features, wrong)
    assert {*np.argsort(margin)[:3].tolist()} == {3, 40, 80}
    assert suggested[[3, 40, 80]].tolist() == ["a", "b", "c"]
    assert (margin[[0, 50, 70]] > 0).all()


def test_a_class_of_two_images_does_not_take_data_from_the_others(clusters, monkeypatch):
    from sklearn.linear_model import LogisticRegression

    features, labels = clusters
    fitted, fit = [], LogisticRegression.fit
    monkeypatch.setattr(
        LogisticRegression, "fit", lambda self, X, y: fitted.append(len(y)) or fit(self, X, y)
    )
    cross_validate(features[:62], labels[:62])  # two of c
    assert min(fitted) >= 0.75 * 62


def test_one_class_or_single_images_are_refused(clusters):
    features, labels = clusters
    for rows in (slice(0, 30), [0, 1, 30]):
        with pytest.raises(ValueError, match="two classes with two images each"):
            cross_validate(features[rows], labels[rows])


def test_pairs_of_classes_that_are_taken_for_one_another():
    labels = np.array(["a"] * 10 + ["b"] * 10)
    suggested = np.array(["a"] * 6 + ["b"] * 4 + ["b"] * 9 + ["a"])
    assert confused_pairs(labels, suggested) == [("a", "b", 0.4)]
