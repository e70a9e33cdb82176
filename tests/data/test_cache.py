import os
import threading
import time

import numpy as np
import pytest

from lmrc.data.cache import cached_dataset, save_class_names, save_images
from lmrc.data.sources import cache_folder


@pytest.fixture
def source(data):
    path = data / "source.bin"
    path.write_bytes(b"version 1")
    return path


class Decoder:
    """Writes a small data set, and counts how often."""

    def __init__(self, value=7):
        self.value, self.runs = value, 0

    def __call__(self, out):
        self.runs += 1
        for part in ("train", "test"):
            np.save(out / f"X_{part}.npy", np.full((2, 4, 4), self.value, np.uint8))
            np.save(out / f"y_{part}.npy", np.array([0, 1]))


def entries():
    return sorted(path.name for path in (cache_folder() / "decoded").iterdir() if path.is_dir())


def test_decoded_once_and_then_memory_mapped(source):
    decode = Decoder()
    for _ in range(3):
        dataset = cached_dataset("toy", [source], decode)
        assert dataset.X_train.tolist() == np.full((2, 4, 4), 7).tolist()
        assert isinstance(dataset.X_train, np.memmap)
        assert isinstance(dataset.X_test, np.memmap)
        assert not dataset.X_train.flags.writeable
    assert decode.runs == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(b"another size"),
        lambda path: os.utime(path, (1, 1)),
    ],
)
def test_a_changed_source_is_decoded_anew(source, change):
    cached_dataset("toy", [source], Decoder(1))
    change(source)
    assert cached_dataset("toy", [source], Decoder(2)).X_train.max() == 2


def test_two_sources_of_the_same_size_and_time_are_kept_apart(source):
    other = source.with_name("other.bin")
    other.write_bytes(source.read_bytes())
    for path in (source, other):
        os.utime(path, (1, 1))
    assert cached_dataset("toy", [source], Decoder(1)).X_train.max() == 1
    assert cached_dataset("toy", [other], Decoder(2)).X_train.max() == 2


def test_what_fails_half_way_leaves_nothing(source):
    def fail(out):
        Decoder(1)(out)
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        cached_dataset("toy", [source], fail)
    assert entries() == []
    assert cached_dataset("toy", [source], Decoder(2)).X_train.max() == 2


def test_what_a_killed_process_left_is_never_used_and_removed_by_the_next(
    source, tmp_path, run_job
):
    program = """
import os
from pathlib import Path
import numpy as np
from lmrc.data.cache import cached_dataset
def die(out):
    for part in ("train", "test"):
        np.save(out / f"X_{part}.npy", np.ones((2, 4, 4), np.uint8))
    os._exit(9)
cached_dataset("toy", [Path(os.environ["SOURCE"])], die)
"""
    (tmp_path / "program.py").write_text(program)
    environment = {"SOURCE": str(source), "LMRC_CACHE": str(cache_folder())}
    done = run_job(program=str(tmp_path / "program.py"), environment=environment)
    assert done["code"] == 9, done["said"]
    (left,) = entries()
    assert cached_dataset("toy", [source], Decoder(2)).X_train.max() == 2
    assert left not in entries()


@pytest.mark.parametrize("keep", [0, 100, 140])
def test_a_damaged_entry_is_decoded_anew(source, keep):
    cached_dataset("toy", [source], Decoder(1))
    (entry,) = entries()
    file = cache_folder() / "decoded" / entry / "X_train.npy"
    file.write_bytes(file.read_bytes()[:keep])
    assert cached_dataset("toy", [source], Decoder(2)).X_train.max() == 2


def test_of_two_that_need_it_at_the_same_time_one_decodes(source):
    datasets, decode, begun, go_on = [], Decoder(5), threading.Event(), threading.Event()

    def slowly(out):
        decode(out)
        begun.set()
        assert go_on.wait(timeout=600)

    def load():
        datasets.append(cached_dataset("toy", [source], slowly))

    threads = [threading.Thread(target=load) for _ in range(2)]
    threads[0].start()
    assert begun.wait(timeout=600)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert [dataset.X_train.max() for dataset in datasets] == [5, 5]
    assert decode.runs == 1


@pytest.mark.parametrize("days", [0, 2])
def test_leftovers_of_other_machines_are_removed_a_day_later(source, days):
    """Locks of some network drives do not reach other machines, which may be writing."""
    left = cache_folder() / "decoded" / ".half-written-elsewhere"
    left.mkdir(parents=True)
    then = time.time() - days * 24 * 3600
    os.utime(left, (then, then))
    cached_dataset("toy", [source], Decoder(2))
    assert left.exists() == (days == 0)


def test_without_locks_two_that_decode_at_the_same_time_both_succeed(source, monkeypatch):
    def no_locks(*_):
        raise OSError("no locks available")

    def decode(out):
        Decoder(5)(out)
        cached_dataset("toy", [source], Decoder(5))  # as another process does meanwhile

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert cached_dataset("toy", [source], decode).X_train.max() == 5
    assert len(entries()) == 1


def test_a_cache_that_cannot_be_written_names_the_remedy(source, monkeypatch, tmp_path):
    (tmp_path / "a-file").write_bytes(b"")
    monkeypatch.setenv("LMRC_CACHE", str(tmp_path / "a-file"))
    with pytest.raises(OSError, match=r"a-file.*environment variable LMRC_CACHE"):
        cached_dataset("toy", [source], Decoder())


def test_a_source_that_cannot_be_read_is_not_blamed_on_the_cache(source):
    def refuse(out):
        raise PermissionError(13, "Permission denied", str(source))

    with pytest.raises(PermissionError, match=r"source\.bin") as caught:
        cached_dataset("toy", [source], refuse)
    assert "LMRC_CACHE" not in str(caught.value)


def test_images_are_written_one_by_one(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 3), np.uint8)
    save_images(tmp_path / "X.npy", images.shape, iter(images))
    np.testing.assert_array_equal(np.load(tmp_path / "X.npy", mmap_mode="r"), images)


def test_class_names_keep_the_type_of_their_labels(source):
    def decode(out):
        Decoder()(out)
        save_class_names(out, {0: "Äpfel", 1: "pears"})

    for _ in range(2):
        assert cached_dataset("toy", [source], decode).class_names == {0: "Äpfel", 1: "pears"}
