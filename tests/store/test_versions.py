import os
import subprocess
import sys

import pytest
import torch

from lmrc.store import folder, unfinished
from lmrc.store.files import LOCK, checksum, read_json
from lmrc.store.folder import ModelFileError
from lmrc.store.lock import LockedError, holder, locked


def write(path, n, **settings):
    tensors = {"weights": {"a": torch.full((999,), float(n))}, "labels": {"v": torch.ones(2)}}
    with folder.writing(path):
        folder.write(path, {"n": n}, tensors, **settings)


def names(path):
    return sorted(p.name for p in path.iterdir())


def is_fine(description, tensors):
    """Be content with a version."""


def refuse(description, tensors):
    raise ModelFileError("no model can be made of it")


def damage(path, version):
    """Flip a bit of a version's weights; return what was there."""
    file = path / folder.versions(path)[version]["files"]["weights"]["name"]
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    return file, whole


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
        folder.roll_back(model, is_fine)
    assert folder.read(model)[0] == {"n": 2}
    assert len(names(model)) == 3
    with folder.writing(model), pytest.raises(ModelFileError, match="none to go back to"):
        folder.roll_back(model, is_fine)
    write(model, 7, keep=2)
    assert [v["number"] for v in folder.versions(model)] == [2, 3]


def test_rollback_to_a_version_that_cannot_be_loaded_keeps_the_newest(model):
    with folder.writing(model), pytest.raises(ModelFileError, match="no model can be made"):
        folder.roll_back(model, refuse)
    damage(model, 0)
    with folder.writing(model), pytest.raises(ModelFileError, match="damaged"):
        folder.roll_back(model, is_fine)
    assert folder.read(model)[0] == {"n": 3}


def test_prune_removes_nothing_unless_what_stays_can_be_loaded(model):
    kept = names(model)
    with folder.writing(model), pytest.raises(ModelFileError, match="no model can be made"):
        folder.prune(model, 1, refuse)
    file, whole = damage(model, 1)
    with folder.writing(model), pytest.raises(ModelFileError, match="damaged"):
        folder.prune(model, 1, is_fine)
    assert names(model) == kept
    file.write_bytes(whole)
    damage(model, 0)
    with folder.writing(model), pytest.raises(ModelFileError, match="an earlier version, which"):
        folder.prune(model, 2, is_fine)
    with folder.writing(model):
        assert folder.prune(model, 1, is_fine) == 1
    assert folder.read(model)[0] == {"n": 3}


def test_a_forged_manifest_removes_no_file(model):
    kept = names(model)
    manifest = read_json(model / "manifest.json")
    for version in manifest["versions"]:
        version["files"] = {}
    manifest["sha256"] = checksum(manifest)
    (model / "manifest.json").write_text(folder.text_of(manifest["versions"]).decode())
    with folder.writing(model), pytest.raises(ModelFileError, match="no model can be made"):
        folder.prune(model, 1, refuse)
    assert names(model) == kept


@pytest.mark.parametrize("command", ["prune", "roll_back"])
def test_versions_can_be_removed_where_the_disk_is_full(model, limit_disk, command):
    limit_disk(0)
    with folder.writing(model):
        if command == "prune":
            folder.prune(model, 1, is_fine)
        else:
            folder.roll_back(model, is_fine)
    assert folder.read(model)[0] == {"n": 3 if command == "prune" else 2}
    assert len(names(model)) == 3


def test_a_version_for_which_there_is_no_room_leaves_nothing(model, limit_disk):
    kept = names(model)
    limit_disk(250)  # enough for the file of the labels, which comes first
    tensors = {"labels": {"v": torch.zeros(2)}, "weights": {"a": torch.zeros(90)}}
    with pytest.raises(OSError, match="No space left"), folder.writing(model):
        folder.write(model, {"n": 9}, tensors, keep=2)
    assert names(model) == kept


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


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link_does_not_overwrite_what_it_leads_to(model, tmp_path, link):
    (tmp_path / "thesis.tex").write_text("do not lose")
    link(tmp_path / "thesis.tex", model / LOCK)
    with pytest.raises(OSError, match="is a link or not a file"), folder.writing(model):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "do not lose"
    assert folder.changing(model) is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_lock_that_is_a_pipe_is_not_waited_for(model):
    os.mkfifo(model / LOCK)
    with pytest.raises(OSError, match="is a link or not a file"), folder.writing(model):
        pass
    assert folder.changing(model) is None


def test_who_asks_for_the_holder_of_a_lock_is_in_no_ones_way(model, monkeypatch):
    """A writer that meets one who asks takes the lock once that one has let go."""
    with folder.writing(model):
        pass
    (model / LOCK).touch()
    with (model / LOCK).open("rb") as asking:
        shared = locked(asking, wait=False, shared=True)
        shared.__enter__()
        assert holder(model / LOCK) is None  # two may ask at once

        def let_go(path):
            shared.__exit__(None, None, None)
            return holder(path)

        monkeypatch.setattr("lmrc.store.lock.holder", let_go)
        with folder.writing(model):
            assert holder(model / LOCK).startswith(f"process {os.getpid()} on ")


def test_what_a_killed_writer_left_is_removed_once_the_model_is_loaded(model):
    kept = names(model)
    (model / ".lmrc-0123").write_bytes(b"half an image")
    with folder.writing(model):
        assert names(model) == [LOCK, *kept]
        (model / f"pool-{'0' * 64}.safetensors").write_bytes(b"images of a pruned version")
        folder.remove_leftovers(model)
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


def test_unfinished_training_is_kept_until_its_task_ends(model):
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


def test_the_state_of_unfinished_training_can_be_dropped_alone(model):
    with folder.writing(model):
        unfinished.write(model, {"asked": 1, "records": [{}], "seconds": 2.0}, {"a": torch.ones(2)})
        unfinished.drop_state(model)
        assert unfinished.read(model) == ({"asked": 1}, {})
        assert not list(model.glob("training-*"))


def test_a_damaged_record_of_unfinished_training_says_so(model):
    with folder.writing(model):
        unfinished.write(model, {"epoch": 1}, {})
    path = model / "unfinished.json"
    path.write_bytes(path.read_bytes().replace(b"epoch", b"epocx"))
    with pytest.raises(ModelFileError, match="discard"):
        unfinished.read(model)
    assert unfinished.is_there(model)


def test_a_model_whose_first_task_is_unfinished_is_said_to_be(tmp_path):
    with folder.writing(tmp_path / "m"):
        unfinished.write(tmp_path / "m", {}, {})
    with pytest.raises(ModelFileError, match="--resume"):
        folder.read(tmp_path / "m")
