"""Images that do not fit into memory are read from disk, and nothing else changes."""

import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lmrc import LMRCClassifier, LMRCPlusClassifier, cli, load
from lmrc.data import folders, image_files
from lmrc.data.datasets import digits
from lmrc.data.folders import folder
from lmrc.data.image_files import ImageFiles, Names, available_memory
from lmrc.data.images import list_images
from lmrc.data.stream import ClassStream
from lmrc.methods.joint import JointClassifier
from lmrc.statistics import gather


@pytest.fixture
def pictures(tmp_path):
    """Four digits, 12 images each, and a file that is none."""
    data = digits()
    for label in range(4):
        place = tmp_path / "pictures" / f"digit {label}" / "deep"
        place.mkdir(parents=True)
        for i, pixels in enumerate(data.X_train[data.y_train == label][:12]):
            Image.fromarray(pixels).save(place.parent / f"{i}.png" if i % 2 else place / f"{i}.png")
    (tmp_path / "pictures" / "digit 2" / "5.png").write_bytes(b"not an image")
    return tmp_path / "pictures"


@pytest.fixture
def little_memory(monkeypatch):
    """Too little for any image; and a few of them are many."""
    monkeypatch.setattr(folders, "available_memory", lambda: 100)
    monkeypatch.setattr(image_files, "AT_ONCE", 16)


def read(path):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data = folder(path)
    return data, " ".join(str(warning.message) for warning in said)


def test_names_are_the_paths_in_little_memory(pictures):
    listed = list_images(pictures)
    names = Names(pictures)
    assert list(names) == listed == sorted(listed, key=lambda path: path.parts)
    assert len(names) == len(listed) == 48
    assert list(names[3:40:5]) == listed[3:40:5]
    odd = np.arange(48) % 2 == 1
    assert list(names.take(odd)[:-1]) == listed[1::2][:-1]
    assert names[-1] == listed[-1]


def test_a_folder_larger_than_memory_has_the_same_samples(pictures, request):
    there, _ = read(pictures)
    request.getfixturevalue("little_memory")
    streamed, said = read(pictures)
    assert "read from disk each time" in said
    assert "5.png" in said  # left out
    assert isinstance(streamed.X_train, ImageFiles)
    for part in ("train", "test"):
        X = getattr(streamed, f"X_{part}")
        np.testing.assert_array_equal(np.asarray(X), getattr(there, f"X_{part}"))
        assert X.shape == getattr(there, f"X_{part}").shape
        assert getattr(streamed, f"y_{part}").tolist() == getattr(there, f"y_{part}").tolist()
    split, other = streamed.validation_split(0.3), there.validation_split(0.3)
    np.testing.assert_array_equal(np.asarray(split.X_test), other.X_test)


@pytest.fixture
def few_at_once(monkeypatch):
    """More images than a mini-batch of 7 (and a last one of 1) are too many to decode at once."""
    decode = ImageFiles.__array__

    def decode_few(self, *how, **ever):
        assert len(self) <= 8, f"{len(self)} images in memory at once"
        return decode(self, *how, **ever)

    monkeypatch.setattr(ImageFiles, "__array__", decode_few)
    monkeypatch.setattr(gather, "AT_A_TIME", 7)
    monkeypatch.setattr(gather, "TOGETHER", 2)


@pytest.mark.parametrize(("method", "per_class"), [(LMRCClassifier, 0), (LMRCPlusClassifier, 3)])
def test_what_is_streamed_is_learnt_as_what_is_in_memory(
    pictures, method, per_class, few_at_once, request
):
    there, _ = read(pictures)
    request.getfixturevalue("little_memory")
    streamed, _ = read(pictures)
    learnt = []
    for data in (there, streamed):
        settings = {"backbone": "cnn", "epochs": 2, "batch_size": 7, "memory_per_class": per_class}
        settings |= {"first_epochs": None}
        model = method(**settings, augment="crop", random_state=0, device="cpu")
        before = torch.get_rng_state()
        for task in ClassStream(data, tasks=2):
            model.partial_fit(task.X_train, task.y_train)
        assert torch.equal(before, torch.get_rng_state())
        groups = [getattr(model, name) for name in model.saved_tensors]
        kept = {
            name: t for group in [model.network_.state_dict(), *groups] for name, t in group.items()
        }
        learnt.append((kept, model.predict(data.X_test).tolist()))
    (kept, predicted), (kept_streamed, predicted_streamed) = learnt
    assert predicted == predicted_streamed
    assert kept.keys() == kept_streamed.keys()
    for name, value in kept.items():
        assert torch.equal(value, kept_streamed[name]), name


@pytest.mark.filterwarnings("default")
def test_a_model_learns_from_a_folder_larger_than_memory(
    pictures, little_memory, monkeypatch, capsys
):
    monkeypatch.chdir(pictures.parent)
    words = ["learn", "digits.lmrc", "pictures", "--epochs", "2", "--val", "0.2"]
    monkeypatch.setattr(sys, "argv", ["lmrc", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    told = capsys.readouterr()
    assert not end.value.code, told.err
    assert "read from disk each time they are needed" in told.err
    assert len(load("digits.lmrc").classes_) == 4
    assert "validation accuracy" in told.out


def test_joint_training_refuses_what_does_not_fit(pictures, little_memory):
    data, _ = read(pictures)
    with pytest.raises(ValueError, match="keeps all samples in memory"):
        JointClassifier(epochs=1).partial_fit(data.X_train, data.y_train)


def test_a_class_without_a_readable_image_is_named(pictures, little_memory):
    for file in list_images(pictures / "digit 1"):
        file.write_bytes(b"none")
    with pytest.warns(UserWarning, match="from disk"), pytest.raises(ValueError, match="digit 1"):
        folder(pictures)


def test_available_memory_is_shared_by_the_processes_of_a_command(monkeypatch):
    assert available_memory() > 2**20
    files = {"meminfo": "MemTotal: 9000 kB\nMemAvailable: 4096 kB\n", "memory.max": "max\n"}
    monkeypatch.setattr(Path, "read_text", lambda path: files.get(path.name, ""))
    for processes in ("1", "4"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        assert available_memory() == 2**22 / int(processes)


def test_available_memory_is_what_the_container_has_left(monkeypatch):
    files = {
        "meminfo": "MemAvailable: 4096 kB\n",
        "memory.max": "1000000\n",
        "memory.current": "900000\n",
        "memory.stat": "anon 600000\nfile 300000\ninactive_file 200000\nactive_file 50000\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda path: files[path.name])
    assert available_memory() == 350_000
