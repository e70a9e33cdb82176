import numpy as np
import pytest
import torch

from lmrc import JointClassifier, LMRCClassifier, ModelFileError, load
from lmrc.nets import packaged

NAME = "efficientnet-lite0@32"
SETTINGS = {"backbone": NAME, "epochs": 1, "random_state": 0, "device": "cpu"}


@pytest.fixture
def no_package(monkeypatch):
    """Return what makes the package unavailable."""
    return lambda: monkeypatch.setattr(packaged, "find_spec", lambda name: None)


def images(*shape, n=4):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, *shape), dtype=np.uint8), np.arange(n) % 2


@pytest.fixture
def saved(tmp_path):
    X, y = images(20, 24, 3)
    model = LMRCClassifier(**SETTINGS, freeze=True).fit(X, y)
    model.save(tmp_path / "m")
    return model, X, y


def test_arrays_of_another_size_are_learnt_and_predicted(saved):
    model, X, _ = saved
    assert model.input_shape_ == (3, 20, 24)
    assert model.network_.encoder.mean.flatten().tolist() == pytest.approx([127 / 255] * 3)
    assert model.network_.encoder.std.flatten().tolist() == pytest.approx([128 / 255] * 3)
    as_floats = model.similarities((X / 255).astype(np.float32))
    np.testing.assert_allclose(as_floats, model.similarities(X), atol=1e-5)
    published = packaged.read_weights("efficientnet-lite0")
    for name, tensor in model.network_.encoder.backbone.state_dict().items():
        assert torch.equal(tensor, published[name]), name


def test_a_model_is_loaded_without_the_package(saved, tmp_path, no_package):
    model, X, y = saved
    no_package()
    loaded = load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.similarities(X), model.similarities(X))
    loaded.partial_fit(X, y + 2)
    assert len(loaded.classes_) == 4
    with pytest.raises(packaged.MissingPackageError, match="pip install efficientnet_lite0"):
        LMRCClassifier(**SETTINGS).fit(X, y)


def test_grey_images_are_saved_and_loaded(tmp_path):
    X, y = images(32, 32)
    model = LMRCClassifier(**SETTINGS, freeze=True).fit(X, y)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").similarities(X), model.similarities(X))


def test_a_backbone_that_is_not_frozen_learns_from_its_weights(tmp_path):
    X, y = images(32, 32, 3)
    model = LMRCClassifier(**SETTINGS, learning_rate=1e-3).fit(X, y)
    published = packaged.read_weights("efficientnet-lite0")["_conv_head.weight"]
    learnt = model.network_.encoder.backbone._conv_head.weight
    assert not torch.equal(learnt, published)
    torch.testing.assert_close(learnt, published, atol=0.02, rtol=0)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").similarities(X), model.similarities(X))


def test_joint_training_begins_anew_with_the_published_weights(tmp_path, no_package):
    X, y = images(32, 32, 3)
    published = packaged.read_weights("efficientnet-lite0")
    JointClassifier(**SETTINGS, learning_rate=1.0).fit(X, y).save(tmp_path / "m")
    no_package()
    model = load(tmp_path / "m").set_params(freeze=True).partial_fit(X, y + 2)
    for name, tensor in model.network_.encoder.backbone.state_dict().items():
        assert torch.equal(tensor, published[name]), name


@pytest.mark.parametrize(
    "pretrained",
    [None, [], {}, {"size": 32}, {"size": [32]}, {"size": [0, 32]}, {"size": [10**9, 32]}, "x"],
)
def test_what_is_forged_is_refused(saved, tmp_path, pretrained, reseal):
    change = {"pretrained": pretrained}
    reseal(tmp_path / "m", lambda manifest: manifest["versions"][0]["model"].update(change))
    with pytest.raises(ModelFileError, match="does not hold a model"):
        load(tmp_path / "m")
