"""Tiny data sets in the official formats, and folders of their own for data and cache."""

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import Dataset

RNG = np.random.default_rng(0)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty data folder, named by LMRC_DATA, while the cache is at cache_folder()."""
    monkeypatch.delenv("LMRC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home-cache"))
    monkeypatch.setattr("platform.system", lambda: "Linux")
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("LMRC_DATA", str(folder))
    return folder


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist_files():
    """The four files of an MNIST with 2 classes, by name, and what they hold."""
    parts = {}
    for name, n in (("train", 6), ("t10k", 4)):
        parts[name] = RNG.integers(0, 256, (n, 28, 28), np.uint8), np.arange(n) % 2
    files = {f"{name}-images-idx3-ubyte": idx(X) for name, (X, _) in parts.items()}
    files |= {f"{name}-labels-idx1-ubyte": idx(y) for name, (_, y) in parts.items()}
    return SimpleNamespace(
        plain=files,
        gz={f"{name}.gz": gzip.compress(content) for name, content in files.items()},
        train=parts["train"],
        test=parts["t10k"],
    )


def python2_pickle(value):
    """Pickle as Python 2 with an old numpy did: strings as bytes, protocol 2."""

    def emit(value):
        if isinstance(value, dict):
            return b"}(" + b"".join(emit(k) + emit(v) for k, v in value.items()) + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(emit, value)) + b"e"
        if isinstance(value, bytes):
            return b"T" + struct.pack("<i", len(value)) + value
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        assert value.dtype == np.uint8
        dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        dtype += b"J\xff\xff\xff\xffK\x00tb"
        shape = b"(" + b"".join(map(emit, value.shape)) + b"t"
        return (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
            b"(K\x01" + shape + dtype + b"\x89" + emit(value.tobytes()) + b"tb"
        )

    return b"\x80\x02" + emit(value) + b"."


def python3_pickle(value):
    return pickle.dumps(value, protocol=2)


@pytest.fixture(params=[python2_pickle, python3_pickle])
def cifar(request):
    """A CIFAR-100 of 3 classes: its members by name, and the images they hold."""
    names = [b"apple", b"baby", b"bear"]
    images, members = {}, {}
    for part, n in (("train", 6), ("test", 3)):
        images[part] = RNG.integers(0, 256, (n, 32, 32, 3), np.uint8)
        record = {
            b"filenames": [b"a.png"] * n,
            b"batch_label": b"batch 1 of 1",
            b"fine_labels": [i % 3 for i in range(n)],
            b"coarse_labels": [0] * n,
            b"data": images[part].transpose(0, 3, 1, 2).reshape(n, 3072),
        }
        members[part] = request.param(record)
    members["meta"] = request.param({b"fine_label_names": names, b"coarse_label_names": []})
    return SimpleNamespace(members=members, images=images)


@pytest.fixture
def write_tar():
    def write(path, members):
        with tarfile.open(path, "w:gz") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return path

    return write


def jpeg(colour, mode="RGB"):
    file = io.BytesIO()
    Image.new(mode, (64, 64), colour).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.fixture
def tiny_files():
    """A Tiny-ImageNet of 2 classes, file by file; the number of an image is its brightness / 10."""
    files = {
        "wnids.txt": b"n00000002\nn00000001\n",
        "words.txt": b"n00000001\tcat, house cat\nn00000002\tdog\nn99999999\tnone of ours\n",
        "val/val_annotations.txt": b"val_0.JPEG\tn00000001\t0\t1\t2\t3\n"
        b"val_1.JPEG\tn00000002\t0\t1\t2\t3\nval_2.JPEG\tn00000001\t0\t1\t2\t3\n",
        "test/images/test_0.JPEG": jpeg((1, 1, 1)),
    }
    for wnid in ("n00000001", "n00000002"):
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"0\t0\t1\t1\n"
        for i in (10, 2, 0):  # not in their order, as in the official archive
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg((10 * i, 0, 0))
    for i in range(3):
        grey = i == 1  # some of the official ones are
        files[f"val/images/val_{i}.JPEG"] = jpeg(50 * i, "L") if grey else jpeg((50 * i,) * 3)
    return files


@pytest.fixture
def write_zip():
    def write(path, files, top="tiny-imagenet-200/"):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(top + name, content)
        return path

    return write


@pytest.fixture
def write_files():
    def write(folder, files):
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder

    return write


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


@pytest.fixture
def as_dataset():
    """Return what makes a torch ``Dataset`` of a list."""
    return Items
