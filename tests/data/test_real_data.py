"""The real public sets, where LMRC_DATA names a folder that has them."""

import os

import numpy as np
import pytest

from lmrc.data import cache
from lmrc.data.datasets import load_dataset
from lmrc.data.sources import DatasetNotFoundError


@pytest.fixture
def real(tmp_path, monkeypatch):
    """Load a set twice, the second time without a decoder; skip where there is none."""
    if not os.environ.get("LMRC_DATA"):
        pytest.skip("set LMRC_DATA to a folder with the public data sets to run this")
    monkeypatch.setenv("LMRC_CACHE", str(tmp_path))
    monkeypatch.setattr("lmrc.data.sources._try_addresses", lambda *_: ["not asked for here"])

    def load(name):
        try:
            first = load_dataset(name)
        except DatasetNotFoundError as error:
            pytest.skip(f"LMRC_DATA lacks a file: {error}")
        with monkeypatch.context() as patch:
            patch.setattr(cache, "_decoded", None)
            second = load_dataset(name)
        assert isinstance(second.X_train, np.memmap)
        np.testing.assert_array_equal(first.X_test, second.X_test)
        return second

    return load


def test_mnist(real):
    dataset = real("mnist")
    assert dataset.X_train.shape == (60_000, 28, 28)
    assert dataset.X_test.shape == (10_000, 28, 28)
    assert dataset.y_train[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert dataset.X_train.mean() / 255 == pytest.approx(0.1307, abs=1e-4)


def test_cifar100(real):
    dataset = real("cifar100")
    assert dataset.X_train.shape == (50_000, 32, 32, 3)
    assert dataset.X_test.shape == (10_000, 32, 32, 3)
    assert np.bincount(dataset.y_train).tolist() == [500] * 100
    assert np.bincount(dataset.y_test).tolist() == [100] * 100
    means = dataset.X_train.mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(means, [0.5071, 0.4865, 0.4409], atol=1e-4)
    assert [dataset.class_names[i] for i in (0, 99)] == ["apple", "worm"]


def test_imagenet200(real):
    dataset = real("imagenet200")
    classes = len(dataset.classes)
    assert classes in (20, 100, 200)
    assert dataset.X_train.shape == (500 * classes, 64, 64, 3)
    assert dataset.X_test.shape == (50 * classes, 64, 64, 3)
    assert set(dataset.class_names) == set(dataset.classes.tolist())
    assert all((dataset.y_train == label).sum() == 500 for label in dataset.classes)
