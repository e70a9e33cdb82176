"""Models that an earlier lmrc has written: the folders of ``format-1`` and ``format-2``."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import lmrc
from lmrc.methods.persistence import model_from
from lmrc.store import folder
from lmrc.store.files import read_json
from lmrc.store.upgrade import MODEL_FORMAT, upgraded

HERE = Path(__file__).parent
ANSWERS = {
    f"{folder}/{name}": answers
    for folder in ("format-1", "format-2")
    for name, answers in json.loads((HERE / folder / "answers.json").read_text()).items()
}


class Mine(lmrc.LMRCClassifier):
    """A user's own class, and a small backbone: those of format 2."""


def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU())


BROUGHT = {
    "format-2/mine": {"method": Mine, "backbone": small},
    "format-2/extended": {"backbone": small},  # an LMRC with rotations and statistics
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_model_of_an_earlier_format_predicts_as_it_did_and_goes_on_learning(name, tmp_path):
    path = shutil.copytree(HERE / name, tmp_path / "model")
    answers, how = ANSWERS[name], BROUGHT.get(name, {})
    x = np.array(answers["inputs"], dtype=answers["dtype"])
    model = lmrc.load(path, **how)
    assert model.predict(x).tolist() == answers["predicted"]
    np.testing.assert_allclose(model.decision_function(x), answers["scores"], atol=1e-4)
    if x.shape[-1] == 3:  # what "auto" meant
        assert model.augmentation_ == "crop+flip"
    new = "new" if model.classes_.dtype.kind == "U" else 99
    model.set_params(epochs=1).partial_fit(x, np.full(len(x), new)).save(path)
    (version,) = read_json(path / "manifest.json")["versions"]
    assert version["model"]["format"] == MODEL_FORMAT
    again = lmrc.load(path, **how)
    np.testing.assert_array_equal(again.decision_function(x), model.decision_function(x))


def test_a_model_with_a_parameter_that_was_removed_loads(tmp_path, call):
    x, y = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
    model = lmrc.LMRCClassifier(epochs=1, random_state=0).fit(x, y)
    model.save(tmp_path / "now")
    description, tensors = folder.read(tmp_path / "now")
    description["settings"]["swa_epochs"] = 3
    folder.write(tmp_path / "then", description, tensors)
    again = lmrc.load(tmp_path / "then")
    np.testing.assert_array_equal(again.decision_function(x), model.decision_function(x))
    assert call("info", str(tmp_path / "then"))[0] == 0


@pytest.mark.parametrize("name", ["lmrc", "lmrc+"])
def test_commands_work_with_a_model_of_format_1(name, tmp_path, call):
    path = shutil.copytree(HERE / "format-1" / name, tmp_path / "model")
    code, out, _ = call("info", str(path))
    assert code == 0
    assert "zero" in out
    assert call("rename", str(path), "zero", "nought")[0] == 0
    assert lmrc.load(path).classes_[1] == "nought"


@pytest.mark.usefixtures("small_pretrained")
def test_an_efficientnet_of_format_3_has_the_features_of_one_layer(tmp_path, reseal):
    x = np.random.default_rng(0).integers(256, size=(8, 32, 32, 3), dtype=np.uint8)
    how = {"backbone": "efficientnet-lite0@32", "freeze": True, "projections": 20}
    model = lmrc.LMRCPlusClassifier(**how, feature_layers=1, random_state=0)
    model.partial_fit(x, np.arange(8) % 2).save(tmp_path)

    def as_then(manifest):
        (version,) = manifest["versions"]
        version["model"]["format"] = manifest["format_version"] = 3
        version["model"]["settings"]["feature_layers"] = 2  # the default, then without effect

    reseal(tmp_path, as_then)
    again = lmrc.load(tmp_path)
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    again.partial_fit(x, np.arange(8) % 2)


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


def test_an_extension_of_a_users_own_lmrc_is_not_left_out_silently():
    """Format 2 had them in LMRC; the user derives the class from LMRC+ now."""
    description, tensors = folder.read(HERE / "format-2" / "mine")
    description["settings"]["rotations"] = "all"
    with pytest.raises(lmrc.ModelFileError, match="'rotations'"):
        model_from("mine", description, tensors, **BROUGHT["format-2/mine"])
