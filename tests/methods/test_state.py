"""Forged model files, with valid checksums."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

import lmrc
from lmrc.methods.state import check_numbers, pack
from lmrc.nets.network import build_encoder
from lmrc.store import files, folder
from lmrc.store.folder import ModelFileError


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model, not to be changed."""
    path = tmp_path_factory.mktemp("saved") / "m"
    X = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    clf = lmrc.LMRCClassifier(backbone="mlp", epochs=1, memory_per_class=1, random_state=0)
    clf.fit(X, np.repeat(["a", "b"], 6)).save(path)
    return path


@pytest.fixture
def model(tmp_path, saved):
    return shutil.copytree(saved, tmp_path / "m")


@pytest.fixture
def remake(reseal):
    """Change the description of a model and make its checksum fit."""
    return lambda model, change: reseal(model, lambda m: change(m["versions"][-1]))


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
        ("classes", ["a\0", "a"]),
        ("classes", ["a", 1]),
        ("label_type", "?"),
        ("label_type", "<i8"),
        ("label_type", [["a", "<i8"]]),
        ("seed_", "x"),
        ("seed_", 10**4000),
        ("n_tasks_", -1),
        ("history_", None),
        ("history_", [1]),
        ("history_", [{"loss": "x"}]),
        ("feature_names", ["a", "b"]),
        ("threshold_", "a"),
        ("threshold_", 1e308),
        ("settings", {"backbone": "os.system"}),
        ("settings", None),
    ],
)
def test_descriptions_that_do_not_fit_are_refused(model, key, value, remake):
    remake(model, lambda version: version["model"].update({key: value}))
    with pytest.raises(ModelFileError):
        lmrc.load(model)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("label_dim", 10**9),
        ("label_dim", 50),
        ("backbone", "resnet34"),
        ("halve_at", [[]]),
        ("epochs", 0),
        ("compile", "x"),
        ("random_state", "x"),
        ("no_parameter", 1),
    ],
)
def test_settings_that_do_not_fit_are_refused(model, name, value, remake):
    remake(model, lambda version: version["model"]["settings"].update({name: value}))
    with pytest.raises(ModelFileError):
        lmrc.load(model)


def test_a_group_cannot_lead_outside(model, tmp_path, remake):
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


@pytest.mark.parametrize(
    ("group", "name", "dtype"),
    [
        ("exemplars", "y", torch.float32),
        ("exemplars", "y", torch.bool),
        ("classifiers", "lda_bias", torch.float64),
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


def test_what_is_the_machine_s_is_not_taken_from_a_file(model, remake):
    """To compile may take many minutes; and a file of weights would be one of the reader's."""
    forged = {"compile": True, "weights": "/etc/passwd"}
    remake(model, lambda version: version["model"]["settings"].update(forged))
    clf = lmrc.load(model)
    assert (clf.compile, clf.weights) == ("auto", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" + b"[]," * 4_000_000 + b"0]", "too large"),
        (b" " * (17 * 2**20), "too large"),
        (b'{"a":' * 30 + b"0" + b"}" * 30, "nested too deep"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_a_manifest_that_would_take_all_memory_is_rejected_in_a_short_line(model, text, message):
    (model / "manifest.json").write_bytes(text)
    with pytest.raises(ModelFileError, match=message) as refused:
        lmrc.load(model)
    assert len(str(refused.value)) <= files.MAX_MESSAGE


def test_the_type_of_labels_takes_no_memory(model, remake):
    remake(model, lambda version: version["model"].update(label_type="<U250000000"))
    assert lmrc.load(model).classes_.nbytes == 8


def test_labels_that_would_take_all_memory_are_refused(model, remake):
    def long_names(version):
        names = ["x" * 10**6, *map(str, range(99))]
        version["model"].update(classes=names, head_sizes=[100])

    remake(model, long_names)
    with pytest.raises(ModelFileError, match="labels are too long"):
        lmrc.load(model)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("classes", ["x" * 10**5]),
        ("head_sizes", [1] * 10**5),
        ("class", "x" * 10**5),
        ("settings", {"x" * 10**5: 1}),
        ("label_type", "x" * 10**5),
    ],
)
def test_an_error_does_not_repeat_what_was_forged(model, part, value, remake):
    remake(model, lambda version: version["model"].update({part: value}))
    with pytest.raises(ModelFileError) as refused:
        lmrc.load(model)
    assert len(str(refused.value)) <= files.MAX_MESSAGE
    assert "\n" not in str(refused.value)


def test_versions_and_files_have_limits(model):
    manifest = json.loads((model / "manifest.json").read_text())
    (version,) = manifest["versions"]
    weights = version["files"]["weights"]
    many = [{**version, "files": {f"{a}{b}": weights for a in "abcde" for b in "abcde"}}]
    for versions, said in (([version] * 101, "101 versions"), (many, "too many files")):
        (model / "manifest.json").write_bytes(folder.text_of(versions))
        with pytest.raises(ModelFileError, match=said):
            folder.versions(model)


def test_thousands_of_classes_and_a_long_history_can_be_read_again(tmp_path):
    clf = lmrc.FineTuneClassifier(epochs=1, random_state=0).fit(np.zeros((2, 2)), [0, 1])
    (epoch,) = clf.history_
    clf.history_ = [{**epoch, "epoch": i} for i in range(20_001)]
    description, tensors = pack(clf)
    names = [f"class {i}" for i in range(9000)]
    description.update(classes=names, head_sizes=[1] * 9000, label_type="<U20")
    head = {"head.weight": torch.zeros(9000, 256), "head.bias": torch.zeros(9000)}
    folder.write(tmp_path / "m", description, {"weights": tensors["weights"] | head})
    back = lmrc.load(tmp_path / "m")
    assert back.classes_.tolist() == names
    assert back.history_ == clf.history_[1:]  # the last ones: a manifest has a limit


def test_no_more_versions_are_kept_than_can_be_read_again(model, monkeypatch):
    content, text = folder.read(model), (model / "manifest.json").read_bytes()
    n_values = sum(text.count(sign) for sign in (b",", b"[", b"{"))
    monkeypatch.setattr(files, "MAX_VALUES", 3 * n_values)
    for _ in range(5):
        folder.write(model, *content, keep=5)
    assert [version["number"] for version in folder.versions(model)] == [4, 5, 6]
    with pytest.raises(ModelFileError, match="too large"):
        folder.write(model, {"class": [0] * 4 * n_values}, content[1])
    assert folder.versions(model)[-1]["number"] == 6


SPOILT = [
    ("weights", "encoder.mean", np.nan),
    ("weights", "encoder.std", 0.0),
    ("weights", "encoder.std", -1.0),
    ("weights", "head.weight", np.inf),
    ("weights", "encoder.backbone.1.bias", np.nan),
    ("labels", "vectors", 0.0),
    ("labels", "vectors", np.nan),
    ("statistics", "means", np.nan),
    ("statistics", "counts", 0.0),
    ("statistics", "diagonal", -1.0),
    ("classifiers", "lda_weight", -np.inf),
]


@pytest.fixture(scope="module")
def plus():
    """What a model with every kind of tensor is made of."""
    X = np.random.default_rng(0).normal(size=(12, 5))
    clf = lmrc.LMRCPlusClassifier(rotations="none", epochs=1, first_epochs=1, random_state=0)
    return pack(clf.fit(X, np.repeat([0, 1], 6)))


def test_large_numbers_are_numbers():
    check_numbers({"weights": {"head.weight": torch.full((2,), 3e38)}})  # their sum is none


@pytest.mark.parametrize(("group", "name", "value"), SPOILT)
def test_tensors_that_are_no_numbers_are_refused_by_name(plus, tmp_path, group, name, value):
    description, tensors = plus
    spoilt = tensors[group][name].clone()
    spoilt.view(-1)[: spoilt.shape[-1]] = value
    tensors = {**tensors, group: {**tensors[group], name: spoilt}}
    folder.write(tmp_path / "m", description, tensors)
    with pytest.raises(ModelFileError, match=name):
        lmrc.load(tmp_path / "m")


def test_numbers_that_overflow_name_no_class(plus, tmp_path):
    description, tensors = plus
    huge = {n: t * 1e30 if n.endswith("weight") else t for n, t in tensors["weights"].items()}
    folder.write(tmp_path / "m", description, {**tensors, "weights": huge})
    with pytest.raises(ValueError, match="not finite numbers"):
        lmrc.load(tmp_path / "m").predict(np.ones((1, 5)))


def test_a_large_input_takes_no_memory_to_load():
    """The shape of images is in no tensor of a ResNet: a forged one is tried without memory."""
    one = torch.ones(3, 1, 1)
    with pytest.raises(ValueError, match="bring them to a smaller size"):
        build_encoder("resnet18", (3, 4000, 4000), one, one)
    places = set()
    hook = register_module_forward_pre_hook(lambda _, x: places.add(x[0].device.type))
    _, width = build_encoder("resnet18", (3, 2000, 2000), one, one)
    hook.remove()
    assert (width, places) == (512, {"meta"})


def test_a_spoilt_model_is_not_saved_and_the_one_before_stays(model):
    clf = lmrc.load(model)
    with torch.no_grad():
        clf.network_.head.bias[0, 0] = np.nan
    with pytest.raises(ValueError, match=r"head\.bias .* NaN"):
        clf.save(model)
    assert lmrc.load(model).predict(np.zeros((1, 8, 8), np.uint8)) in ("a", "b")
