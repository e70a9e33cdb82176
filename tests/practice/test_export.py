import json

import numpy as np
import pytest

import lmrc
from lmrc.practice import export
from lmrc.statistics import prediction_rules

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def classifier(shape, backbone, n_classes=5):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (6 * n_classes, *shape), dtype=np.uint8), np.arange(6 * n_classes)
    model = lmrc.LMRCClassifier(epochs=1, backbone=backbone, device="cpu", random_state=0)
    y = y % n_classes
    for part in (y < 2, y == 2, y > 2):
        model.partial_fit(X[part], y[part])
    return model, X


def test_outputs_equal_the_models_for_any_batch_size(place, model, call):
    code, out, err = call("export", model, "made/anew/m.onnx")
    assert (code, err) == (0, "")
    assert "input: uint8 images of shape (n, 8, 8, 1), output: similarities" in out
    session = onnxruntime.InferenceSession("made/anew/m.onnx")
    properties = session.get_modelmeta().custom_metadata_map
    clf = lmrc.load(model)
    assert json.loads(properties["classes"]) == clf.classes_.tolist()
    assert {key: properties[key] for key in ("height", "width", "channels")} == {
        "height": "8",
        "width": "8",
        "channels": "1",
    }
    X = np.random.default_rng(0).integers(0, 256, (33, 8, 8), dtype=np.uint8)
    for n in (1, 2, 33):
        (outputs,) = session.run(["similarities"], {"images": X[:n, ..., None]})
        np.testing.assert_allclose(outputs, clf.similarities(X[:n]), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "backbone"), [((25, 30, 3), "cnn"), ((70, 66, 3), "cnn"), ((10, 10, 3), "resnet18")]
)
def test_backbones_and_heads_of_several_sizes(shape, backbone):
    model, X = classifier(shape, backbone)
    content = export.to_onnx(model)
    export.check_outputs(model, content)
    session = onnxruntime.InferenceSession(content)
    (outputs,) = session.run(None, {"images": X})
    np.testing.assert_allclose(outputs, model.similarities(X), atol=1e-4)


def plus(**settings):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (30, 8, 8, 3), dtype=np.uint8), np.arange(30) % 5
    model = lmrc.LMRCPlusClassifier(
        first_epochs=1, epochs=1, backbone="cnn", device="cpu", random_state=0, **settings
    )
    for part in (y < 2, y >= 2):
        model.partial_fit(X[part], y[part])
    return model, X


@pytest.mark.parametrize("rule", prediction_rules.RULES)
def test_rotations_and_prediction_rules_are_exported(rule, monkeypatch):
    monkeypatch.setattr(prediction_rules, "STEPS", 3)
    model, X = plus(freeze=rule == "ridge")
    content = export.to_onnx(model.set_params(predict_with=rule))
    export.check_outputs(model, content)
    (outputs,) = onnxruntime.InferenceSession(content).run(None, {"images": X})
    np.testing.assert_allclose(outputs, model.similarities(X), atol=1e-4)


def test_rounding_errors_of_torch_itself_are_tolerated(monkeypatch):
    monkeypatch.setattr(prediction_rules, "STEPS", 3)
    model, _ = plus()
    model.classifiers_["linear_bias"] += (
        3e3  # of all classes: they win as before, with fewer digits
    )
    content = export.to_onnx(model)
    export.check_outputs(model, content)
    model.classifiers_["linear_bias"][:, 0] += 10
    with pytest.raises(export.ExportError):
        export.check_outputs(model, content)


def test_a_file_with_other_outputs_is_not_written(place, model, call, monkeypatch):
    other, _ = classifier((8, 8), "mlp", n_classes=4)
    content = export.to_onnx(other)
    monkeypatch.setattr(export, "to_onnx", lambda model: content)
    code, _, err = call("export", model, "m.onnx")
    assert code == 1
    assert "outputs differ from torch's by" in err
    assert not (place / "m.onnx").exists()


def test_only_ties_may_be_predicted_differently():
    expected = np.array([[0.5, 0.50005, 0.1]])
    export.compare(expected, np.array([[0.50005, 0.5, 0.1]]))
    with pytest.raises(export.ExportError, match="differ"):
        export.compare(expected, np.array([[0.5, 0.51, 0.1]]))
    with pytest.raises(export.ExportError, match="differ"):
        export.compare(expected, np.array([[0.5, np.nan, 0.1]]))
    with pytest.raises(export.ExportError, match=r"\(1, 2\)"):
        export.compare(expected, expected[:, :2])
    with pytest.raises(export.ExportError, match="another class"):
        export.compare(np.array([[0.5, 0.50015]]), np.array([[0.50009, 0.50006]]))


def test_models_of_vectors_are_refused(place, call):
    X, y = np.zeros((4, 3), np.float32), np.array([0, 0, 1, 1])
    lmrc.LMRCClassifier(epochs=1).fit(X, y).save("vectors")
    code, _, err = call("export", "vectors", "v.onnx")
    assert code == 1
    assert "are arrays of shape (3,): only models of grey or colour images can be exported" in err


def test_a_file_inside_the_model_is_refused(place, model, call):
    code, _, err = call("export", model, f"{model}/manifest.json")
    assert code == 2
    assert "inside the model's folder" in err
    assert call("info", model)[0] == 0
