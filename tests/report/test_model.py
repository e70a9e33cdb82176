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


def test_the_page_tells_task_id_and_task_aware_accuracy(description, score):
    assert build(description, score).findings == [
        "The task-ID accuracy is 66.7 %; with the task known, accuracy would be 100.0 %."
    ]
    page = assemble(description, build(description, score))
    assert "A task is one learn that brought new classes. Task-ID accuracy: how often" in page


@pytest.mark.parametrize("share", [1.0, 0.9996])
def test_task_aware_accuracy_is_left_out_where_the_task_is_always_right(share, description, score):
    always = replace(score, task_id_accuracy=share, task_aware_accuracy=0.975)
    assert build(description, always).findings == ["The task-ID accuracy is 100.0 %."]


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
