import pytest
import torch

from lmrc.store import folder
from lmrc.store.folder import ModelFileError

DESCRIPTION = {"class": "Some", "history": [{"loss": -0.5}], "name": "grün"}
TENSORS = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3)},
    "exemplars": {"x": torch.arange(4, dtype=torch.uint8)},
}


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "pets.lmrc"
    folder.write(path, DESCRIPTION, TENSORS)
    return path


def assert_same(one, other):
    assert one.keys() == other.keys()
    for group in one:
        assert one[group].keys() == other[group].keys()
        for name in one[group]:
            assert torch.equal(one[group][name], other[group][name])
            assert one[group][name].dtype == other[group][name].dtype


def test_what_was_written_is_read(model):
    description, tensors = folder.read(model)
    assert description == DESCRIPTION
    assert_same(tensors, TENSORS)


def test_shared_and_strided_tensors_are_written(tmp_path):
    tied = torch.arange(6.0).view(2, 3)
    folder.write(tmp_path / "m", {}, {"weights": {"a": tied, "b": tied, "c": tied.T}})
    assert_same(folder.read(tmp_path / "m")[1], {"weights": {"a": tied, "b": tied, "c": tied.T}})


def test_a_second_write_replaces_the_first_and_leaves_nothing_behind(model):
    before = {path.name for path in model.iterdir()}
    folder.write(model, {"class": "Other"}, {"weights": {"a": torch.ones(2)}})
    assert folder.read(model)[0] == {"class": "Other"}
    names = {path.name for path in model.iterdir()}
    assert len(names) == 2
    assert names & before == {"manifest.json"}


def test_a_write_that_fails_leaves_the_earlier_model(model, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        folder.write(model, {"class": "Other"}, {"weights": {"a": torch.ones(2)}})
    assert folder.read(model)[0] == DESCRIPTION
    assert not list(model.glob(".lmrc-*"))


def test_files_of_others_are_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("do not lose")
    with pytest.raises(ModelFileError, match=r"thesis\.tex.*another folder"):
        folder.write(tmp_path, DESCRIPTION, TENSORS)
    with pytest.raises(ModelFileError, match="is a file"):
        folder.write(tmp_path / "thesis.tex", DESCRIPTION, TENSORS)
    assert (tmp_path / "thesis.tex").read_text() == "do not lose"


def test_a_missing_model_is_reported(tmp_path):
    with pytest.raises(ModelFileError, match="no such folder"):
        folder.read(tmp_path / "none")
    with pytest.raises(ModelFileError, match=r"no manifest\.json"):
        folder.read(tmp_path)


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
@pytest.mark.parametrize("which", ["manifest", "weights", "exemplars"])
def test_damage_is_noticed(model, which, damage):
    (path,) = model.glob(f"{which}*")
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content if damage == "flip" else content[:-1])
    with pytest.raises(ModelFileError, match=which):
        folder.read(model)


def test_newer_formats_are_named(model, reseal):
    reseal(model, lambda manifest: manifest.update(format_version=5))
    with pytest.raises(ModelFileError, match=r"format 5, .* upgrade lmrc"):
        folder.read(model)


@pytest.mark.parametrize("name", ["../weights", "/etc/passwd", "weights-00.safetensors", 7])
def test_a_manifest_cannot_lead_outside(model, name, reseal):
    def outside(manifest):
        manifest["versions"][-1]["files"]["weights"]["name"] = name

    reseal(model, outside)
    with pytest.raises(ModelFileError):
        folder.read(model)


def test_a_manifest_of_another_shape_is_refused(model, reseal):
    for change in (
        lambda m: m.update(versions=[]),
        lambda m: m.update(versions=[3]),
        lambda m: m["versions"][-1].pop("files"),
        *(
            lambda m, part=part: m["versions"][-1].update({part: [1]})
            for part in ("number", "saved", "note", "model", "files")
        ),
        lambda m: m.update(format="zip"),
    ):
        folder.write(model, DESCRIPTION, TENSORS)
        reseal(model, change)
        with pytest.raises(ModelFileError):
            folder.versions(model)
