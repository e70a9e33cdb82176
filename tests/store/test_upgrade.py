"""Models that an earlier lmrc has written: the folders of ``format-1`` are as it left them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import lmrc
from lmrc.store.files import read_json
from lmrc.store.upgrade import MODEL_FORMAT, upgraded

FORMER = Path(__file__).parent / "format-1"
ANSWERS = json.loads((FORMER / "answers.json").read_text())


def inputs_of(name):
    return np.array(ANSWERS[name]["inputs"], dtype=ANSWERS[name]["dtype"])


@pytest.fixture(params=ANSWERS)
def former(request, tmp_path):
    return request.param, shutil.copytree(FORMER / request.param, tmp_path / "model")


def test_a_model_of_format_1_predicts_as_it_did_and_goes_on_learning(former):
    name, path = former
    model, x = lmrc.load(path), inputs_of(name)
    assert model.predict(x).tolist() == ANSWERS[name]["predicted"]
    np.testing.assert_allclose(model.decision_function(x), ANSWERS[name]["scores"], atol=1e-4)
    new = "new" if model.classes_.dtype.kind == "U" else 99
    model.set_params(epochs=1).partial_fit(x, np.full(len(x), new)).save(path)
    (version,) = read_json(path / "manifest.json")["versions"]
    assert version["model"]["format"] == MODEL_FORMAT
    again = lmrc.load(path)
    np.testing.assert_array_equal(again.decision_function(x), model.decision_function(x))


@pytest.mark.parametrize("name", ["lmrc", "lmrc+"])
def test_commands_work_with_a_model_of_format_1(name, tmp_path, call):
    path = shutil.copytree(FORMER / name, tmp_path / "model")
    code, out, _ = call("info", str(path))
    assert code == 0
    assert "zero" in out
    assert call("rename", str(path), "zero", "nought")[0] == 0
    assert lmrc.load(path).classes_[1] == "nought"


def test_what_is_malformed_is_left_for_others_to_refuse():
    wrong = {"settings": [], "history_": [3, None]}
    assert upgraded(wrong, {})[0] == wrong


@pytest.mark.parametrize(
    ("settings", "cls"),
    [
        ({"scale": 16.0, "mirror": False}, "LMRCClassifier"),
        ({"rotations": "all"}, "LMRCPlusClassifier"),
        ({"statistics": "full"}, "LMRCPlusClassifier"),
    ],
)
def test_an_lmrc_with_extensions_is_an_lmrc_plus(settings, cls):
    former = {"class": "LMRCClassifier", "format": 2}
    now = upgraded(former | {"settings": settings | {"augment": "auto", "epochs": 7}}, {})[0]
    assert now["class"] == cls
    assert now["settings"]["epochs"] == 7
    if cls == "LMRCClassifier":
        assert now["settings"].keys() == {"augment", "epochs"}
    else:
        assert now["settings"]["schedule"] == "halving"
        assert now["settings"]["feature_layers"] == 1
        assert now["settings"]["strong_augment"] is False  # what "auto" meant
