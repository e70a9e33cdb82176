import re
import shutil

import numpy as np


def test_known_classes_are_learnt_again_and_validated_separately(place, learn):
    learn("week1", fast=True)
    for part, source in (("train", "week2"), ("val", "test")):
        shutil.copytree(place / source, place / "mixed" / part)
    shutil.copytree(place / "week1" / "one", place / "mixed" / "train" / "one")
    out = learn("mixed")[1]
    assert "2 new classes: three (30), two (30)\n1 known class: one (30)\n" in out
    for kind in ("new", "old"):
        assert re.search(rf"validation accuracy on {kind} classes: \d+\.\d % \(20 images\)\n", out)


def test_new_images_of_known_classes_that_differ_are_named(place, learn):
    learn("week1", fast=True)
    shutil.copytree(place / "week1" / "one", place / "again" / "one")
    _, out, err = learn("again")
    assert "new images of known classes that are recognised already: one 100.0 %\n" in out
    assert err == ""
    shutil.copytree(place / "week1" / "zero", place / "wrong" / "one")
    _, out, err = learn("wrong")
    assert re.search(r"recognised already: one [0-4]?\d\.\d %\n", out)
    told = r"recognises only (.+) % of its new images, and takes (.+) % for zero:"
    assert sum(map(float, re.search(told, err).groups())) == 100


def test_a_new_class_that_is_taken_for_another_is_named(tmp_path, monkeypatch, learn):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(80, 12))
    X[20:40] += 5
    X[60:] -= 5
    np.savez("first.npz", X=X[:40], y=np.repeat(["a", "b"], 20))
    np.savez("later.npz", X=X[40:], y=np.repeat(["again a", "c"], 20))
    assert learn("first.npz")[2] == ""
    (line,) = learn("later.npz")[2].splitlines()
    end = "they are the same class, undo this learn with lmrc rollback and use one name for both"
    assert re.fullmatch(rf"lmrc: .+ % of the vectors of again a are taken for a: if {end}", line)


def test_vectors_are_not_called_images(tmp_path, monkeypatch, learn, call):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    X[4:] += 5
    np.savez("v.npz", X=X, y=np.repeat(["a", "b"], 4))
    np.savez("wrong.npz", X=X[4:], y=np.repeat(["a"], 4))
    learn("v.npz", "--from-scratch", "--epochs", "2")
    _, out, err = learn("wrong.npz")
    said = out + err + call("log", "m")[1]
    assert "new vectors of known classes that are recognised already: a " in out
    assert "% of its new vectors, and takes" in err
    assert "2 new in 8 vectors" in said
    assert "image" not in said
