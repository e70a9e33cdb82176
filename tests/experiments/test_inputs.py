"""Experiments on a user's own images and arrays."""

import numpy as np
import pytest
from PIL import Image

from lmrc.data import folders
from lmrc.experiments.reproduce import main
from lmrc.report.records import read_records

QUICK = {"seeds": 1, "epochs": 1, "tasks": 2, "device": "cpu", "quiet": True, "jobs": 1}


@pytest.fixture
def wide(tmp_path):
    """A folder of four classes, with images of 8×12 pixels."""
    rng = np.random.default_rng(0)
    for label in "abcd":
        (tmp_path / "wide" / label).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 256, (8, 12), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "wide" / label / f"{i}.png")
    return tmp_path / "wide"


def own(folder, out, **changes):
    main("incremental", f"folder:{folder}", out, **{**QUICK, "backbone": "cnn"} | changes)


@pytest.mark.parametrize("jobs", [1, 2])
def test_images_that_cannot_be_rotated_are_refused_before_any_is_decoded(
    wide, tmp_path, monkeypatch, jobs
):
    for decodes in ("in_workers", "read_or_error", "_streamed"):
        monkeypatch.setattr(folders, decodes, None)
    with pytest.raises(ValueError, match=r"8×12 pixels: .*--size 64.*rotations='none'"):
        own(wide, tmp_path / "out", methods=["lmrc+"], rotations="all", jobs=jobs)
    with pytest.raises(ValueError, match="8×12 pixels"):
        own(wide, tmp_path / "out", methods=["lmrc+"], rotations="all", size=(8, 12))
    assert not (tmp_path / "out" / "records.jsonl").exists()


def test_images_are_resized(wide, tmp_path):
    own(wide, tmp_path / "out", methods=["lmrc+"], size=6)
    assert {record.settings["size"] for record in read_records(tmp_path / "out")} == {6}
    with pytest.raises(FileExistsError, match=r"other settings \(size\)"):
        own(wide, tmp_path / "out", methods=["lm"], size=(6, 8))


def test_a_run_is_not_resumed_with_other_images(wide, tmp_path):
    out = tmp_path / "out"
    own(wide, out, methods=["lm"])
    (wide / "a" / "0.png").rename(wide / "b" / "10.png")
    own(wide, out, methods=["lm"])  # nothing is left to run
    with pytest.raises(ValueError, match=r"wide has changed since the records.*--out"):
        own(wide, out, methods=["lm", "finetune"])
    (wide / "b" / "10.png").rename(wide / "a" / "0.png")
    own(wide, out, methods=["lm", "finetune"])
    assert len(read_records(out)) == 4


def test_own_arrays_are_run_and_refused_where_they_cannot_be_rotated(tmp_path):
    X, y = np.random.default_rng(0).random((40, 6), dtype=np.float32), np.repeat(range(4), 10)
    np.savez(tmp_path / "own.npz", X=X, y=y)
    name = f"npz:{tmp_path / 'own.npz'}"
    main("incremental", name, tmp_path / "out", **QUICK, methods=["lm"])
    assert len(read_records(tmp_path / "out")) == 2
    rotated = {**QUICK, "methods": ["lmrc+"], "rotations": "all"}
    with pytest.raises(ValueError, match="rotations are for images, and X is vectors"):
        main("incremental", name, tmp_path / "rotated", **rotated)
    np.savez(tmp_path / "own.npz", X=X.reshape(40, 2, 3), y=y)
    with pytest.raises(ValueError, match="X holds some of 2×3 pixels"):
        main("incremental", name, tmp_path / "rotated", **rotated)


@pytest.mark.filterwarnings("ignore:the .* images would take")
def test_a_run_is_resumed_on_a_machine_with_less_memory(wide, tmp_path, monkeypatch):
    out = tmp_path / "out"
    own(wide, out, methods=["lm"])
    with monkeypatch.context() as small:
        small.setattr(folders, "available_memory", lambda: 100)  # images stay files there
        own(wide, out, methods=["lm", "finetune"])
    own(wide, out, methods=["lm", "finetune", "lmrc"])
    assert len(read_records(out)) == 6
