import pytest
import torch

from lmrc.store import folder


@pytest.fixture
def write():
    """Return what writes a version of a model, which holds a number."""

    def write(path, n, **settings):
        tensors = {"weights": {"a": torch.full((999,), float(n))}, "labels": {"v": torch.ones(2)}}
        with folder.writing(path):
            folder.write(path, {"n": n}, tensors, **settings)

    return write


@pytest.fixture
def names():
    """Return what lists the files of a folder."""
    return lambda path: sorted(p.name for p in path.iterdir())


@pytest.fixture
def model(tmp_path, write):
    """A model with the versions 2 and 3."""
    for n in (1, 2, 3):
        write(tmp_path / "m", n, keep=2, note={"n": n})
    return tmp_path / "m"
