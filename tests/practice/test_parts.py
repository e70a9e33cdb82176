"""What a source sets aside: to validate with when it is learnt, to test with when it is scored."""

import json
import shutil

import numpy as np
import pytest

from lmrc.data.folders import held_out


@pytest.fixture
def split(place):
    """The name of a folder with train, val (20 images) and test (8 of them)."""
    shutil.copytree(place / "week1", place / "digits" / "train")
    for name in ("zero", "one"):
        shutil.copytree(place / "test" / name, place / "digits" / "val" / name)
        shutil.copytree(place / "test" / name, place / "digits" / "test" / name)
        for i in range(6):
            (place / "digits" / "test" / name / f"{i:03}.png").unlink()
    return "digits"


def images_scored(call, *words):
    code, out, err = call("evaluate", "m", *words, "--json")
    assert code == 0, err
    return json.loads(out)["images"]


def test_a_model_is_validated_on_val_and_scored_on_test(place, split, learn, call):
    shutil.copytree(place / "other" / "four", place / split / "test" / "four")  # nobody learns it
    out = learn(split, fast=True)[1]
    assert "60 images to learn from, 20 more to validate with, those of val" in out
    assert images_scored(call, split) == 8


def test_where_a_share_is_asked_for_test_images_stay_for_the_test(place, split, learn, call):
    shutil.rmtree(place / split / "val")
    out = learn(split, "--val", "0.2", fast=True)[1]
    assert "48 images to learn from, 12 more to validate with\n" in out
    assert images_scored(call, split) == 8
    # Beside others, too, which are no classes then: they were none before.
    (place / split / "notes" / "old").mkdir(parents=True)
    shutil.rmtree(place / "m")
    assert "48 images to learn from, 12" in learn(split, "--val", "0.2", fast=True)[1]


def test_arrays_are_validated_on_val_and_scored_on_test(place, learn, call):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8), np.arange(40) % 2
    parts = {"X_val": X[:6], "y_val": y[:6], "X_test": X[:4], "y_test": y[:4]}
    np.savez(place / "all.npz", X=X, y=y, **parts)
    np.savez(place / "test.npz", X=X, y=y, X_test=X[:4], y_test=y[:4])
    assert "40 images to learn from, 6 more to" in learn("all.npz", fast=True)[1]
    assert "32 images to learn from, 8 more to" in learn("test.npz", "--val", "0.2")[1]
    assert "4 more to validate with, those of X_test" in learn("test.npz")[1]
    assert images_scored(call, "all.npz") == images_scored(call, "test.npz") == 4


def test_a_broken_image_that_is_held_out_is_left_out_like_any_other(place, learn):
    held = held_out(sorted((place / "week1" / "one").iterdir()), 0.01)[1]
    held[0].write_bytes(held[0].read_bytes()[:60])
    _, out, err = learn("week1", "--val", "0.01", fast=True)
    assert "58 images to learn from, 1 more to validate with" in out
    assert "left out 1 file" in err


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float64"])
def test_numbers_are_the_same_classes_in_any_type(place, learn, call, dtype):
    X = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
    y = np.arange(20) % 2
    np.savez(place / "first.npz", X=X, y=y.astype(np.uint8))
    np.savez(place / "again.npz", X=X, y=y.astype(dtype))
    learn("first.npz", fast=True)
    assert images_scored(call, "again.npz") == 20
    assert "2 known classes: 0 (10), 1 (10)" in learn("again.npz")[1]


def test_nothing_is_written_among_the_images(place, model, call, monkeypatch):
    monkeypatch.chdir(place / "week1")
    for words, what in (
        (("learn", "new", "."), "the model, new, would lie among the images of "),
        (("evaluate", str(place / model), "."), "the page, "),
    ):
        code, _, err = call(*words)
        assert code == 2
        assert what in err
    assert sorted(path.name for path in (place / "week1").iterdir()) == ["one", "zero"]


def test_beside_the_folders_of_classes_there_is_room(place, split, call, monkeypatch):
    monkeypatch.chdir(place / split)
    fast = ("--backbone", "mlp", "--epochs", "1", "--device", "cpu")
    assert call("learn", "new", ".", *fast)[0] == 0
    assert call("evaluate", "new", ".")[0] == 0
    assert call("learn", "new", ".")[0] == 0
    assert call("learn", "test/new", ".", *fast)[0] == 2


def test_empty_arrays_are_named(place, model, call):
    np.savez(place / "none.npz", X=np.zeros((0, 8, 8), np.uint8), y=np.zeros(0, str))
    for words in (("learn", "new", "none.npz"), ("evaluate", model, "none.npz")):
        code, _, err = call(*words)
        assert code == 1
        assert "none.npz holds no samples" in err
    code, _, err = call("predict", model, "none.npz")
    assert code == 1
    assert "X of none.npz is empty" in err
