import numpy as np

from lmrc.evaluation.model import reject_threshold, score_model

HEADS = [np.array(["ant", "bee"]), np.array(["cat"])]


def test_each_class_has_its_images_and_its_accuracy():
    similarities = np.eye(3)[[0, 0, 1, 2, 2]]  # of two ants, a bee and two bees taken for cats
    score = score_model(similarities, HEADS, np.array(["ant"] * 2 + ["bee"] * 3))
    assert score.per_class == [["ant", 2, 1.0], ["bee", 3, 1 / 3]]  # and no cat, as there is none
    assert score.mistakes == [["bee", "cat", 2]]


def test_where_no_threshold_tells_them_apart_all_images_are_kept():
    assert reject_threshold(np.array([0.2, 0.3]), np.array([0.9])) == (0.199, 1.0, 0.0)
