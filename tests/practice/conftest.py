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


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to be in, with digits as image files: week1, week2, test and other things."""
    monkeypatch.chdir(tmp_path)
    data = digits()
    for number, name in enumerate(NAMES):
        train, test = data.X_train[data.y_train == number], data.X_test[data.y_test == number]
        if number < 4:
            save_images(tmp_path / f"week{1 + number // 2}" / name, train[:30])
            save_images(tmp_path / "test" / name, test[:10])
        else:
            save_images(tmp_path / "other" / name, test[:10])
    return tmp_path


FAST = ("--backbone", "mlp", "--epochs", "3", "--batch-size", "16", "--device", "cpu")


@pytest.fixture
def learn(call):
    """Run ``lmrc learn`` on the model ``m``; the first time, with settings that are quick."""

    def run(*words, fast=False, code=0):
        done = call("learn", "m", *words, *(FAST if fast else ()))
        assert done[0] == code, done
        return done

    return run


@pytest.fixture
def model(place, learn):
    """The name of a model that knows four digits from two tasks."""
    learn("week1", "--quiet", fast=True)
    learn("week2", "--quiet")
    return "m"


@pytest.fixture
def calibrated(place, learn):
    """The name of an LMRC+ model with probabilities that knows four digits from two tasks."""
    rule = ("--method", "lmrc+", "--rotations", "none", "--set", "predict_with=lda")
    learn("week1", "--quiet", *rule, "--calibration-share", "0.2", fast=True)
    learn("week2", "--quiet")
    return "m"


@pytest.fixture
def same_files():
    """Tell whether two models hold the same tensors in all versions."""

    def compare(first, second):
        names = [{p.name for p in m.glob("*.safetensors")} for m in (first, second)]
        assert names[0] == names[1]

    return compare
