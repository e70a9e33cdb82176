import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lmrc
from lmrc.methods.persistence import model_from
from lmrc.methods.state import pack
from lmrc.practice import info
from lmrc.practice.usage import bytes_in_words
from lmrc.statistics import prediction_rules
from lmrc.store import files, folder, unfinished


def test_info_says_what_a_model_knows_and_holds(model, call):
    code, out, _ = call("info", model)
    assert code == 0
    for line in (
        "m: 4 classes, 2 heads",
        "  head 2: three, two",
        "takes grey images, brought to 8×8 pixels (height × width)",
        "no images are stored in this model",
        "room for about 100 more classes: label vectors of 100 dimensions, threshold 0.15",
    ):
        assert line in out.splitlines()
    facts = json.loads(call("info", model, "--json")[1])
    assert facts["heads"] == [["one", "zero"], ["three", "two"]]
    assert facts["images_stored"] == 0
    assert facts["bytes"] > 10_000
    assert call("info", model, "--quiet") == (0, "", "")
    on_disk = sum(p.stat().st_size for p in Path(model).glob("*.safetensors"))
    assert facts["bytes_of_all_versions"] == on_disk > facts["bytes"]
    assert f", {bytes_in_words(on_disk)} with all 2 versions" in out


def test_info_counts_stored_images(place, learn, call):
    learn("week1", "--memory-per-class", "5", "-q", fast=True)
    assert "10 images stored in this model" in call("info", "m")[1]


def test_info_tells_of_images_in_earlier_versions(place, learn, call):
    learn("week1", "--memory-per-class", "5", "-q", fast=True)
    out = learn("week2", "--memory-per-class", "0")[1]
    assert "no images stored in it, but some in 1 earlier version that the folder keeps (" in out
    kept = "1 earlier version that the folder keeps (lmrc prune removes what is earlier)"
    told = f"but some are in {kept}"
    lines = call("info", "m")[1].splitlines()
    assert lines[lines.index(told) - 1] == "no images are stored in this model"
    assert learn("week2")[1].endswith("no images stored in it\n")
    assert "earlier version" not in call("info", "m")[1]


def test_prune_removes_earlier_versions_and_their_images(place, learn, call):
    learn("week1", "--memory-per-class", "3", "-q", fast=True)
    pool = lmrc.load("m").memory_
    learn("week2", "--memory-per-class", "0", "--keep", "3", "-q")
    learn("week2", "--keep", "3", "-q")
    image, test = pool.x[0].numpy().tobytes(), pool.x.permute(0, 2, 3, 1).numpy()[..., 0]
    assert image in contents(place / "m")
    assert call("prune", "m", "--keep", "3")[1] == "0 versions removed: m keeps 3 versions\n"
    assert call("prune", "m", "--keep", "2")[1] == "1 version removed: m keeps 2 versions\n"
    assert image not in contents(place / "m")
    before = lmrc.load("m").similarities(test)
    assert call("prune", "m")[1] == "1 version removed: m keeps 1 version\n"
    np.testing.assert_array_equal(lmrc.load("m").similarities(test), before)
    assert "keeps no version before" in call("rollback", "m")[2]
    learn("week2", "-q")


def test_prune_leaves_what_is_unfinished_and_what_is_no_model(place, model, call):
    whole = contents(folder.Path(model))
    (place / model / "unfinished.json").write_text("{}")
    assert "unfinished" in call("prune", model)[2]
    (place / model / "unfinished.json").unlink()
    assert contents(folder.Path(model)) == whole
    assert call("prune", "week1")[0] == 1
    assert sorted(p.name for p in (place / "week1").iterdir()) == ["one", "zero"]


def test_rollback_says_that_images_are_back(place, learn, call):
    learn("week1", "--memory-per-class", "3", "-q", fast=True)
    learn("week2", "--memory-per-class", "0", "-q")
    said = call("rollback", "m")[1]
    assert said.endswith("\nit stores 6 images, and keeps 3 of each class from now on\n")
    learn("week2", "--memory-per-class", "0", "--keep", "1", "-q")
    learn("week2", "-q")
    assert "it stores" not in call("rollback", "m")[1]


def test_log_lists_versions_and_rollback_goes_back_one(model, call):
    newest, oldest = call("log", model)[1].splitlines()
    assert newest.startswith("version 2  2")
    assert "4 classes  2 new in 60 images" in newest
    assert oldest.startswith("version 1  2")
    assert [v["classes"] for v in json.loads(call("log", model, "--json")[1])] == [2, 4]
    assert "is as it was after version 1" in call("rollback", model)[1]
    assert lmrc.load(model).classes_.tolist() == ["one", "zero"]
    code, _, err = call("rollback", model)
    assert code == 1
    assert "none to go back to" in err


HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "PIL")


@pytest.mark.parametrize("command", ["info", "log"])
def test_what_is_looked_up_takes_nothing_heavy(command, model, call):
    unfinished.write(Path(model), {}, {"x": torch.zeros(1)})  # it tells of that, too
    alone = (
        f"import sys; sys.modules.update(dict.fromkeys({HEAVY})); from lmrc.cli import main; main()"
    )
    words = [sys.executable, "-c", alone, command, model]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, call(command, model)[1]), done.stderr


@pytest.mark.parametrize("method", [lmrc.LMRCClassifier, lmrc.LMRCPlusClassifier])
def test_info_says_what_the_loaded_model_says(method, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction_rules, "STEPS", 3)
    X = np.random.default_rng(0).integers(0, 256, (9, 16, 16, 3), dtype=np.uint8)
    few = {"epochs": 1, "first_epochs": 1, "memory_per_class": 2, "class_weight": {0: 2.0}}
    fitted = method(label_dim=20, augment="none", random_state=0, **few).fit(X, np.arange(9) % 3)
    fitted.save(tmp_path / "m")
    told, model = info.describe(tmp_path / "m"), lmrc.load(tmp_path / "m")
    assert told["parameters"] == sum(p.numel() for p in model.network_.parameters())
    assert (told["classes"], told["backbone"]) == ([0, 1, 2], "resnet18")
    kept = {**model.statistics_, **model.classifiers_}
    assert told["statistics_bytes"] == sum(tensor.nbytes for tensor in kept.values())
    assert told["images_stored"] == len(model.memory_) == 6
    assert told["settings"] == pack(model)[0]["settings"]
    changed = {*few, "label_dim", "augment"}
    assert told["settings_not_default"].keys() == changed


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("class", "EWCClassifier"), ("class", []), ("head_sizes", [1, 1]), ("classes", [[], []])],
        *[("input_shape_", [0]), ("input_shape_", "xyz"), ("threshold_", "high"), ("settings", 3)],
        *[("settings", {"label_dim": 10**30}), ("settings", {"shell": "rm"})],
    ],
)
def test_info_refuses_a_forged_description_in_one_line(key, value, model, call):
    manifest = json.loads(Path(model, "manifest.json").read_text())
    del manifest["sha256"]
    manifest["versions"][-1]["model"][key] = value
    files.write_json(Path(model, "manifest.json"), manifest)
    code, out, err = call("info", model)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "--debug" not in err


def test_info_notices_damage(model, call):
    for path in Path(model).glob("weights-*"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "is damaged: its checksum does not match" in call("info", model, "--quiet")[2]


@pytest.mark.parametrize("command", ["info", "log", "rollback"])
def test_what_is_no_model_is_not_made_one(place, call, command):
    code, _, err = call(command, "none")
    assert code == 1
    assert "not a model" in err
    assert not (place / "none").exists()
    assert call(command, "week1")[0] == 1
    assert {p.name for p in (place / "week1").iterdir()} == {"one", "zero"}


def contents(path):
    """Return all that the model's files say, as bytes."""
    return b"".join(p.read_bytes() for p in sorted(path.iterdir()))


def test_forget_takes_a_class_out_of_all_versions(place, learn, call):
    learn("week1", "--memory-per-class", "3", "-q", fast=True)
    learn("week2", "-q")
    whole = lmrc.load("m")
    row = whole.classes_.tolist().index("zero")
    vector = whole.label_vectors_[row].tobytes()
    image = whole.memory_.x[whole.memory_.y == row][0].numpy().tobytes()
    test = whole.memory_.x.permute(0, 2, 3, 1).numpy()[..., 0]
    assert vector in contents(place / "m")
    assert image in contents(place / "m")

    seeds = {version["model"]["seed_"] for version in folder.versions(place / "m")}

    said = call("forget", "m", "zero")[1]
    assert "zero is forgotten: no version of m that is kept knows it" in said
    for trace in (vector, image, b"zero"):
        assert trace not in contents(place / "m")
    for version in folder.versions(place / "m"):  # also of one that did not know the class
        assert version["model"]["seed_"] not in seeds
        assert version["model"]["settings"]["random_state"] not in seeds
    after = lmrc.load("m")
    assert after.classes_.tolist() == ["one", "three", "two"]
    np.testing.assert_allclose(
        after.similarities(test), np.delete(whole.similarities(test), row, axis=1), atol=1e-6
    )
    old = model_from("m", *folder._read_version(place / "m", folder.versions(place / "m")[0]))
    assert old.classes_.tolist() == ["one"]
    call("rollback", "m")
    assert lmrc.load("m").classes_.tolist() == ["one"]
    learn("week2", "-q")


def test_forget_says_which_versions_go_and_the_log_what_came(place, learn, call):
    learn("week1", "-q", fast=True)
    learn("week2", "-q")
    assert "gone with it" not in call("forget", "m", "zero")[1]
    assert "gone with it: 1 earlier version that knew" in call("forget", "m", "one")[1]
    assert call("forget", "m", "two")[0] == 0
    (line,) = call("log", "m")[1].splitlines()
    assert "1 class  2 new in 60 images" in line


def test_weights_of_classes_are_forgotten_with_them(place, call):
    X, y = np.zeros((12, 6, 6), np.uint8), np.repeat(["ape", "aardvark", "emu"], 4)
    weights = {"aardvark": 2.0, "emu": 3.0}
    lmrc.LMRCClassifier(backbone="mlp", epochs=1, class_weight=weights).fit(X, y).save("m")
    assert call("forget", "m", "aardvark")[0] == 0
    # A short name may be among the bytes of random weights by chance.
    assert b"aardvark" not in contents(place / "m")
    assert lmrc.load("m").class_weight == {"emu": 3.0}


@pytest.mark.parametrize("command", [("forget", "two"), ("rename", "two", "deux")])
def test_weights_of_classes_that_were_still_to_come_are_amended_with_them(place, call, command):
    X, y = np.zeros((8, 8, 8), np.uint8), np.repeat(["zero", "one"], 4)
    weights = {"one": 2.0, "two": 3.0}
    model = lmrc.LMRCClassifier(backbone="mlp", epochs=1, class_weight=weights, random_state=0)
    model.fit(X, y).save("m")
    assert call("learn", "m", "week2", "--quiet")[0] == 0
    assert call(command[0], "m", *command[1:])[0] == 0
    assert '"two"' not in (place / "m" / "manifest.json").read_text()
    assert call("rollback", "m")[0] == 0
    assert lmrc.load("m").class_weight == {"one": 2.0} | dict.fromkeys(command[2:], 3.0)


def test_versions_of_nothing_but_the_forgotten_are_dropped(model, call):
    call("forget", model, "one")
    call("forget", model, "zero")
    assert [v["number"] for v in folder.versions(folder.Path(model))] == [2]
    assert lmrc.load(model).classes_.tolist() == ["three", "two"]
    call("forget", model, "two")
    code, _, err = call("forget", model, "three")
    assert code == 1
    assert "only class" in err


def test_forget_names_what_there_is(model, call):
    code, _, err = call("forget", model, "yak")
    assert code == 1
    assert "no class 'yak', but one, zero, three, two" in err


def test_rename_reaches_all_versions(place, learn, call):
    learn("week1", "--memory-per-class", "3", "-q", fast=True)
    learn("week2", "-q")
    before = lmrc.load("m")
    test = before.memory_.x.permute(0, 2, 3, 1).numpy()[..., 0]
    said = call("rename", "m", "zero", "nought at all")[1]
    assert "zero is called nought at all now, in all versions of m that are kept" in said
    assert b"zero" not in contents(place / "m")
    after = lmrc.load("m")
    assert after.classes_.tolist() == ["one", "nought at all", "three", "two"]
    np.testing.assert_array_equal(after.similarities(test), before.similarities(test))
    call("rollback", "m")
    assert lmrc.load("m").classes_.tolist() == ["one", "nought at all"]
    (place / "week1" / "zero").rename(place / "week1" / "nought at all")
    assert "2 known classes: nought at all (30), one (30)" in learn("week1")[1]


def test_weights_of_classes_are_renamed_with_them(place, call):
    X, y = np.zeros((12, 6, 6), np.uint8), np.repeat(["ape", "yak", "emu"], 4)
    weights = {"yak": 2.0, "emu": 3.0}
    lmrc.LMRCClassifier(backbone="mlp", epochs=1, class_weight=weights).fit(X, y).save("m")
    assert call("rename", "m", "yak", "gnu")[0] == 0
    assert lmrc.load("m").class_weight == {"gnu": 2.0, "emu": 3.0}


def test_an_earlier_version_that_is_damaged_can_be_removed(place, model, call):
    old, new = (v["files"]["weights"]["name"] for v in folder.versions(folder.Path(model)))
    assert old != new
    (place / model / old).write_bytes(b"damaged")
    assert "earlier version, which lmrc prune removes" in call("forget", model, "one")[2]
    assert call("prune", model)[0] == 0
    assert call("forget", model, "one")[0] == 0


def test_prune_does_not_give_up_a_good_version_for_a_damaged_one(place, model, call):
    _, new = (v["files"]["weights"]["name"] for v in folder.versions(folder.Path(model)))
    content = (place / model / new).read_bytes()
    (place / model / new).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, _, err = call("prune", model)
    assert (code, "is damaged: its checksum does not match" in err) == (1, True)
    assert call("rollback", model)[0] == 0
    assert lmrc.load(model).classes_.tolist() == ["one", "zero"]


@pytest.mark.parametrize("command", [["prune"], ["rollback"], ["forget", "two"]])
def test_a_forged_version_takes_no_good_one_along(place, model, call, command):
    """Whatever stays must make a model, and not only have the right checksums."""
    versions = folder.versions(folder.Path(model))
    forged = versions[0 if command == ["rollback"] else 1]
    del forged["files"]["labels"]
    (place / model / "manifest.json").write_bytes(folder.text_of(versions))
    whole = contents(folder.Path(model))
    code, _, err = call(command[0], model, *command[1:])
    assert (code, "does not hold a model of this lmrc" in err) == (1, True)
    assert contents(folder.Path(model)) == whole


def test_rename_refuses_what_cannot_be(model, call):
    whole = contents(folder.Path(model))
    for words, said in (
        (("yak", "gnu"), "no class 'yak', but one, zero, three, two"),
        (("one", "two"), "'two' is a class already, and two classes cannot become one"),
        (("one", " "), "a name of a class cannot be empty"),
    ):
        code, _, err = call("rename", model, *words)
        assert code == 1
        assert said in err
        assert contents(folder.Path(model)) == whole


def test_numbers_are_classes_too(place, learn, call):
    X, y = np.zeros((12, 6, 6), np.uint8), np.arange(12) % 3
    np.savez(place / "batch.npz", X=X, y=y)
    learn("batch.npz", "-q", fast=True)
    assert call("forget", "m", "1")[0] == 0
    assert lmrc.load("m").classes_.tolist() == [0, 2]
    assert call("rename", "m", "2", "7")[0] == 0
    assert lmrc.load("m").classes_.tolist() == [0, 7]
    assert "are numbers, and 'seven' is none" in call("rename", "m", "7", "seven")[2]


def test_info_tells_a_task_that_is_being_learnt_from_an_interrupted_one(model, call):
    me = f"by process {os.getpid()} on "
    with folder.writing(model) as held:
        assert f"it is being changed {me}" in call("info", model)[1]
        unfinished.write(held, {}, {})
        assert f"a task is being learnt {me}" in call("info", model)[1]
        assert "--resume" not in call("info", model)[1]
        (held / folder.LOCK).rename("lock")
    Path("lock").rename(Path(model) / folder.LOCK)  # as a killed process leaves it
    out = call("info", model)[1]
    assert "--resume goes on with it" in out
    assert me not in out
