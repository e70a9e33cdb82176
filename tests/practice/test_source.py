"""Sources of labelled samples: folders, CSV files, arrays; their validation and test parts."""

import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

import lmrc
from lmrc.data.folders import held_out
from lmrc.practice.source import form_of_inputs, read_source

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"  # they look the same
FAST = ("--backbone", "mlp", "--epochs", "3", "--batch-size", "16", "--device", "cpu")


@pytest.fixture
def split(place):
    """The name of a folder with train, val (20 images) and test (8 of these)."""
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
    assert "60 images for training, 20 held out for validation (from val)\n" in out
    assert images_scored(call, split) == 8


def test_val_leaves_test_images_for_the_test(place, split, learn, call):
    shutil.rmtree(place / split / "val")
    out = learn(split, "--val", "0.2", fast=True)[1]
    assert "48 images for training, 12 held out for validation\n" in out
    assert images_scored(call, split) == 8
    # Beside others, too, which are no classes then: they were none before.
    (place / split / "notes" / "old").mkdir(parents=True)
    shutil.rmtree(place / "m")
    assert "48 images for training, 12 held out" in learn(split, "--val", "0.2", fast=True)[1]


def test_arrays_are_validated_on_val_and_scored_on_test(place, learn, call):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8), np.arange(40) % 2
    parts = {"X_val": X[:6], "y_val": y[:6], "X_test": X[:4], "y_test": y[:4]}
    np.savez(place / "all.npz", X=X, y=y, **parts)
    np.savez(place / "test.npz", X=X, y=y, X_test=X[:4], y_test=y[:4])
    assert "40 images for training, 6 held out" in learn("all.npz", fast=True)[1]
    assert "32 images for training, 8 held out" in learn("test.npz", "--val", "0.2")[1]
    assert "4 held out for validation (from X_test)" in learn("test.npz")[1]
    assert images_scored(call, "all.npz") == images_scored(call, "test.npz") == 4


def test_a_broken_held_out_image_is_left_out(place, learn):
    held = held_out(sorted((place / "week1" / "one").iterdir()), 0.01)[1]
    held[0].write_bytes(held[0].read_bytes()[:60])
    _, out, err = learn("week1", "--val", "0.01", fast=True)
    assert "58 images for training, 1 held out for validation" in out
    assert "left out 1 file" in err


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float64"])
def test_numeric_labels_of_any_dtype_are_the_same_classes(place, learn, call, dtype):
    X = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
    y = np.arange(20) % 2
    np.savez(place / "first.npz", X=X, y=y.astype(np.uint8))
    np.savez(place / "again.npz", X=X, y=y.astype(dtype))
    learn("first.npz", fast=True)
    assert images_scored(call, "again.npz") == 20
    assert "2 known classes: 0 (10), 1 (10)" in learn("again.npz")[1]


def test_nothing_is_written_into_a_folder_of_images(place, model, call, monkeypatch):
    monkeypatch.chdir(place / "week1")
    for words, what in (
        (("learn", "new", "."), "the model, new, would be inside "),
        (("evaluate", str(place / model), "."), "the report, "),
    ):
        code, _, err = call(*words)
        assert code == 2
        assert what in err
    assert sorted(path.name for path in (place / "week1").iterdir()) == ["one", "zero"]


def test_a_model_may_be_beside_train_and_test(place, split, call, monkeypatch):
    monkeypatch.chdir(place / split)
    fast = ("--backbone", "mlp", "--epochs", "1", "--device", "cpu")
    assert call("learn", "new", ".", *fast)[0] == 0
    assert call("evaluate", "new", ".")[0] == 0
    assert call("learn", "new", ".")[0] == 0
    assert call("learn", "test/new", ".", *fast)[0] == 2


def test_empty_arrays_are_refused(place, model, call):
    np.savez(place / "none.npz", X=np.zeros((0, 8, 8), np.uint8), y=np.zeros(0, str))
    for words in (("learn", "new", "none.npz"), ("evaluate", model, "none.npz")):
        code, _, err = call(*words)
        assert code == 1
        assert "none.npz has no samples" in err
    code, _, err = call("predict", model, "none.npz")
    assert code == 1
    assert "X of none.npz is empty" in err


def test_only_reading_the_images_warns_of_a_folder(place):
    shutil.copy(place / "week1/one/000.png", place / "week1/beside.png")
    assert form_of_inputs(place / "week1") == ((1, 8, 8), 60)
    with pytest.warns(UserWarning, match="that are in no sub-folder of"):
        read_source(place / "week1")


@pytest.mark.parametrize("separator", [",", ";"])
def test_csv(place, learn, separator):
    lines = ["Path,Label"]
    for name in ("one", "zero"):
        lines += [f"week1/{name}/{i:03}.png,digit {name}" for i in range(20)]
    text = "\n".join([*lines, "week1/gone.png,digit one"])
    (place / "list.csv").write_text(text.replace(",", separator), encoding="utf-8-sig")
    err = learn("list.csv", fast=True)[2]
    assert "gone.png as an image: No such file" in err
    assert lmrc.load("m").classes_.tolist() == ["digit one", "digit zero"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a.png,one\n", "no column 'path'"),
        ("path,label\n,one\n", "line 2 has no path"),
        ("path,label\na.png\n", "line 2 has no label"),
        ("path,label\n", "lists no images"),
        ("path,label\na.png,one\n", "no image of class 'one'"),
        ("", "no column 'path'"),
        ("5.1,3.5,1.4,iris\n", "Numbers belong into an .npz file"),
        ("path\tlabel\n", r"('path\tlabel')"),
        (b"path,label\n\xff\xfe,one\n", "UTF-8"),
        ("x" * 10**4 + "\n", "x … x"),
        ("path,label\n" + "gone.png,one\n" * 1000, "none of the first 1,000 images of"),
    ],
)
def test_invalid_csv(place, learn, text, told):
    (place / "list.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert told in learn("list.csv", fast=True, code=1)[2]


def test_a_pipe_instead_of_a_csv_file_is_refused(place, learn):
    os.mkfifo(place / "list.csv")
    assert "list.csv is not a regular file" in learn("list.csv", fast=True, code=1)[2]


def test_npz(place, learn, call):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8), np.arange(40) % 2
    np.savez(place / "arrays.npz", X=X, y=y)
    out = learn("arrays.npz", "--val", "0.1", fast=True)[1]
    assert "36 images for training, 4 held out for validation" in out
    code, _, err = call("learn", "sized", "arrays.npz", "--size", "8", *FAST)
    assert code == 2
    assert "--size is for image files" in err
    err = learn("week1", code=1)[2]
    assert "labels so far were numbers, but 'one' is text" in err
    assert lmrc.load("m").classes_.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["empty", "text", "no y", "objects", "lengths"])
def test_invalid_npz(place, learn, kind):
    path = place / "arrays.npz"
    if kind == "no y":
        np.savez(path, X=np.zeros((2, 3)))
    elif kind == "objects":
        np.savez(path, X=np.array([{}, {}], dtype=object), y=np.zeros(2))
    elif kind == "lengths":
        np.savez(path, X=np.zeros((2, 3)), y=np.zeros(5))
    else:
        path.write_bytes(b"" if kind == "empty" else b"no archive")
    assert "arrays.npz" in learn("arrays.npz", fast=True, code=1)[2]


def test_other_files_and_flat_folders_are_refused(place, learn):
    (place / "notes.txt").write_text("my pets")
    assert "not a folder, a .csv or an .npz file" in learn("notes.txt", fast=True, code=2)[2]
    (place / "flat").mkdir()
    Image.new("L", (8, 8)).save(place / "flat" / "a.png")
    assert "no sub-folders" in learn("flat", fast=True, code=1)[2]
    assert not (place / "m").exists()


def test_unreadable_files_are_left_out_with_a_warning(place, learn):
    (place / "week1" / "one" / "broken.png").write_bytes(b"")
    err = learn("week1", fast=True)[2]
    assert err.startswith("lmrc: left out 1 file:")
    assert "broken.png" in err
    assert len(err.splitlines()) == 1


def test_unsupported_image_formats_give_a_warning(place, learn, call):
    for name in ("a.HEIC", "b.heic", "c.dng", "notes.txt"):
        (place / "week1" / "one" / name).write_bytes(b"")
    told = (
        "lmrc: left out 2 .heic files: convert to JPEG or PNG\n"
        "lmrc: left out 1 .dng file: convert to JPEG or PNG\n"
    )
    assert learn("week1", fast=True)[2] == told
    assert call("evaluate", "m", "week1")[2] == told


def test_unicode_forms_in_a_csv_are_one_class(place):
    rows = [f"week1/one/000.png,{COMPOSED}", f"week1/one/001.png,{DECOMPOSED}"]
    (place / "list.csv").write_text("\n".join(["path,label", *rows]), "utf-8")
    assert read_source(place / "list.csv").y.tolist() == [COMPOSED] * 2


def test_unicode_forms_in_arrays_are_one_class(place):
    arrays = {
        "X": np.zeros((4, 8, 8), np.uint8),
        "y": np.array([COMPOSED, "zero", DECOMPOSED, "zero"]),
    }
    np.savez(place / "arrays.npz", **arrays, X_val=arrays["X"][2:], y_val=arrays["y"][2:])
    samples = read_source(place / "arrays.npz")
    assert samples.y.tolist() == [COMPOSED, "zero"] * 2
    assert samples.y_val.tolist() == [COMPOSED, "zero"]
    np.savez(place / "none.npz", **arrays, X_val=arrays["X"][:0], y_val=arrays["y"][:0])
    assert read_source(place / "none.npz").y_val.dtype.kind == "U"


@pytest.mark.parametrize("command", ["learn", "evaluate"])
def test_predictions_are_refused_as_labels(place, model, call, command):
    (place / "predicted.csv").write_text(call("predict", model, "test", "--csv")[1])
    code, _, err = call(command, model, "predicted.csv")
    assert code == 1
    assert "has a column 'rank', like the output of lmrc predict --csv" in err
    (place / "predicted.csv").write_text("file,class,Similarity\ntest/one/000.png,one,0.9\n")
    assert "a column 'Similarity'" in call(command, model, "predicted.csv")[2]


def test_conversion_to_grey_gives_a_warning(place, learn, call):
    out = learn("week1", fast=True)[1]
    assert "input: grey images of 8×8 pixels; later images are converted to that\n" in out
    _, out, err = learn("week2")
    assert "later images" not in out
    assert err == ""
    for path in sorted(place.glob("week2/two/*.png"))[5:]:
        Image.open(path).convert("RGB").save(path)
    err = learn("week2")[2]
    assert err.count("colour images, such as") == 1
    assert "two/005.png, are converted to grey, because the model was started with" in err
    assert "are converted to grey" in call("evaluate", "m", "week2")[2]
    shutil.rmtree(place / "m")
    _, out, err = learn("week2", fast=True)
    assert "input: colour images of 8×8 pixels; later images are converted to that\n" in out
    assert err == ""
