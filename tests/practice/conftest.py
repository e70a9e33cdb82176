import contextlib
import io
import shutil

import pytest
from PIL import Image

from lmrc.data.datasets import digits

NAMES = ("zero", "one", "two", "three", "four")


@pytest.fixture(scope="module", autouse=True)
def undrawn(undrawn):
    """Figures are tested with the reports."""


def save_images(folder, images):
    folder.mkdir(parents=True, exist_ok=True)
    for i, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{i:03}.png")


@pytest.fixture(scope="session")
def image_files(tmp_path_factory):
    """A folder with digits as image files: week1, week2, test and other things."""
    folder, data = tmp_path_factory.mktemp("images"), digits()
    for number, name in enumerate(NAMES):
        train, test = data.X_train[data.y_train == number], data.X_test[data.y_test == number]
        if number < 4:
            save_images(folder / f"week{1 + number // 2}" / name, train[:30])
            save_images(folder / "test" / name, test[:10])
        else:
            save_images(folder / "other" / name, test[:10])
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch, image_files):
    """A folder to be in, with a copy of the image files."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(image_files, tmp_path, shutil.copyfile, dirs_exist_ok=True)


FAST = ("--backbone", "mlp", "--epochs", "3", "--batch-size", "16", "--device", "cpu")


@pytest.fixture
def learn(call):
    """Run ``lmrc learn`` on the model ``m``; the first time, with settings that are quick."""

    def run(*words, fast=False, code=0):
        done = call("learn", "m", *words, *(FAST if fast else ()))
        assert done[0] == code, done
        return done

    return run


@pytest.fixture(scope="session")
def trained(image_files, tmp_path_factory, run_command):
    """Return what trains a model on two tasks of two digits; the same one once for all tests."""
    models = {}

    def train(*words):
        if words not in models:
            folder = models[words] = tmp_path_factory.mktemp("trained")
            with contextlib.chdir(image_files), contextlib.redirect_stdout(io.StringIO()):
                first = ("week1", *words, *FAST)
                for learnt in (first, ("week2",)):
                    assert run_command("learn", str(folder / "m"), *learnt, "--quiet") == 0
        return models[words] / "m"

    return train


@pytest.fixture
def model(place, trained):
    """The name of a model that knows four digits from two tasks."""
    shutil.copytree(trained(), "m")
    return "m"


@pytest.fixture
def calibrated(place, trained):
    """The name of an LMRC+ model with probabilities that knows four digits from two tasks."""
    rule = ("--method", "lmrc+", "--rotations", "none", "--set", "predict_with=lda")
    shutil.copytree(trained(*rule, "--calibration-share", "0.2"), "m")
    return "m"


@pytest.fixture
def same_files():
    """Tell whether two models hold the same tensors in all versions."""

    def compare(first, second):
        names = [{p.name for p in m.glob("*.safetensors")} for m in (first, second)]
        assert names[0] == names[1]

    return compare
