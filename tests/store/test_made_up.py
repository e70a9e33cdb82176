"""Model files that someone made up, checksums and all."""

import json
import os

import numpy as np
import pytest
import torch

import lmrc
from lmrc.methods.state import pack
from lmrc.store import files, folder
from lmrc.store.folder import ModelFileError


@pytest.fixture
def model(tmp_path):
    X = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    clf = lmrc.LMRCClassifier(backbone="mlp", epochs=1, memory_per_class=1, random_state=0)
    clf.fit(X, np.repeat(["a", "b"], 6)).save(tmp_path / "m")
    return tmp_path / "m"


def remake(model, change):
    """Change the description of a model and make its checksum fit."""
    manifest = json.loads((model / "manifest.json").read_text())
    change(manifest["versions"][-1])
    manifest["sha256"] = files.checksum(manifest)
    (model / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("input_shape_", [1, 2**40, 2**40]),
        ("input_shape_", [1, 4000, 4000]),
        ("input_shape_", [1, -8, 8]),
        ("input_shape_", "88"),
        ("input_shape_", [True, 8, 8]),
        ("input_shape_", []),
        ("classes", [["a"], "b"]),
        ("classes", 7),
        ("head_sizes", [2**60]),
        ("head_sizes", [-1, 3]),
        ("classes", ["a", "a"]),
        ("class", "eval"),
        ("label_type", "?"),
        ("seed_", "x"),
        ("n_batches_", -1),
        ("history_", None),
        ("history_", [1]),
        ("threshold_", "a"),
        ("settings", {"backbone": "os.system"}),
        ("settings", None),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(model, key, value):
    remake(model, lambda version: version["model"].update({key: value}))
    with pytest.raises(ModelFileError):
        lmrc.load(model)


@pytest.mark.parametrize(
    ("name", "value"),
    [("label_dim", 10**9), ("label_dim", 50), ("backbone", "resnet34"), ("halve_at", [[]])],
)
def test_settings_that_do_not_fit_are_refused(model, name, value):
    remake(model, lambda version: version["model"]["settings"].update({name: value}))
    with pytest.raises(ModelFileError):
        lmrc.load(model)


@pytest.mark.parametrize("part", ["number", "saved", "note", "model", "files"])
@pytest.mark.parametrize("value", [None, [], "text", {"weights": 3}])
def test_versions_of_another_shape_are_refused(model, part, value):
    if part == "saved" and value == "text":
        return
    if part == "note" and isinstance(value, dict):
        return
    remake(model, lambda version: version.update({part: value}))
    if part == "model" and isinstance(value, dict):
        assert folder.versions(model)
    else:
        with pytest.raises(ModelFileError):
            folder.versions(model)
    if part in ("model", "files"):
        with pytest.raises(ModelFileError):
            lmrc.load(model)


def test_a_group_cannot_lead_outside(model, tmp_path):
    def outside(version):
        version["files"]["../evil"] = version["files"]["weights"]

    remake(model, outside)
    with folder.writing(model), pytest.raises(ModelFileError, match="evil"):
        folder.amend(model, lambda version: version)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("which", ["manifest.json", "weights-*"])
def test_a_pipe_is_not_waited_for(model, which):
    (path,) = model.glob(which)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ModelFileError, match="not a file"):
        lmrc.load(model)


@pytest.mark.parametrize("which", ["manifest.json", "weights-*", "labels-*", "pool-*"])
def test_flipped_bits_and_cut_files_are_noticed(model, which):
    (path,) = model.glob(which)
    whole = path.read_bytes()
    before = lmrc.load(model).label_vectors_
    rng = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(whole)
        if rng.random() < 0.3:
            del damaged[rng.integers(len(whole)) :]
        else:
            damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            np.testing.assert_array_equal(lmrc.load(model).label_vectors_, before)
        except ModelFileError:
            continue


@pytest.mark.parametrize(
    ("group", "name", "dtype"),
    [
        ("pool", "y", torch.float32),
        ("pool", "y", torch.bool),
        ("readout", "lda_bias", torch.float64),
        ("statistics", "means", torch.float64),
        ("statistics", "counts", torch.int32),
    ],
)
def test_tensors_of_another_type_are_refused(tmp_path, group, name, dtype):
    X = np.random.default_rng(0).normal(size=(12, 5))
    clf = lmrc.LMRCPlusClassifier(
        rotations="none", objective="cosine", epochs=1, first_epochs=1, memory_per_class=2
    ).fit(X, np.repeat([0, 1], 6))
    description, tensors = pack(clf)
    tensors[group] = {**tensors[group], name: tensors[group][name].to(dtype)}
    folder.write(tmp_path / "m", description, tensors, keep=1, note={})
    with pytest.raises(ModelFileError):
        lmrc.load(tmp_path / "m")
