import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from lmrc.data import image_files
from lmrc.data.datasets import load_dataset


def check_mnist(dataset, files):
    np.testing.assert_array_equal(dataset.X_train, files.train[0])
    np.testing.assert_array_equal(dataset.y_train, files.train[1])
    np.testing.assert_array_equal(dataset.X_test, files.test[0])
    np.testing.assert_array_equal(dataset.y_test, files.test[1])
    assert isinstance(dataset.X_train, np.memmap)


@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("form", ["gz", "plain"])
def test_mnist_is_found_compressed_or_not_where_people_have_it(
    data, mnist_files, write_files, place, form
):
    write_files(data / place, getattr(mnist_files, form))
    check_mnist(load_dataset("mnist"), mnist_files)


def test_mnist_unpacked_under_names_with_a_dot(data, mnist_files, write_files):
    write_files(data, {k.replace("-idx", ".idx"): v for k, v in mnist_files.plain.items()})
    check_mnist(load_dataset("mnist"), mnist_files)


def test_data_dir_names_the_folder(data, mnist_files, write_files, tmp_path):
    write_files(tmp_path / "elsewhere", mnist_files.gz)
    check_mnist(load_dataset("mnist", data_dir=tmp_path / "elsewhere"), mnist_files)
    check_mnist(load_dataset("mnist", data_dir=str(tmp_path / "elsewhere")), mnist_files)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-20],
        lambda content: content[:12] + bytes(20) + content[32:],
        lambda content: b"<html>not found</html>",
        lambda content: b"",
    ],
)
def test_a_damaged_file_is_named(data, mnist_files, write_files, damage):
    files = dict(mnist_files.gz)
    files["t10k-images-idx3-ubyte.gz"] = damage(files["t10k-images-idx3-ubyte.gz"])
    write_files(data, files)
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte\.gz is damaged"):
        load_dataset("mnist")


def test_labels_in_place_of_images_are_named(data, mnist_files, write_files):
    files = dict(mnist_files.plain)
    files["train-images-idx3-ubyte"] = files["train-labels-idx1-ubyte"]
    write_files(data, files)
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte is damaged .* 3 axes"):
        load_dataset("mnist")


def in_folder(members, top="cifar-100-python"):
    return {f"{top}/{name}": content for name, content in members.items()}


def check_cifar(dataset, cifar):
    np.testing.assert_array_equal(dataset.X_train, cifar.images["train"])
    np.testing.assert_array_equal(dataset.X_test, cifar.images["test"])
    assert dataset.y_train.tolist() == [0, 1, 2, 0, 1, 2]
    assert dataset.y_test.tolist() == [0, 1, 2]
    assert dataset.class_names == {0: "apple", 1: "baby", 2: "bear"}
    assert isinstance(dataset.X_train, np.memmap)


@pytest.mark.parametrize("place", [".", "cifar100"])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_cifar_archive(data, cifar, write_tar, place, prefix):
    (data / place).mkdir(exist_ok=True)
    members = in_folder(cifar.members, f"{prefix}cifar-100-python")
    write_tar(data / place / "cifar-100-python.tar.gz", members)
    check_cifar(load_dataset("cifar100"), cifar)


@pytest.mark.parametrize("inside", [False, True])
def test_cifar_unpacked(data, cifar, write_files, inside):
    folder = write_files(data / "cifar-100-python", cifar.members)
    check_cifar(load_dataset("cifar100", data_dir=folder if inside else data), cifar)


def test_cifar_records_written_with_text_keys(data, cifar, write_files):
    members = {}
    for name, content in cifar.members.items():
        record = pickle.loads(content, encoding="bytes")
        members[name] = pickle.dumps({key.decode(): value for key, value in record.items()})
    write_files(data / "cifar-100-python", members)
    check_cifar(load_dataset("cifar100"), cifar)


def test_the_second_load_needs_no_decoding(data, cifar, write_files, monkeypatch):
    write_files(data / "cifar-100-python", cifar.members)
    load_dataset("cifar100")
    monkeypatch.setattr("lmrc.data.public.load_plain_pickle", None)
    check_cifar(load_dataset("cifar100"), cifar)


class RunsACommand:
    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("name", ["train", "meta"])
def test_a_cifar_archive_cannot_run_anything(data, cifar, write_tar, tmp_path, name):
    evil = pickle.dumps({b"data": RunsACommand(f"touch {tmp_path / 'it-ran'}")}, protocol=2)
    write_tar(data / "cifar-100-python.tar.gz", in_folder(cifar.members | {name: evil}))
    with pytest.raises(pickle.UnpicklingError, match=rf"tar\.gz, {name}: .*system"):
        load_dataset("cifar100")
    assert not (tmp_path / "it-ran").exists()


def test_a_cifar_archive_writes_nothing_outside_the_cache(data, cifar, write_tar, tmp_path):
    members = in_folder(cifar.members)
    extra = {"../escaped": b"x", f"{tmp_path}/absolute": b"x", "cifar-100-python/../up": b"x"}
    write_tar(data / "cifar-100-python.tar.gz", extra | members)
    check_cifar(load_dataset("cifar100"), cifar)
    assert {path.name for path in tmp_path.iterdir()} == {"data", "home-cache"}
    assert {path.name for path in data.iterdir()} == {"cifar-100-python.tar.gz"}


def test_a_link_in_a_cifar_archive_is_not_followed(data, cifar, tmp_path):
    (tmp_path / "secret").write_bytes(cifar.members["train"])
    with tarfile.open(data / "cifar-100-python.tar.gz", "w:gz") as tar:
        for name in ("test", "meta"):
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(cifar.members[name])
            tar.addfile(info, io.BytesIO(cifar.members[name]))
        link = tarfile.TarInfo("cifar-100-python/train")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        tar.addfile(link)
    with pytest.raises(ValueError, match="it has no cifar-100-python/train"):
        load_dataset("cifar100")


def test_a_damaged_cifar_archive_is_named(data, cifar, write_tar):
    path = write_tar(data / "cifar-100-python.tar.gz", in_folder(cifar.members))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"cifar-100-python\.tar\.gz is damaged"):
        load_dataset("cifar100")


@pytest.mark.parametrize(
    "record",
    [
        {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [[0], [1]]},
        {b"data": [1, 2]},
        {b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [0, 99]},
        {b"data": np.zeros((2, 3072), np.float32), b"fine_labels": [0, 1]},
        {b"data": np.zeros((2, 100), np.uint8), b"fine_labels": [0, 1]},
        [1, 2, 3],
    ],
)
def test_records_of_another_kind_are_refused(data, cifar, write_files, record):
    members = cifar.members | {"train": pickle.dumps(record, protocol=2)}
    write_files(data / "cifar-100-python", members)
    with pytest.raises(ValueError, match="cifar-100-python is damaged or something else"):
        load_dataset("cifar100")


def check_tiny(dataset):
    assert dataset.X_train.shape == (6, 64, 64, 3)
    assert dataset.y_train.tolist() == ["n00000002"] * 3 + ["n00000001"] * 3
    # Numbers 0, 2, 10, in this order, though 10 sorts before 2 as text.
    reds = dataset.X_train.mean(axis=(1, 2))[:, 0].round()
    np.testing.assert_allclose(reds, [0, 20, 100] * 2, atol=2)
    assert dataset.y_test.tolist() == ["n00000001", "n00000002", "n00000001"]
    np.testing.assert_allclose(dataset.X_test.mean(axis=(1, 2, 3)), [0, 50, 100], atol=2)
    assert dataset.class_names == {"n00000001": "cat, house cat", "n00000002": "dog"}
    assert isinstance(dataset.X_train, np.memmap)


@pytest.mark.parametrize("name", ["tiny-imagenet-200.zip", "tiny-imagenet-2.zip"])
@pytest.mark.parametrize("top", ["tiny-imagenet-200/", "tiny-imagenet-2/", ""])
def test_tiny_imagenet_archive(data, tiny_files, write_zip, name, top):
    write_zip(data / name, tiny_files, top)
    dataset = load_dataset("imagenet200")
    check_tiny(dataset)
    assert dataset.note == f"2 of the 200 classes, from {name}."


def test_tiny_imagenet_unpacked(data, tiny_files, write_files):
    write_files(data / "tiny-imagenet-200", tiny_files)
    check_tiny(load_dataset("imagenet200"))
    check_tiny(load_dataset("imagenet200", data_dir=data / "tiny-imagenet-200"))


@pytest.fixture
def many_tiny_files(tiny_files, monkeypatch):
    """So many training images that they are decoded by worker processes."""
    monkeypatch.setattr("lmrc.data.image_files.AT_ONCE", 32)
    name, images = "train/n00000001/images/n00000001_{}.JPEG", {}
    for i in range(200):
        images[name.format(i)] = tiny_files[name.format((0, 2, 10)[i % 3])]
    return tiny_files | images


def test_tiny_imagenet_is_decoded_by_several_processes(data, many_tiny_files, write_zip, workers):
    write_zip(data / "tiny-imagenet-200.zip", many_tiny_files)
    dataset = load_dataset("imagenet200")
    assert workers == ([image_files.n_workers(32)] if image_files.FORKS else [])
    reds = dataset.X_train.mean(axis=(1, 2))[:, 0].round()
    np.testing.assert_allclose(reds, [0, 20, 100, *([0, 20, 100] * 67)[:200]], atol=2)


@pytest.fixture
def workers(monkeypatch):
    """How many workers each `DataLoader` has."""
    found, whole = [], image_files.DataLoader

    def loader(*args, num_workers, **options):
        found.append(num_workers)
        return whole(*args, num_workers=num_workers, **options)

    monkeypatch.setattr(image_files, "DataLoader", loader)
    return found


def test_an_image_that_a_worker_process_cannot_decode_is_named(data, many_tiny_files, write_zip):
    broken = many_tiny_files | {"train/n00000001/images/n00000001_77.JPEG": b"no JPEG"}
    write_zip(data / "tiny-imagenet-200.zip", broken)
    with pytest.raises(ValueError, match=r"official layout \(train/.*_77\.JPEG: cannot") as error:
        load_dataset("imagenet200")
    assert "\n" not in str(error.value)


def test_the_whole_tiny_imagenet_is_preferred_to_a_part(data, tiny_files, write_zip):
    write_zip(data / "tiny-imagenet-1.zip", tiny_files | {"wnids.txt": b"n00000002\n"})
    assert load_dataset("imagenet200").classes.tolist() == ["n00000002"]
    write_zip(data / "tiny-imagenet-200.zip", tiny_files)
    assert load_dataset("imagenet200").classes.tolist() == ["n00000001", "n00000002"]


def test_an_image_replaced_in_the_unpacked_folder_is_noticed(data, tiny_files, write_files):
    folder = write_files(data / "tiny-imagenet-200", tiny_files)
    before = load_dataset("imagenet200").X_train.copy()
    images = folder / "train" / "n00000001" / "images"
    (images / "n00000001_0.JPEG").write_bytes((images / "n00000001_10.JPEG").read_bytes())
    assert (load_dataset("imagenet200").X_train != before).any()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"wnids.txt": None}, r"no wnids\.txt"),
        ({"wnids.txt": b"n00000001\nn00000003\n"}, r"no training images of \['n00000003'\]"),
        ({"val/val_annotations.txt": None}, "val_annotations"),
        ({"val/images/val_2.JPEG": None}, r"val_2\.JPEG"),
        ({"train/n00000001/images/n00000001_2.JPEG": b"no JPEG"}, r"n00000001_2\.JPEG"),
    ],
)
def test_what_is_wrong_in_a_tiny_imagenet_archive_is_named(
    data, tiny_files, write_zip, changes, why
):
    files = {k: v for k, v in (tiny_files | changes).items() if v is not None}
    write_zip(data / "tiny-imagenet-200.zip", files)
    with pytest.raises(ValueError, match=rf"tiny-imagenet-200\.zip is damaged .*{why}"):
        load_dataset("imagenet200")


def test_a_truncated_tiny_imagenet_archive_is_named(data, tiny_files, write_zip):
    path = write_zip(data / "tiny-imagenet-200.zip", tiny_files)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"tiny-imagenet-200\.zip is damaged"):
        load_dataset("imagenet200")


def test_a_tiny_imagenet_archive_cannot_reach_outside(data, tiny_files, write_zip, tmp_path):
    evil = {
        "../../escaped.txt": b"x",
        "val/val_annotations.txt": tiny_files["val/val_annotations.txt"]
        + b"../../../../secret.JPEG\tn00000001\t0\t0\t0\t0\n",
    }
    (tmp_path / "secret.JPEG").write_bytes(tiny_files["val/images/val_0.JPEG"])
    write_zip(data / "tiny-imagenet-200.zip", tiny_files | evil)
    with pytest.raises(ValueError, match="secret"):
        load_dataset("imagenet200")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "home-cache", "secret.JPEG"}


def test_limit_takes_the_first_of_each_class_in_both_parts(data, tiny_files, write_zip):
    write_zip(data / "tiny-imagenet-200.zip", tiny_files)
    dataset = load_dataset("imagenet200", limit=1)
    assert dataset.y_train.tolist() == ["n00000002", "n00000001"]
    assert dataset.X_train.max() < 5
    assert dataset.y_test.tolist() == ["n00000001", "n00000002"]
    assert "first 1 images of each class" in dataset.note
