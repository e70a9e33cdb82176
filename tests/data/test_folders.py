import re
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image

from lmrc.data import image_files
from lmrc.data.datasets import load_dataset
from lmrc.data.folders import folder, held_out, read_files


def paint(path, brightness, size=(20, 20), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (brightness,) * 3 if mode == "RGB" else brightness
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def pets(tmp_path):
    """Ten cats, brightness 0 to 9, and five dogs, brightness 100 to 104."""
    for i in range(10):
        paint(tmp_path / "pets" / "cat" / f"{i}.png", i)
    for i in range(5):
        paint(tmp_path / "pets" / "dog" / f"{i}.png", 100 + i)
    return tmp_path / "pets"


def brightness(X):
    return X.reshape(len(X), -1).max(axis=1).tolist()


def test_one_subfolder_per_class_with_a_fifth_held_out(pets):
    dataset = load_dataset(f"folder:{pets}")
    assert dataset.name == "pets"
    assert dataset.y_train.tolist() == ["cat"] * 8 + ["dog"] * 4
    assert dataset.y_test.tolist() == ["cat"] * 2 + ["dog"]
    assert dataset.X_train.shape == (12, 20, 20, 3)
    seen = brightness(dataset.X_train) + brightness(dataset.X_test)
    assert sorted(seen) == [*range(10), *range(100, 105)]
    assert "20 %" in dataset.note


def test_the_split_is_the_same_every_time_and_one_class_does_not_change_anothers(pets):
    first = folder(pets)
    np.testing.assert_array_equal(first.X_test, folder(pets).X_test)
    for i in range(3):
        paint(pets / "ape" / f"{i}.png", 50 + i)
    cats = folder(pets)
    assert brightness(cats.X_test[cats.y_test == "cat"]) == brightness(
        first.X_test[first.y_test == "cat"]
    )


def test_one_name_in_two_forms_of_unicode_is_one_class(pets):
    (pets / "dog").rename(pets / "caf\u00e9")
    (pets / "cat").rename(pets / "cafe\u0301")
    dataset = folder(pets)
    assert set(dataset.y_train) == set(dataset.y_test) == {"caf\u00e9"}
    seen = brightness(dataset.X_train) + brightness(dataset.X_test)
    assert sorted(seen) == [*range(10), *range(100, 105)]


def test_what_a_mac_adds_to_a_zip_file_is_no_class(pets):
    paint(pets / "__MACOSX" / "cat" / "0.png", 9)
    (pets / "__MACOSX" / "cat" / "._1.png").write_bytes(b"")
    assert set(folder(pets).y_train) == {"cat", "dog"}


def make_split(root, train="train", test="test"):
    for label, value in (("cat", 1), ("dog", 2)):
        for i in range(3):
            paint(root / train / label / f"{i}.png", value)
        paint(root / test / label / "0.png", 10 * value)
    return root


@pytest.mark.parametrize("test", ["test", "val", "Validation"])
def test_train_and_test_above_the_classes(tmp_path, test):
    make_split(tmp_path, test=test)
    (tmp_path / "annotations").mkdir()
    dataset = folder(tmp_path)
    assert dataset.y_train.tolist() == ["cat"] * 3 + ["dog"] * 3
    assert dataset.y_test.tolist() == ["cat", "dog"]
    assert brightness(dataset.X_test) == [10, 20]
    assert f"{test}/" in dataset.note


def test_test_counts_before_val(tmp_path):
    make_split(make_split(tmp_path), test="val")
    paint(tmp_path / "val" / "cat" / "0.png", 99)
    assert brightness(folder(tmp_path).X_test) == [10, 20]


def test_without_labelled_test_images_a_fifth_of_train_is_held_out(tmp_path):
    make_split(tmp_path, test="elsewhere/test")
    (tmp_path / "elsewhere").rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    paint(tmp_path / "test" / "unlabelled.png", 5)
    dataset = folder(tmp_path)
    assert dataset.classes.tolist() == ["cat", "dog"]
    assert len(dataset.y_test) == 2


def test_a_class_may_be_called_train(tmp_path):
    for label in ("train", "bus", "test"):
        for i in range(2):
            paint(tmp_path / label / f"{i}.png", 1)
    assert folder(tmp_path).classes.tolist() == ["bus", "test", "train"]


def test_limit_takes_the_first_of_each_class_and_decodes_no_more(pets, monkeypatch):
    whole = folder(pets)
    read = []
    monkeypatch.setattr(
        "lmrc.data.image_files.read_image",
        lambda path, *args: read.append(path) or np.zeros((20, 20, 3), np.uint8),
    )
    folder(pets, limit=2)
    assert len(read) == 2 + 2 + 2 + 1
    monkeypatch.undo()
    limited = load_dataset(f"folder:{pets}", limit=2)
    assert limited.y_train.tolist() == ["cat", "cat", "dog", "dog"]
    assert limited.y_test.tolist() == ["cat", "cat", "dog"]
    same = whole.first_per_class(2)
    np.testing.assert_array_equal(limited.X_train, same.X_train)
    assert limited.note == same.note


def test_limit_goes_on_to_the_next_where_a_file_is_unreadable(pets):
    first = brightness(folder(pets, limit=1).X_train)[0]
    (pets / "cat" / f"{first}.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="left out 1 file"):
        dataset = folder(pets, limit=3)
    assert (dataset.y_train == "cat").sum() == 3


def test_images_of_several_sizes_become_64_or_the_given_size(pets):
    paint(pets / "dog" / "wide.png", 7, size=(90, 30))
    assert folder(pets).X_train.shape[1:] == (64, 64, 3)
    assert folder(pets, size=16).X_train.shape[1:] == (16, 16, 3)
    assert load_dataset(f"folder:{pets}", size=(8, 12)).X_test.shape[1:] == (8, 12, 3)


def test_all_grey_images_stay_grey(tmp_path):
    for label in ("a", "b"):
        for i in range(2):
            paint(tmp_path / label / f"{i}.png", 9, mode="L")
    assert folder(tmp_path).X_train.shape == (2, 20, 20)
    paint(tmp_path / "b" / "colour.png", 9)
    assert folder(tmp_path).X_train.shape[1:] == (20, 20, 3)


def test_unreadable_files_are_left_out_counted_and_named(pets):
    for i in range(7):
        (pets / "cat" / f"broken-{i}.jpg").write_bytes(b"no image")
    with pytest.warns(UserWarning, match=r"left out 7 files") as caught:
        dataset = folder(pets)
    assert len(dataset.y_train) + len(dataset.y_test) == 15
    message = str(caught[0].message)
    assert re.search(r"cat/broken-\d\.jpg as an image: it has no known format", message)
    assert message.count("broken-") == 5
    assert caught[0].filename == __file__


def test_many_files_are_decoded_by_several_processes(pets, monkeypatch):
    (pets / "cat" / "broken.jpg").write_bytes(b"no image")
    with pytest.warns(UserWarning, match="left out 1 file"):
        alone = folder(pets)
    started, whole = [], image_files.DataLoader
    monkeypatch.setattr(
        image_files, "DataLoader", lambda *a, **kw: started.append(kw) or whole(*a, **kw)
    )
    monkeypatch.setattr(image_files, "AT_ONCE", 2)
    with pytest.warns(UserWarning, match=r"left out 1 file.*broken.jpg"):
        shared = folder(pets)
    assert len(started) == (2 if image_files.FORKS else 0)  # training and test images
    for name in ("X_train", "y_train", "X_test", "y_test"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name))
    opened = {name: [path.open("rb") for path in (pets / name).glob("?.png")] for name in ("cat",)}
    X, _ = read_files(opened, 20, "RGB", [])
    assert sorted(brightness(X)) == list(range(10))
    assert len(started) == (2 if image_files.FORKS else 0)  # of open files, the position is shared
    for file in opened["cat"]:
        file.close()


def test_odd_files_are_ignored_without_a_word(pets):
    (pets / "cat" / "notes.txt").write_text("my cats")
    (pets / "cat" / ".hidden.png").write_bytes(b"no image")
    (pets / ".git").mkdir()
    (pets / "README.md").write_text("pets")
    (pets / "cat" / "kittens").mkdir()
    paint(pets / "cat" / "kittens" / "k.png", 33)
    (pets / "loop").symlink_to(pets, target_is_directory=True)
    (pets / "cat" / "loop").symlink_to(pets, target_is_directory=True)
    with warnings.catch_warnings(action="error"):
        dataset = folder(pets)
    assert dataset.classes.tolist() == ["cat", "dog"]
    assert len(dataset.y_train) + len(dataset.y_test) == 16


def test_images_outside_of_class_folders_are_reported(pets):
    for name in ("zebra.PNG", "ape.png", ".hidden.png"):
        paint(pets / name, 7)
    with pytest.warns(UserWarning, match=r"left out images .* of .*pets: ape\.png and 1 more; "):
        dataset = folder(pets)
    assert len(dataset.y_train) + len(dataset.y_test) == 15


def test_one_folder_too_many_is_reported(pets, recwarn):
    folder(pets)
    assert not recwarn
    with pytest.warns(UserWarning, match=f"are the classes, give {pets}$"):
        folder(pets.parent)
    shutil.copytree(pets, pets.parent / "week2")
    with pytest.warns(UserWarning, match=rf"\(pets, week2\).*give {pets} first, then each of"):
        folder(pets.parent)
    Image.new("RGB", (8, 8)).save(pets / "beside.png")  # images of its own: a class
    with warnings.catch_warnings(action="error"):
        folder(pets.parent)


def test_the_parent_of_folders_for_training_and_testing_is_refused(pets, tmp_path):
    shutil.copytree(pets, tmp_path / "photos" / "mine" / "train")
    shutil.copytree(pets, tmp_path / "photos" / "mine" / "test")
    with pytest.raises(ValueError, match=rf"too high: .* give {tmp_path}/photos/mine$"):
        folder(tmp_path / "photos")
    assert folder(tmp_path / "photos" / "mine").classes.tolist() == ["cat", "dog"]


def test_a_linked_class_folder_is_a_class(pets, tmp_path):
    for i in range(2):
        paint(tmp_path / "elsewhere" / f"{i}.png", 77)
    (pets / "ape").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert folder(pets).classes.tolist() == ["ape", "cat", "dog"]


def test_a_linked_folder_within_a_class_is_part_of_it(pets, tmp_path):
    for i in range(3):
        paint(tmp_path / "elsewhere" / f"{i}.png", 77)
    (tmp_path / "elsewhere" / "back").symlink_to(pets / "dog", target_is_directory=True)
    (pets / "dog" / "more").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (pets / "dog" / "round").symlink_to("round")
    dataset = folder(pets)
    assert (np.concatenate([dataset.y_train, dataset.y_test]) == "dog").sum() == 8


def test_a_class_whose_test_images_are_broken_is_named_as_such(pets):
    held = held_out(sorted((pets / "dog").iterdir()), 0.2)[1]
    for path in held:
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"no image of class 'dog' to test with"):
        folder(pets)


def test_an_empty_class_is_named(pets):
    (pets / "bird").mkdir()
    (pets / "bird" / "notes.txt").write_text("none yet")
    (pets / "cat" / "phone.HEIC").write_bytes(b"not read, but there are others")
    with pytest.raises(ValueError, match=r"has no images .* of 'bird': add some, or remove"):
        folder(pets)
    (pets / "bird" / "phone.HEIC").write_bytes(b"not read")
    with pytest.raises(ValueError, match=r"of 'bird': convert .* bird/phone.HEIC, or remove"):
        folder(pets)


def test_a_class_without_a_readable_image_is_named(pets):
    for i in range(3):
        paint(pets / "bird" / f"{i}.png", 1)
        (pets / "bird" / f"{i}.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"no image of class 'bird'"):
        folder(pets)


def test_a_single_image_cannot_be_split(pets):
    paint(pets / "bird" / "0.png", 1)
    with pytest.raises(ValueError, match="class 'bird' has a single image"):
        folder(pets)


def test_a_class_with_test_images_alone_is_named(tmp_path):
    make_split(tmp_path)
    paint(tmp_path / "test" / "bird" / "0.png", 1)
    with pytest.raises(ValueError, match=r"\['bird'\] have test images but no sub-folder"):
        folder(tmp_path)


def test_images_without_subfolders_are_told_to_move(tmp_path):
    paint(tmp_path / "0.png", 1)
    with pytest.raises(ValueError, match="has no sub-folders; move the images"):
        folder(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="typo is no folder"):
        load_dataset(f"folder:{tmp_path / 'typo'}")


def test_a_missing_path_does_not_mean_the_current_folder(pets, monkeypatch):
    monkeypatch.chdir(pets)
    assert load_dataset("folder:.").name == "pets"
    with pytest.raises(ValueError, match="lacks its path"):
        load_dataset("folder:")


def test_the_home_folder_may_be_abbreviated(pets, monkeypatch):
    monkeypatch.setenv("HOME", str(pets.parent))
    assert len(load_dataset("folder:~/pets").classes) == 2
