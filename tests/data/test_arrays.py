import os
import zipfile

import numpy as np
import pytest

from lmrc import load_dataset

X, Y = np.arange(60, dtype=np.float32).reshape(20, 3), np.repeat(["a", "b"], 10)


@pytest.fixture
def save(tmp_path):
    """Write arrays into a file, and return its name as a data set's."""

    def write(**arrays):
        np.savez(tmp_path / "own.npz", **arrays)
        return f"npz:{tmp_path / 'own.npz'}"

    return write


def test_a_fifth_of_each_class_is_held_out_the_same_every_time(save):
    dataset = load_dataset(save(X=X, y=Y))
    assert (len(dataset.y_train), dataset.y_test.tolist()) == (16, ["a", "a", "b", "b"])
    assert sorted([*dataset.X_train[:, 0], *dataset.X_test[:, 0]]) == X[:, 0].tolist()
    assert "20 % of each class" in dataset.note
    assert load_dataset(save(X=X, y=Y)).digest == dataset.digest
    assert load_dataset(save(X=X + 1, y=Y)).digest != dataset.digest
    assert len(load_dataset(save(X=X, y=Y), limit=3).y_train) == 6


@pytest.mark.parametrize("part", ["test", "val"])
def test_a_test_part_of_its_own_is_taken(save, part):
    dataset = load_dataset(save(X=X, y=Y, **{f"X_{part}": X[:2], f"y_{part}": Y[:2]}))
    assert (len(dataset.y_train), len(dataset.y_test)) == (20, 2)
    assert dataset.note == f"Test samples from X_{part}."


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": X}, "cannot be read as an .npz file with X and y: .*y"),
        ({"X": X, "y": Y[:5]}, "20 samples but y_train 5 labels"),
        ({"X": X, "y": Y.astype(object)}, r"store text as text, y\.astype\(str\)"),
        ({"X": X[:0], "y": Y[:0]}, "0 samples"),
        ({"X": X[:11], "y": Y[:11]}, "class 'b' of .* has a single sample"),
        ({"X": np.zeros((20, 0, 8, 3), np.uint8), "y": Y}, r"X has the shape \(20, 0, 8, 3\)"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(save, arrays, words):
    with pytest.raises(ValueError, match=words):
        load_dataset(save(**arrays))


def test_wrong_names_are_named(save, tmp_path):
    with pytest.raises(ValueError, match="write npz:PATH"):
        load_dataset("npz:")
    with pytest.raises(ValueError, match="size=8 is for folder:PATH"):
        load_dataset(save(X=X, y=Y), size=8)
    with pytest.raises(ValueError, match=r"write npz:.*own\.npz"):
        load_dataset(str(tmp_path / "own.npz"))
    with pytest.raises(ValueError, match=r"none\.npz cannot be read"):
        load_dataset(f"npz:{tmp_path / 'none.npz'}")


def test_what_is_no_array_and_no_file_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        archive.writestr("X.npy", b"text")
        archive.writestr("y.npy", b"text")
    with pytest.raises(ValueError, match="X is no array"):
        load_dataset(f"npz:{tmp_path / 'own.npz'}")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(ValueError, match="it is not a file"):
        load_dataset(f"npz:{tmp_path / 'pipe.npz'}")
