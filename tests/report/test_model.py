"""The page of one model."""

from dataclasses import replace

import numpy as np
import pytest

from lmrc.evaluation.model import score_model
from lmrc.report.model import build
from lmrc.report.page import assemble

HEADS = [np.array(["cat", "dog"]), np.array(["fox"])]


@pytest.fixture
def score():
    """Of three images one is wrong, as a class of another task."""
    similarities = np.array([[0.9, 0.1, 0.2], [0.3, 0.2, 0.7], [0.1, 0.2, 0.9]])
    return score_model(similarities, HEADS, np.array(["cat", "cat", "fox"]))


def test_the_page_begins_with_the_mistakes(description, score):
    found = build(description, score).findings
    assert found == ["Most frequent mistakes: 1 of 2 cat taken for fox."]
    assert build(description, replace(score, mistakes=[])).findings == []


def test_measures_of_tasks_are_told_where_there_are_several(description, score):
    measures = "The task-ID accuracy is 66.7 %, the task-aware accuracy 100.0 %."
    page = assemble(description, build(description, score))
    assert measures in page.replace("&nbsp;", " ")
    one = replace(score, heads=[["cat", "dog", "fox"]])
    assert "task-ID accuracy" not in assemble(description, build(description, one))


def test_classes_without_test_images_are_named(description, score):
    assert build(description, score).notes == ["no test images of 1 known class: dog"]
    many = replace(score, heads=[["cat", "fox"], [str(i) for i in range(11)]])
    vectors = replace(description, recipe={"input shape": [64]})
    told = "no test vectors of 11 known classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …"
    assert build(vectors, many).notes == [told]
    assert build(description, replace(score, heads=[["cat"], ["fox"]])).notes == []


def test_the_settings_are_those_in_effect(description, score):
    settings = {"schedule": "cosine", "halve_at": [0.5], "weights": None, "random_state": 7}
    settings["strong_augment"] = True
    settings |= {"test_time_flip": True, "augment": "none", "verbose": 1, "compile": "auto"}
    html = assemble(description, build(description, replace(score, settings=settings)))
    assert "<dt>random state</dt><dd>7</dd>" in html
    assert "<dt>test time flip</dt><dd>no</dd>" in html
    for name in ("halve at", "strong augment", "weights", "verbose", "compile"):
        assert f"<dt>{name}</dt>" not in html


def test_names_of_classes_do_not_become_part_of_the_page(description):
    heads = [np.array(["<script>a", "<script>b"]), np.array(["<script>c"])]
    score = score_model(np.array([[0.9, 0.1, 0.2]]), heads, np.array(["<script>c"]))
    html = assemble(description, build(description, score))
    assert "<script" not in html
    assert "<td>&lt;script&gt;a</td>" in html  # the predicted class
