import json
import shutil

import numpy as np
import pytest

import lmrc
from lmrc.evaluation.model import reject_threshold
from lmrc.practice.source import read_source


def test_evaluate_prints_classes_and_writes_a_report(place, model, call):
    code, out, err = call("evaluate", model, "test")
    assert (code, err) == (0, "")
    assert "| **all** | 40 |" in out
    assert "The task-ID accuracy is" in out
    page = place / "runs" / "evaluate-m" / "report.html"
    assert f"Report: {page.relative_to(place)}" in out
    text = page.read_text("utf-8")
    assert "task-aware accuracy" in text
    for words in (
        "m on test",
        "Accuracy per class",
        "three",
        "Confusion between tasks",
        "lmrc evaluate m test",
    ):
        assert words in text
    assert call("report", "runs/evaluate-m")[0] == 0
    assert page.read_text("utf-8") == text


def test_the_report_shows_the_values_chosen_for_auto(place, call):
    fast = ("--epochs", "1", "--batch-size", "16", "--device", "cpu", "--quiet")
    assert call("learn", "m", "week1", "--set", "schedule=cosine", *fast)[0] == 0
    assert call("evaluate", "m", "test")[0] == 0
    text = (place / "runs" / "evaluate-m" / "report.html").read_text("utf-8")
    settings = text.partition('id="settings"')[2]
    assert "<dt>backbone</dt><dd>cnn</dd>" in settings
    assert "<dt>augment</dt><dd>none</dd>" in settings
    assert ">None<" not in settings
    assert "<dt>halve at</dt>" not in settings


def test_json_has_the_metrics(place, model, call):
    figures = json.loads(call("evaluate", model, "test", "--json", "--out", "page")[1])
    samples = read_source(place / "test", shape=(1, 8, 8))
    assert figures["accuracy"] == pytest.approx(lmrc.load(model).score(samples.X, samples.y))
    assert set(figures["per_class"]) == {"one", "zero", "three", "two"}
    assert (place / "page" / "classes.csv").read_text().startswith("class,images,accuracy\n")


def test_unknown_images_give_a_threshold(place, model, call):
    words = ["evaluate", model, "test", "--unknown", "other"]
    _, out, _ = call(*words)
    assert "--reject-below 0." in out
    found = json.loads(call(*words, "--json")[1])["reject_below"]
    predicted = call("predict", model, "test", "--reject-below", str(found["threshold"]))[1]
    kept = sum("  unknown  " not in line for line in predicted.splitlines())
    assert kept / 40 == found["kept"]
    assert "--unknown other --out" in (place / "runs/evaluate-m/report.html").read_text("utf-8")


def test_a_useless_threshold_is_reported(place, model, call):
    assert "no threshold separates" not in call("evaluate", model, "test", "--unknown", "other")[1]
    out = call("evaluate", model, "test", "--unknown", "test")[1]
    assert "no threshold separates known from unknown images well; the best: --reject-below" in out


def test_a_threshold_separates_similarities_that_are_very_close():
    known, unknown = np.float32([0.99998, 0.99999, 0.99997]), np.float32([0.99994, 0.99995])
    threshold, kept, rejected = reject_threshold(known, unknown)
    assert (kept, rejected) == (1.0, 1.0)
    assert unknown.max() < float(str(threshold)) <= known.min()


def test_a_threshold_maximises_balanced_accuracy():
    """All known images and 45 % of the unknown ones, not 70 % of each (more by their product)."""
    known = np.repeat([0.2, 0.9], [3, 7])
    unknown = np.repeat([0.1, 0.3, 0.95], [9, 5, 6])
    assert reject_threshold(known, unknown) == pytest.approx((0.15, 1.0, 0.45))


def test_unknown_classes_are_left_out(place, model, call):
    shutil.copytree(place / "other" / "four", place / "test" / "four")
    _, out, err = call("evaluate", model, "test")
    assert "left out 10 image(s) of classes unknown to the model: four" in err
    assert "| **all** | 40 |" in out
    code, _, err = call("evaluate", model, "other")
    assert code == 1
    assert "has none of the model's classes, only four" in err


def test_test_images_are_preferred(place, model, call):
    shutil.copytree(place / "week1", place / "mixed" / "train")
    shutil.copytree(place / "test", place / "mixed" / "test")
    assert "| **all** | 40 |" in call("evaluate", model, "mixed")[1]


def test_folders_of_other_experiments_are_not_overwritten(place, model, call):
    (place / "page").mkdir()
    (place / "page" / "records.jsonl").write_text("{}\n")
    code, _, err = call("evaluate", model, "test", "--out", "page")
    assert code == 1
    assert "another experiment" in err
    (place / "void").mkdir()
    assert "needs at least one" in call("evaluate", model, "test", "--unknown", "void")[2]
