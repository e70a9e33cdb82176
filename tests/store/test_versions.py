import pytest
import torch

from lmrc.store import folder
from lmrc.store.files import LOCK
from lmrc.store.folder import ModelFileError


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


def test_the_given_number_of_versions_is_kept_and_they_share_unchanged_files(model, names):
    assert [v["number"] for v in folder.versions(model)] == [2, 3]
    assert [v["note"] for v in folder.versions(model)] == [{"n": 2}, {"n": 3}]
    assert [name.split("-")[0] for name in names(model)] == [
        "labels",
        "manifest.json",
        "weights",
        "weights",
    ]
    assert folder.read(model)[0] == {"n": 3}


def test_a_file_that_is_there_is_not_written_again_unless_it_is_damaged(model, write):
    (labels,) = model.glob("labels-*")
    before, whole = labels.stat(), labels.read_bytes()
    write(model, 4)
    assert (labels.stat().st_ino, labels.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    labels.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    write(model, 5)
    assert labels.read_bytes() == whole
    assert folder.read(model)[0] == {"n": 5}


def test_numbers_go_on_where_one_version_is_kept(model, write, names):
    write(model, 4, keep=1)
    assert [v["number"] for v in folder.versions(model)] == [4]
    assert len(names(model)) == 3


def test_a_model_that_cannot_be_read_can_be_replaced(model, write):
    (model / "manifest.json").write_text("{")
    write(model, 5)
    assert folder.read(model)[0] == {"n": 5}


def test_rollback_goes_back_one_and_deletes_the_newer_data(model, write, names):
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


def test_prune_removes_nothing_unless_what_stays_can_be_loaded(model, names):
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


def test_a_forged_manifest_removes_no_file(model, names, reseal):
    kept = names(model)
    reseal(model, lambda m: [version.update(files={}) for version in m["versions"]])
    with folder.writing(model), pytest.raises(ModelFileError, match="no model can be made"):
        folder.prune(model, 1, refuse)
    assert names(model) == kept


@pytest.mark.parametrize("command", ["prune", "roll_back"])
def test_versions_can_be_removed_where_the_disk_is_full(model, limit_disk, command, names):
    limit_disk(0)
    with folder.writing(model):
        if command == "prune":
            folder.prune(model, 1, is_fine)
        else:
            folder.roll_back(model, is_fine)
    assert folder.read(model)[0] == {"n": 3 if command == "prune" else 2}
    assert len(names(model)) == 3


def test_a_version_for_which_there_is_no_room_leaves_nothing(model, limit_disk, names):
    kept = names(model)
    limit_disk(250)  # enough for the file of the labels, which comes first
    tensors = {"labels": {"v": torch.zeros(2)}, "weights": {"a": torch.zeros(90)}}
    with pytest.raises(OSError, match="No space left"), folder.writing(model):
        folder.write(model, {"n": 9}, tensors, keep=2)
    assert names(model) == kept


def test_amend_changes_all_versions_and_may_drop_old_ones(model, names):
    def change(version):
        description, tensors = version
        return None if description["n"] == 2 else ({"n": 30}, {"weights": tensors["labels"]})

    with folder.writing(model):
        folder.amend(model, change)
    description, tensors = folder.read(model)
    assert (description, list(tensors["weights"])) == ({"n": 30}, ["v"])
    assert [v["number"] for v in folder.versions(model)] == [3]
    assert len(names(model)) == 2


def test_what_a_killed_writer_left_is_removed_once_the_model_is_loaded(model, names):
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


def test_a_reader_is_not_disturbed_by_a_writer(model, monkeypatch, write):
    read_tensors = folder.read_tensors

    def overtaken(*args):
        monkeypatch.setattr(folder, "read_tensors", read_tensors)
        write(model, 8)  # removes the files that are about to be read
        return read_tensors(*args)

    monkeypatch.setattr(folder, "read_tensors", overtaken)
    assert folder.read(model)[0] == {"n": 8}
