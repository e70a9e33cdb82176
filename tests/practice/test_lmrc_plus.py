"""LMRC+ from the command line."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import lmrc
from lmrc.practice import export


@pytest.fixture
def plus(place, trained):
    """The name of an LMRC+ model that knows four digits from two tasks."""
    shutil.copytree(trained("--method", "lmrc+", "--learning-rate", "0.01"), "m")
    return "m"


def test_learn_info_and_predict(plus, call):
    model = lmrc.load(plus)
    assert type(model) is lmrc.LMRCPlusClassifier
    assert model.label_vectors_.shape == (4, 4, 100)
    code, out, _ = call("info", plus)
    assert code == 0
    assert "exemplars: none" in out
    assert "class statistics of the features: low-rank, " in out
    assert "more classes per task, each in four rotations" in out
    info = json.loads(call("info", plus, "--json")[1])
    assert info["statistics"] == "low-rank"
    assert info["exemplars"] == 0
    code, out, _ = call("predict", plus, "test")
    assert code == 0
    assert len(out.splitlines()) == 40


def test_export_reports_scores(plus, call, monkeypatch):
    monkeypatch.setattr(export, "to_onnx", lambda model: b"")
    monkeypatch.setattr(export, "check_outputs", lambda model, content: None)
    code, out, _ = call("export", plus, "m.onnx")
    assert code == 0
    assert "output: scores" in out


def test_forget_removes_class_statistics(plus, place, call):
    before = {p.name for p in (place / plus).glob("statistics-*")}
    assert call("forget", plus, "two")[0] == 0
    kept = before & {p.name for p in (place / plus).glob("statistics-*")}
    assert len(kept) == 1  # that of the version before the class was learnt
    model = lmrc.load(plus)
    assert model.classes_.tolist() == ["one", "zero", "three"]
    assert len(model.statistics_["means"]) == 3


def test_method_and_rotations_are_fixed_by_the_first_learn(plus, call):
    for option in (("--method", "lmrc"), ("--rotations", "none")):
        code, _, err = call("learn", plus, "week1", *option)
        assert code == 2
        assert "fixed by the first learn" in err


def test_an_untrained_prediction_rule_is_refused_before_images_are_read(place, learn, call):
    learn("week1", "-q", "--method", "lmrc+", "--set", "predict_with=lda", fast=True)
    lmrc.load("m").set_params(predict_with="ensemble").save("m")
    for words in (("predict", "m", "gone.png"), ("evaluate", "m", "other"), ("export", "m", "x")):
        code, out, err = call(*words)
        assert (code, out) == (1, "")
        assert err.startswith("lmrc: the model holds nothing for predict_with='ensemble'")
    learn("week2", "-q")
    assert call("predict", "m", "test")[0] == 0


@pytest.mark.parametrize("size", [None, "10x8"])
def test_non_square_images_are_refused_before_decoding(place, learn, monkeypatch, size):
    (place / "photos" / "ape").mkdir(parents=True)
    Image.new("L", (8, 8 if size else 10)).save(place / "photos" / "ape" / "1.png")
    monkeypatch.setattr("lmrc.practice.source.read_files", None)
    options = ("--rotations", "all", *(("--size", size) if size else ()))
    err = learn("photos", "--method", "lmrc+", *options, fast=True, code=1)[2]
    assert "rotations need square images, and X holds some of 10×8 pixels" in err
    assert not (place / "m").exists()


def test_statistics_that_do_not_fit_are_refused(plus):
    """A forged file with valid checksums."""
    model = lmrc.load(plus)
    model.statistics_ = model.statistics_ | {"means": model.statistics_["means"][:, :, :5]}
    model.save("forged")
    with pytest.raises(lmrc.ModelFileError, match="statistics"):
        lmrc.load("forged")


def test_evaluate_uses_the_predictions_of_predict(plus, call):
    code, out, _ = call("evaluate", plus, "test", "--json")
    assert code == 0
    predicted = call("predict", plus, "test")[1]
    right = sum(line.split()[1] in line.split()[0] for line in predicted.splitlines())
    assert json.loads(out)["accuracy"] == right / 40
    page = Path(json.loads(out)["page"]).read_text("utf-8")
    assert "scores of the fine-tuned heads and of a linear classifier of the features" in page
