import numpy as np
import pytest
from sklearn.datasets import load_digits

from lmrc.data.datasets import Dataset, digits, load_dataset


def make(**changes):
    parts = {
        "name": "toy",
        "X_train": np.zeros((4, 3), np.float32),
        "y_train": np.array([2, 0, 1, 0]),
        "X_test": np.zeros((2, 3), np.float32),
        "y_test": np.array([1, 2]),
    }
    return Dataset(**(parts | changes))


def test_string_labels_from_an_object_array_become_plain_strings():
    dataset = make(
        y_train=np.array(["b", "a", "b", "c"], dtype=object),
        y_test=np.array(["a", "c"], dtype=object),
    )
    assert dataset.classes.tolist() == ["a", "b", "c"]
    assert dataset.y_train.dtype.kind == "U"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": [0, 1, 2]}, "X_train holds 4 samples but y_train 3 labels"),
        ({"y_test": [0]}, "X_test holds 2 samples but y_test 1 labels"),
        ({"y_test": [1, 7]}, r"such as \[7\]"),
        ({"y_train": [0.0, 1.0, 2.0, 0.5]}, "ints or strings, got type float64"),
        ({"y_train": [0, 1, 2, "cat"]}, "ints or strings, got type object"),
        ({"y_train": np.zeros((4, 2), int)}, r"y_train must be of shape \(n,\), got \(4, 2\)"),
        ({"y_test": ["a", "b"]}, "use ints in both or strings in both"),
        ({"X_test": np.zeros((2, 5), np.float32)}, r"shape \(5,\)"),
        ({"X_test": np.zeros((2, 3), np.uint8)}, "type uint8; prepare both parts alike"),
        ({"X_train": np.zeros(4)}, r"X_train must be numbers .* got shape \(4,\)"),
        ({"X_train": np.array([["a"]] * 4)}, "type <U1"),
        (
            {"X_train": np.zeros((0, 3), np.float32), "y_train": np.array([], int)},
            "X_train holds 0 samples",
        ),
    ],
)
def test_wrong_parts_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_a_validation_split_is_of_the_training_part_alone_and_always_the_same():
    whole = digits()
    first, again = whole.validation_split(0.2), whole.validation_split(0.2)
    np.testing.assert_array_equal(first.X_test, again.X_test)
    together = np.concatenate([first.X_train, first.X_test])
    assert sorted(map(bytes, together)) == sorted(map(bytes, whole.X_train))
    for label, n in zip(*np.unique(whole.y_train, return_counts=True), strict=True):
        assert np.sum(first.y_test == label) == round(0.2 * n)
    assert "20 % of each class's training images" in first.note


def test_a_validation_split_leaves_something_to_learn_of_each_class():
    parts = {"X_test": np.zeros((0, 3), np.float32), "y_test": np.array([], int)}
    pairs = make(y_train=[0, 0, 1, 1], **parts)
    for fraction in (0.01, 0.99):
        split = pairs.validation_split(fraction)
        assert split.y_train.tolist() == split.y_test.tolist() == [0, 1]
    with pytest.raises(ValueError, match="class 1 has a single training sample"):
        make().validation_split(0.1)
    for fraction in (0, 1, 1.5):
        with pytest.raises(ValueError, match="between 0 and 1"):
            pairs.validation_split(fraction)


def test_memory_mapped_samples_are_not_copied(tmp_path):
    np.save(tmp_path / "X.npy", np.arange(12, dtype=np.float32).reshape(4, 3))
    X = np.load(tmp_path / "X.npy", mmap_mode="r")
    dataset = make(X_train=X)
    assert isinstance(dataset.X_train, np.memmap)
    assert np.shares_memory(dataset.X_train, X)


def test_dataset_cannot_be_changed_by_accident():
    with pytest.raises(AttributeError):
        make().name = "other"


def test_as_vectors_flattens_and_scales_bytes_but_not_floats():
    images = np.array([[[0, 255], [51, 102]]] * 4, np.uint8)
    vectors = make(X_train=images, X_test=images[:2]).as_vectors()
    np.testing.assert_allclose(vectors.X_train[0], [0, 1, 0.2, 0.4], rtol=1e-6)
    assert vectors.X_test.shape == (2, 4)
    assert vectors.X_train.dtype == np.float32

    floats = make(X_train=np.full((4, 3), 7.5), X_test=np.full((2, 3), 7.5)).as_vectors()
    assert floats.X_test.max() == 7.5


def test_digits_scale_ink_to_bytes():
    X = digits().X_train
    assert X.dtype == np.uint8
    steps = [0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255]
    assert np.unique(X).tolist() == steps


def test_digits_split_is_fixed_stratified_and_complete():
    first, second = digits(), digits()
    np.testing.assert_array_equal(first.X_test, second.X_test)
    np.testing.assert_array_equal(first.y_train, second.y_train)

    whole = np.bincount(load_digits().target)
    train, test = np.bincount(first.y_train), np.bincount(first.y_test)
    np.testing.assert_array_equal(train + test, whole)
    np.testing.assert_allclose(test / whole, 0.25, atol=0.01)
    together = np.concatenate([first.X_train, first.X_test])
    rescaled = np.rint(load_digits().images * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, together)) == sorted(map(bytes, rescaled))


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown data set 'digit'; known are: digits"):
        load_dataset("digit")


def test_a_folder_without_its_prefix_is_recognised(tmp_path):
    with pytest.raises(ValueError, match=f"write folder:{tmp_path}"):
        load_dataset(str(tmp_path))


def test_names_and_note_survive_a_change_of_form():
    dataset = make(class_names={0: "zero"}, note="Toy.")
    assert dataset.as_vectors().class_names == {0: "zero"}
    assert dataset.as_vectors().note == "Toy."
    assert dataset.first_per_class(1).note.startswith("Toy. Only the first 1 images")


def test_first_per_class_limits_both_parts_and_keeps_the_order():
    X = np.arange(8, dtype=np.float32)[:, None]
    y = np.array([2, 0, 1, 0, 2, 2, 1, 1])
    limited = make(X_train=X, y_train=y, X_test=X[:5], y_test=y[:5]).first_per_class(2)
    assert limited.X_train[:, 0].tolist() == [0, 1, 2, 3, 4, 6]
    assert limited.y_train.tolist() == [2, 0, 1, 0, 2, 1]
    assert limited.X_test[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("limit", [0, -1, 2.5, "5", True])
@pytest.mark.parametrize("name", ["digits", "folder:/no/such/folder"])
def test_a_wrong_limit_is_named_before_anything_is_read(name, limit):
    with pytest.raises(ValueError, match=f"limit must be .* got {limit!r}"):
        load_dataset(name, limit=limit)


def test_a_size_is_for_folders_alone():
    with pytest.raises(ValueError, match="size=32 is for folder:PATH"):
        load_dataset("digits", size=32)
