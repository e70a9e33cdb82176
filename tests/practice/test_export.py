import copy
import json

import numpy as np
import pytest
from torch import nn

import lmrc
from lmrc.nets.backbones import ResNet
from lmrc.practice import export

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("onnx_operators")


def classifier(shape, backbone, **settings):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (30, *shape), dtype=np.uint8), np.arange(30) % 5
    model = lmrc.LMRCClassifier(
        epochs=1, backbone=backbone, device="cpu", random_state=0, **settings
    )
    for part in (y < 2, y == 2, y > 2):
        model.partial_fit(X[part], y[part])
    return model, X


@pytest.fixture(scope="module")
def exported(onnx_operators):
    """A model of grey images and its ONNX file."""
    model, _ = classifier((8, 8), "mlp")
    return model, export.to_onnx(model)


def test_outputs_equal_the_models_for_any_batch_size(exported):
    model, content = exported
    session = onnxruntime.InferenceSession(content)
    properties = session.get_modelmeta().custom_metadata_map
    assert json.loads(properties["classes"]) == model.classes_.tolist()
    assert {key: properties[key] for key in ("height", "width", "channels")} == {
        "height": "8",
        "width": "8",
        "channels": "1",
    }
    X = np.random.default_rng(0).integers(0, 256, (33, 8, 8), dtype=np.uint8)
    for n in (1, 2, 33):
        (outputs,) = session.run(["similarities"], {"images": X[:n, ..., None]})
        np.testing.assert_allclose(outputs, model.similarities(X[:n]), atol=1e-5)


def test_the_file_is_written_and_described(exported, tmp_path, monkeypatch, call):
    model, content = exported
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "to_onnx", lambda model: content)
    model.save("m")
    code, out, err = call("export", "m", "made/anew/m.onnx")
    assert (code, err) == (0, "")
    assert "input: uint8 images of shape (n, 8, 8, 1), output: similarities" in out
    assert (tmp_path / "made" / "anew" / "m.onnx").read_bytes() == content


def test_a_file_with_other_outputs_is_not_written(exported, tmp_path, monkeypatch, call):
    _, content = exported
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export, "to_onnx", lambda model: content)
    other, _ = classifier((8, 8), "mlp", learning_rate=1e-6)
    other.save("m")
    code, _, err = call("export", "m", "m.onnx")
    assert code == 1
    assert "outputs differ from torch's by" in err
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    ("shape", "backbone"),
    [
        ((70, 66, 3), "cnn"),  # averages windows of several sizes
        ((10, 10, 3), "resnet"),
    ],
)
def test_backbones_and_heads_of_several_sizes(shape, backbone):
    if backbone == "resnet":  # of two blocks
        backbone = ResNet((3, 10, 10), (1, 1, 1, 1), channels=8)
        backbone.layer3 = backbone.layer4 = nn.Identity()
        backbone.width_before = 16
    model, X = classifier(shape, backbone)
    check_similarities(model, X)


def check_similarities(model, X):
    content = export.to_onnx(model)
    export.check_outputs(model, content)
    (outputs,) = onnxruntime.InferenceSession(content).run(None, {"images": X})
    np.testing.assert_allclose(outputs, model.similarities(X), atol=1e-4)


def learnt(**settings):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (24, 8, 8, 3), dtype=np.uint8), np.arange(24) % 4
    settings = {"backbone": "mlp", "random_state": 0} | settings
    model = lmrc.LMRCPlusClassifier(first_epochs=1, epochs=1, device="cpu", **settings)
    for part in (y < 2, y >= 2):
        model.partial_fit(X[part], y[part])
    return model, X


@pytest.fixture(scope="module")
def plus():
    """A model of LMRC+, and images."""
    return learnt()


# "ensemble" is of "finetuned", "wta" with other weights, and "linear"; "lda" is below.
@pytest.mark.parametrize("rule", ["ensemble", "ncm"])
def test_rotations_and_prediction_rules_are_exported(plus, rule):
    model, X = plus
    check_similarities(model.set_params(predict_with=rule), X)


def test_networks_of_earlier_tasks_are_exported():
    model, X = learnt(predict_with="snapshots", calibration_share=0.2)
    content = export.to_onnx(model)
    check_export(model, X, content)
    with pytest.raises(export.ExportError):
        export.check_outputs(model.set_params(predict_with="ensemble"), content)


@pytest.fixture(scope="module")
def frozen():
    """A model on a frozen backbone, with all prediction rules, and images."""
    return learnt(freeze=True, projections=50, predict_with="ensemble")


@pytest.fixture(scope="module")
def by_lda(frozen):
    """The ONNX file of that model when it predicts by LDA."""
    return export.to_onnx(frozen[0].set_params(predict_with="lda"))


# The tutorial exports a pre-trained backbone, whose rule is "ridge".
@pytest.mark.parametrize("rule", ["ensemble", "lda"])
def test_prediction_rules_of_exact_statistics_are_exported(frozen, by_lda, rule):
    model, X = frozen
    model.set_params(predict_with=rule)
    check_export(model, X, by_lda if rule == "lda" else export.to_onnx(model))


def check_export(model, X, content):
    export.check_outputs(model, content)
    session = onnxruntime.InferenceSession(content)
    names = ["similarities", "probabilities", "unknown"]
    assert [output.name for output in session.get_outputs()] == names
    outputs, expected = session.run(None, {"images": X}), model.outputs(X)
    for found, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-3)
    assert (outputs[0].argmax(axis=1) == expected[0].argmax(axis=1)).all()
    about = session.get_modelmeta().custom_metadata_map
    assert float(about["unknown_threshold"]) == model.unknown_threshold(0.05)
    assert about["unknown_share"] == "0.05"


@pytest.mark.usefixtures("small_pretrained")
def test_an_adapted_backbone_is_exported():
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (16, 32, 32, 3), dtype=np.uint8), np.arange(16) % 2
    how = {"backbone": "efficientnet-lite0@32", "freeze": "later", "adaptation_epochs": 1}
    model = lmrc.LMRCPlusClassifier(**how, projections=20, device="cpu", random_state=0)
    check_export(model.fit(X, y), X, export.to_onnx(model))


def test_other_probabilities_are_not_written(frozen, by_lda):
    model = copy.deepcopy(frozen[0]).set_params(predict_with="lda")
    export.check_outputs(model, by_lda)
    for name in ("lda.scale", "lda.offsets"):
        before = model.calibration_[name]
        model.calibration_[name] = before + 1
        with pytest.raises(export.ExportError, match="differ"):
            export.check_outputs(model, by_lda)
        model.calibration_[name] = before


def test_rounding_errors_of_torch_itself_are_tolerated(plus):
    model = copy.deepcopy(plus[0]).set_params(predict_with="lda")
    # Of all classes: they win as before, with fewer digits.
    model.classifiers_["lda_bias"] += 3e3
    content = export.to_onnx(model)
    export.check_outputs(model, content)
    model.classifiers_["lda_bias"][:, 0] += 10
    with pytest.raises(export.ExportError):
        export.check_outputs(model, content)


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
