import json

import numpy as np
import pytest

import lmrc
from lmrc.methods.persistence import model_from
from lmrc.practice.learn_output import ONLY_ONE
from lmrc.store import folder
from lmrc.store.files import read_tensors


def test_prune_deletes_earlier_versions_and_their_exemplars(place, learn, call):
    learn("week1", "--memory-per-class", "3", "-q", fast=True)
    exemplars = lmrc.load("m").memory_
    learn("week2", "--memory-per-class", "0", "--keep", "3", "-q")
    learn("week2", "--keep", "3", "-q")
    image, test = exemplars.x[0].numpy().tobytes(), exemplars.x.permute(0, 2, 3, 1).numpy()[..., 0]
    assert image in contents(place / "m")
    assert call("prune", "m", "--keep", "3")[1] == "0 versions removed, m keeps 3 versions\n"
    assert call("prune", "m", "--keep", "2")[1] == "1 version removed, m keeps 2 versions\n"
    assert image not in contents(place / "m")
    before = lmrc.load("m").similarities(test)
    assert call("prune", "m")[1] == "1 version removed, m keeps 1 version\n"
    np.testing.assert_array_equal(lmrc.load("m").similarities(test), before)
    assert "keeps no version before" in call("rollback", "m")[2]
    learn("week2", "-q")


def test_prune_refuses_unfinished_tasks_and_other_folders(place, model, call):
    whole = contents(folder.Path(model))
    (place / model / "unfinished.json").write_text("{}")
    assert "unfinished" in call("prune", model)[2]
    (place / model / "unfinished.json").unlink()
    assert contents(folder.Path(model)) == whole
    assert call("prune", "week1")[0] == 1
    assert sorted(p.name for p in (place / "week1").iterdir()) == ["one", "zero"]


def backbone_files(place):
    return [(p.name, p.stat().st_ino) for p in sorted((place / "m").glob("backbone-*"))]


def test_versions_share_a_frozen_backbone(place, learn, call):
    learn("week1", "--freeze", "--keep", "3", "-q", fast=True)
    ((name, inode),) = backbone_files(place)
    first = folder.size_of(folder.versions(place / "m"))
    learn("week2", "-q")
    learn("week2", "-q")
    info = json.loads(call("info", "m", "--json")[1])
    assert info["backbone_bytes"] > first / 2  # so that this shows something
    assert info["bytes_of_all_versions"] < 2 * first
    assert info["parameters"] == sum(p.numel() for p in lmrc.load("m").network_.parameters())
    assert "3 versions: " in call("info", "m")[1]
    assert ", which share a frozen backbone of " in call("info", "m")[1]
    for command in (("rename", "m", "zero", "nought"), ("forget", "m", "one"), ("rollback", "m")):
        assert call(*command)[0] == 0
        assert backbone_files(place) == [(name, inode)]
    call("prune", "m", "--keep", "1")
    assert backbone_files(place) == [(name, inode)]
    assert lmrc.load("m").classes_.tolist() == ["nought", "three", "two"]

    learn("week2", "--no-freeze", "--keep", "1", "-q")
    assert backbone_files(place) == []
    assert lmrc.load("m").network_.encoder.backbone[1].weight.shape == (256, 64)


def test_rollback_reports_restored_exemplars(place, learn, call):
    learn("week1", "--memory-per-class", "3", "-q", fast=True)
    learn("week2", "--memory-per-class", "0", "-q")
    said = call("rollback", "m")[1]
    assert said.endswith("\nit stores 6 exemplars; memory_per_class is 3 again\n")
    learn("week2", "--memory-per-class", "0", "--keep", "1", "-q")
    learn("week2", "-q")
    assert "it stores" not in call("rollback", "m")[1]


def contents(path):
    """Return the bytes of all files of a model."""
    return b"".join(p.read_bytes() for p in sorted(path.iterdir()))


def test_forget_removes_a_class_from_all_versions(place, learn, call):
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
    assert said == "class zero is removed from all versions of m\n"
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
    oldest = folder.versions(place / "m")[0]
    old = model_from("m", *folder._read_files(place / "m", oldest, read_tensors))
    assert old.classes_.tolist() == ["one"]
    call("rollback", "m")
    assert lmrc.load("m").classes_.tolist() == ["one"]
    learn("week2", "-q")


def test_forget_reports_removed_versions_and_keeps_the_log(place, learn, call):
    learn("week1", "-q", fast=True)
    learn("week2", "-q")
    assert "also removed" not in call("forget", "m", "zero")[1]
    assert "also removed: 1 earlier version with no other class\n" in call("forget", "m", "one")[1]
    code, out, _ = call("forget", "m", "two")
    assert (code, out.splitlines()[-1]) == (0, ONLY_ONE)
    (line,) = call("log", "m")[1].splitlines()
    assert "1 class  2 new in 60 images" in line


@pytest.mark.parametrize("command", [("forget", "two"), ("rename", "two", "deux")])
def test_class_weights_are_changed_also_in_versions_before_the_class(place, call, command):
    X, y = np.zeros((8, 8, 8), np.uint8), np.repeat(["zero", "one"], 4)
    weights = {"one": 2.0, "two": 3.0}
    model = lmrc.LMRCClassifier(backbone="mlp", epochs=1, class_weight=weights, random_state=0)
    model.fit(X, y).save("m")
    assert call("learn", "m", "week2", "--quiet")[0] == 0
    assert call(command[0], "m", *command[1:])[0] == 0
    assert '"two"' not in (place / "m" / "manifest.json").read_text()
    assert lmrc.load("m").class_weight == {"one": 2.0} | dict.fromkeys(command[2:], 3.0)
    assert call("rollback", "m")[0] == 0
    assert lmrc.load("m").class_weight == {"one": 2.0} | dict.fromkeys(command[2:], 3.0)


def test_versions_without_classes_left_are_dropped(model, call):
    call("forget", model, "one")
    call("forget", model, "zero")
    assert [v["number"] for v in folder.versions(folder.Path(model))] == [2]
    assert lmrc.load(model).classes_.tolist() == ["three", "two"]
    call("forget", model, "two")
    code, _, err = call("forget", model, "three")
    assert code == 1
    assert "only class" in err


def test_forget_of_an_unknown_class_lists_the_classes(model, call):
    code, _, err = call("forget", model, "yak")
    assert code == 1
    assert "no class 'yak', only one, zero, three, two" in err


def test_rename_changes_all_versions(place, learn, call):
    learn("week1", "--memory-per-class", "3", "-q", fast=True)
    learn("week2", "-q")
    before = lmrc.load("m")
    test = before.memory_.x.permute(0, 2, 3, 1).numpy()[..., 0]
    said = call("rename", "m", "zero", "nought at all")[1]
    assert said == "class zero is renamed to nought at all in all versions of m\n"
    assert b"zero" not in contents(place / "m")
    after = lmrc.load("m")
    assert after.classes_.tolist() == ["one", "nought at all", "three", "two"]
    np.testing.assert_array_equal(after.similarities(test), before.similarities(test))
    call("rollback", "m")
    assert lmrc.load("m").classes_.tolist() == ["one", "nought at all"]
    (place / "week1" / "zero").rename(place / "week1" / "nought at all")
    assert "2 known classes: nought at all (30), one (30)" in learn("week1")[1]


def test_a_damaged_earlier_version_can_be_pruned(place, model, call):
    old, new = (v["files"]["weights"]["name"] for v in folder.versions(folder.Path(model)))
    assert old != new
    (place / model / old).write_bytes(b"damaged")
    assert "earlier version, which lmrc prune removes" in call("forget", model, "one")[2]
    assert call("prune", model)[0] == 0
    assert call("forget", model, "one")[0] == 0


def test_prune_keeps_a_good_version_if_the_newest_is_damaged(place, model, call):
    _, new = (v["files"]["weights"]["name"] for v in folder.versions(folder.Path(model)))
    content = (place / model / new).read_bytes()
    (place / model / new).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    code, _, err = call("prune", model)
    assert (code, "is damaged: its checksum does not match" in err) == (1, True)
    assert call("rollback", model)[0] == 0
    assert lmrc.load(model).classes_.tolist() == ["one", "zero"]


@pytest.mark.parametrize("command", [["prune"], ["rollback"], ["forget", "two"]])
def test_a_forged_version_does_not_delete_a_good_one(place, model, call, command):
    """What is left must be loadable, not only have valid checksums."""
    versions = folder.versions(folder.Path(model))
    forged = versions[0 if command == ["rollback"] else 1]
    del forged["files"]["labels"]
    (place / model / "manifest.json").write_bytes(folder.text_of(versions))
    whole = contents(folder.Path(model))
    code, _, err = call(command[0], model, *command[1:])
    assert (code, "does not hold a model of this lmrc" in err) == (1, True)
    assert contents(folder.Path(model)) == whole


def test_rename_refuses_unknown_taken_and_empty_names(model, call):
    whole = contents(folder.Path(model))
    for words, said in (
        (("yak", "gnu"), "no class 'yak', only one, zero, three, two"),
        (("one", "two"), "'two' is a class already, and two classes cannot become one"),
        (("one", " "), "a name of a class cannot be empty"),
    ):
        code, _, err = call("rename", model, *words)
        assert code == 1
        assert said in err
        assert contents(folder.Path(model)) == whole


def test_classes_may_be_numbers(place, learn, call):
    X, y = np.zeros((12, 6, 6), np.uint8), np.arange(12) % 3
    np.savez(place / "arrays.npz", X=X, y=y)
    learn("arrays.npz", "-q", fast=True)
    assert call("forget", "m", "1")[0] == 0
    assert lmrc.load("m").classes_.tolist() == [0, 2]
    assert call("rename", "m", "2", "7")[0] == 0
    assert lmrc.load("m").classes_.tolist() == [0, 7]
    assert "are numbers, but 'seven' is not" in call("rename", "m", "7", "seven")[2]
