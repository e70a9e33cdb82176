import os
import subprocess
import sys

import pytest
import torch

from lmrc.store import folder, unfinished
from lmrc.store.files import LOCK
from lmrc.store.folder import ModelFileError
from lmrc.store.lock import LockedError


def write(path, n, **settings):
    tensors = {"weights": {"a": torch.full((3,), float(n))}, "labels": {"v": torch.ones(2)}}
    with folder.writing(path):
        folder.write(path, {"n": n}, tensors, **settings)


def names(path):
    return sorted(p.name for p in path.iterdir())


@pytest.fixture
def model(tmp_path):
    for n in (1, 2, 3):
        write(tmp_path / "m", n, keep=2, note={"n": n})
    return tmp_path / "m"


def test_as_many_versions_are_kept_as_asked_and_share_what_did_not_change(model):
    assert [v["number"] for v in folder.versions(model)] == [2, 3]
    assert [v["note"] for v in folder.versions(model)] == [{"n": 2}, {"n": 3}]
    assert [name.split("-")[0] for name in names(model)] == [
        "labels",
        "manifest.json",
        "weights",
        "weights",
    ]
    assert folder.read(model)[0] == {"n": 3}


def test_numbers_go_on_where_one_version_is_kept(model):
    write(model, 4, keep=1)
    assert [v["number"] for v in folder.versions(model)] == [4]
    assert len(names(model)) == 3


def test_a_model_that_cannot_be_read_can_be_replaced(model):
    (model / "manifest.json").write_text("{")
    write(model, 5)
    assert folder.read(model)[0] == {"n": 5}


def test_rollback_goes_back_one_and_the_newer_data_is_gone(model):
    with folder.writing(model):
        folder.roll_back(model)
    assert folder.read(model)[0] == {"n": 2}
    assert len(names(model)) == 3
    with folder.writing(model), pytest.raises(ModelFileError, match="none to go back to"):
        folder.roll_back(model)
    write(model, 7, keep=2)
    assert [v["number"] for v in folder.versions(model)] == [2, 3]


def test_rollback_to_a_damaged_version_keeps_the_newest(model):
    entry = folder.versions(model)[0]["files"]["weights"]
    (model / entry["name"]).write_bytes(b"damaged")
    with folder.writing(model), pytest.raises(ModelFileError, match="damaged"):
        folder.roll_back(model)
    assert folder.read(model)[0] == {"n": 3}


def test_amend_changes_all_versions_and_may_drop_old_ones(model):
    def change(version):
        description, tensors = version
        return None if description["n"] == 2 else ({"n": 30}, {"weights": tensors["labels"]})

    with folder.writing(model):
        folder.amend(model, change)
    description, tensors = folder.read(model)
    assert (description, list(tensors["weights"])) == ({"n": 30}, ["v"])
    assert [v["number"] for v in folder.versions(model)] == [3]
    assert len(names(model)) == 2


def test_a_second_writer_is_told_who_is_at_work(model):
    with folder.writing(model):
        told = rf"process {os.getpid()} on .* since 2"
        with pytest.raises(LockedError, match=told), folder.writing(model):
            pass
    with folder.writing(model):
        pass
    assert LOCK not in names(model)


def test_the_lock_of_a_dead_process_is_taken_over(model):
    script = (
        "import os, sys; from lmrc.store import folder\n"
        "with folder.writing(sys.argv[1]): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script, model]).returncode == -9
    assert LOCK in names(model)
    write(model, 4)
    assert folder.read(model)[0] == {"n": 4}


def test_a_lock_that_is_a_link_does_not_overwrite_what_it_leads_to(model, tmp_path):
    (tmp_path / "thesis.tex").write_text("do not lose")
    (model / LOCK).symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(OSError, match="is a link, which no lock"), folder.writing(model):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "do not lose"


def test_what_a_killed_writer_left_is_removed_at_the_next_start(model):
    kept = names(model)
    (model / ".lmrc-0123").write_bytes(b"half an image")
    (model / f"pool-{'0' * 64}.safetensors").write_bytes(b"images of a pruned version")
    with folder.writing(model):
        assert names(model) == [LOCK, *kept]


def test_a_folder_that_nothing_came_of_is_removed(tmp_path):
    with pytest.raises(ZeroDivisionError), folder.writing(tmp_path / "m"):
        raise ZeroDivisionError
    assert not (tmp_path / "m").exists()


def test_a_reader_is_not_disturbed_by_a_writer(model, monkeypatch):
    read_tensors = folder.read_tensors

    def overtaken(*args):
        monkeypatch.setattr(folder, "read_tensors", read_tensors)
        write(model, 8)  # removes the files that are about to be read
        return read_tensors(*args)

    monkeypatch.setattr(folder, "read_tensors", overtaken)
    assert folder.read(model)[0] == {"n": 8}


def test_unfinished_training_is_kept_until_its_class_batch_ends(model):
    assert unfinished.read(model) is None
    with folder.writing(model):
        unfinished.write(model, {"epoch": 0}, {})
        unfinished.write(model, {"epoch": 1}, {"a": torch.zeros(2)})
        unfinished.write(model, {"epoch": 2}, {"a": torch.ones(2)})
    with folder.writing(model):
        content, tensors = unfinished.read(model)
    assert content == {"epoch": 2}
    assert torch.equal(tensors["a"], torch.ones(2))
    assert len(list(model.glob("training-*"))) == 1
    left = (model / "unfinished.json").read_bytes()
    write(model, 4, keep=2)
    assert unfinished.read(model) is None
    assert not list(model.glob("training-*"))
    (model / "unfinished.json").write_bytes(left)  # a crash just before it was removed
    assert unfinished.read(model) is None


def test_unfinished_training_can_be_discarded(model):
    kept = names(model)
    with folder.writing(model):
        unfinished.write(model, {}, {"a": torch.ones(2)})
        unfinished.discard(model)
    assert names(model) == kept


def test_a_damaged_record_of_unfinished_training_says_so(model):
    with folder.writing(model):
        unfinished.write(model, {"epoch": 1}, {})
    path = model / "unfinished.json"
    path.write_bytes(path.read_bytes().replace(b"epoch", b"epocx"))
    with pytest.raises(ModelFileError, match="discard"):
        unfinished.read(model)
    assert unfinished.is_there(model)


def test_a_model_whose_first_class_batch_is_unfinished_is_said_to_be(tmp_path):
    with folder.writing(tmp_path / "m"):
        unfinished.write(tmp_path / "m", {}, {})
    with pytest.raises(ModelFileError, match="--resume"):
        folder.read(tmp_path / "m")
