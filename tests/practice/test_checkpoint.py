"""An interrupted learn: it can be resumed, or discarded."""

import json
import os
import shutil

import pytest
from PIL import Image

import lmrc
from lmrc.practice import checkpoint
from lmrc.store import folder, unfinished

FAST = ("--backbone", "mlp", "--epochs", "3", "--batch-size", "16", "--device", "cpu")


@pytest.fixture
def killed(run_job):
    """Learn in a process that is killed after some epochs, each of them saved."""

    def run(*words, epochs):
        done = run_job("learn", *words, "--checkpoint-every", "0", epochs=epochs)
        assert done["code"] == -9, done["said"]

    return run


def test_a_killed_learn_resumes_bit_for_bit(place, learn, killed, call, same_files):
    whole = ("week1", "--val", "0.1", "--memory-per-class", "2", *FAST)
    call("learn", "whole.lmrc", *whole)
    call("learn", "whole.lmrc", "week2", "--class-weight", "balanced")

    killed("m", *whole, epochs=2)
    assert "--resume" in call("predict", "m", "test/one/000.png")[2]
    err = learn("week1", fast=True, code=2)[2]
    assert "interrupted, 2 epochs saved: continue with lmrc learn m --resume" in err
    assert "unfinished" in call("info", "m")[2]
    assert "resuming after 2 of 3 epochs" in learn("--resume")[1]
    killed("m", "week2", "--class-weight", "balanced", epochs=1)
    assert lmrc.load("m").classes_.tolist() == ["one", "zero"]  # as before
    assert "unfinished" in call("info", "m")[1]
    assert "unfinished" in call("rollback", "m")[2]
    assert "unfinished" in call("forget", "m", "one")[2]
    with pytest.raises(folder.ModelFileError, match="unfinished: continue it"):
        lmrc.load("m").save("m")
    learn("--resume")
    same_files(place / "m", place / "whole.lmrc")
    assert lmrc.load("m").history_ == lmrc.load("whole.lmrc").history_
    assert not (place / "m" / "unfinished.json").exists()
    assert "m has no unfinished task to resume" in learn("--resume", code=2)[2]


def test_an_ensemble_resumes_within_the_member_that_was_learning(place, killed, call, same_files):
    settings = ("--method", "lmrc+", "--members", "2", "--rotations", "none", *FAST)
    settings += ("--calibration-share", "0.1", "--set", "predict_with=lda")
    call("learn", "whole.lmrc", "week1", *settings)
    call("learn", "whole.lmrc", "week2")
    killed("m", "week1", *settings, epochs=4)
    err = call("learn", "m", "week1")[2]
    assert "interrupted, 4 epochs saved: continue with lmrc learn m --resume" in err
    assert "resuming after 4 of 6 epochs" in call("learn", "m", "--resume")[1]
    killed("m", "week2", epochs=5)
    assert "resuming after 5 of 6 epochs" in call("learn", "m", "--resume")[1]
    same_files(place / "m", place / "whole.lmrc")
    assert "backbone: mlp, 2 networks (members), " in call("info", "m")[1]
    assert (
        "--members was fixed by the first learn of m (2)"
        in call("learn", "m", "week2", "--members", "3")[2]
    )


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("source", 7),
        ("settings", [1]),
        ("size", {}),
        ("size", ["8", "8"]),
        ("val", "x"),
        ("keep", "x"),
        ("device", ["cpu"]),
        ("method", "x"),
        ("method", ["x"]),
        ("records", 3),
        ("records", [{"loss": "x"}]),
        ("seconds", "x"),
        ("epochs", "x"),
        ("settings", {"epochs": "x"}),
        ("settings", {"x": 1}),
    ],
)
def test_a_forged_request_is_refused(place, learn, part, value):
    request = {"source": str(place / "week1")}
    content = {"request": request, "digest": ""}
    (content if part in ("records", "seconds") else request)[part] = value
    with folder.writing("m") as held:
        unfinished.write(held, content, {})
    code = 2 if isinstance(value, dict) and value else 1
    err = learn("--resume", code=code)[2]
    assert err.count("\n") == 1
    assert "--debug" not in err
    assert "discarded" in learn("--discard")[1]


def test_an_interrupted_learn_can_be_discarded(place, learn, killed):
    killed("m", "week1", *FAST, epochs=1)
    assert learn("--discard")[1] == "the unfinished task of m is discarded\n"
    assert not (place / "m").exists()
    assert learn("--discard")[1] == "m has no unfinished task\n"
    killed("m", "week1", *FAST, epochs=1)
    learn("week2", "--discard", fast=True)
    assert lmrc.load("m").classes_.tolist() == ["three", "two"]


def test_changed_images_cannot_be_resumed(place, learn, killed):
    for path in sorted((place / "week1" / "one").iterdir())[5:]:
        path.unlink()
    killed("m", "week1", *FAST, epochs=1)
    Image.new("L", (8, 8), 3).save(place / "week1" / "one" / "000.png")
    err = learn("--resume", code=1)[2]
    assert "week1 has changed since the interrupted learn" in err
    assert err.count("\n") == 1  # the warnings about few images came with the first command
    learn("--discard")


def test_moved_images_can_be_resumed_from_their_new_place(place, call, killed, same_files):
    words = ("week1", "--val", "0.1", *FAST)
    call("learn", "whole", *words)
    killed("my model", *words, epochs=2)
    (place / "week1").rename(place / "elsewhere")
    code, _, err = call("learn", "my model", "--resume")
    assert code == 2
    assert f"{place / 'week1'} does not exist: restore it, name its new place (" in err
    assert "(lmrc learn 'my model' NEWPLACE --resume)" in err
    code, _, err = call("learn", "my model", "week2", "--resume")
    assert code == 1
    wrong = f"week2 does not hold the samples of the interrupted learn, which came from {place}"
    assert wrong in err
    assert "(lmrc learn 'my model' --discard)" in err
    assert call("learn", "my model", "elsewhere", "--resume")[0] == 0
    same_files(place / "my model", place / "whole")


def test_resume_takes_no_options(place, learn):
    for words in (
        *(("--epochs", "5"), ("week1", "--val", "0.1"), ("--keep", "3"), ("--device", "cpu")),
        *(("--set", "momentum=0.5"), ("--discard",)),
    ):
        assert "its options from the interrupted learn" in learn("--resume", *words, code=2)[2]


def test_ctrl_c_leaves_the_model_and_the_checkpoint(place, learn, monkeypatch):
    learn("week1", "-q", fast=True)
    save = checkpoint.FolderCheckpoint.save

    def save_and_stop(self, records, *rest):
        save(self, records, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.FolderCheckpoint, "save", save_and_stop)
        err = learn("week2", "--checkpoint-every", "0", code=130)[2]
    assert "the model is unchanged: continue with lmrc learn m --resume, or discard" in err
    assert lmrc.load("m").classes_.tolist() == ["one", "zero"]
    kept = json.loads((place / "m" / "unfinished.json").read_text())["content"]
    assert len(kept["records"]) == 1
    learn("--resume")


def test_what_is_interrupted_before_training_can_be_resumed(place, learn, monkeypatch):
    """To look at new images of known classes takes long with a pre-trained backbone."""

    def stop(*args):
        raise KeyboardInterrupt

    learn("week1", "-q", fast=True)
    with monkeypatch.context() as patch:
        patch.setattr("lmrc.practice.learn.print_drift", stop)
        assert "continue with lmrc learn m --resume" in learn("week1", code=130)[2]
        assert "discarded" not in learn("week1", code=130)[2]
    assert learn("--resume")[1].startswith("2 known classes: one (30), zero (30)\n")
    with monkeypatch.context() as patch:
        patch.setattr("lmrc.practice.learn.print_drift", stop)
        learn("week1", code=130)
    told = f"the interrupted learn of {place / 'week1'} is discarded: none of it was saved"
    assert told in learn("week2")[2]


def test_checkpoints_are_saved_at_the_given_interval(place, learn, monkeypatch):
    kept = []
    monkeypatch.setattr(checkpoint.unfinished, "write", lambda *args: kept.append(args))
    learn("week1", "-q", fast=True)
    assert len(kept) == 1  # what was asked, before the first epoch


def test_a_full_disk_at_a_checkpoint_does_not_stop_training(place, learn, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "pack_training", full)
    err = learn("week1", "--checkpoint-every", "0", fast=True)[2]
    assert "No space left on device" in err
    assert len(lmrc.load("m").classes_) == 2


def test_training_that_fails_leaves_nothing_unfinished(place, learn):
    err = learn("week1", "--learning-rate", "1e30", fast=True, code=1)[2]
    assert "lower learning_rate" in err
    assert "--debug" not in err
    assert not (place / "m").exists()


def test_a_failed_resume_keeps_the_checkpoint(place, learn, killed, call, monkeypatch):
    learn("week1", "-q", fast=True)
    (weights,) = (place / "m").glob("weights-*")
    weights = weights.rename(place / "backbone.safetensors")
    shutil.rmtree(place / "m")
    killed("m", "week1", "--weights", "backbone.safetensors", *FAST, epochs=2)
    weights.rename(place / "elsewhere")
    assert "backbone.safetensors" in learn("--resume", code=1)[2]
    (place / "elsewhere").rename(weights)
    learn("--resume")


def test_two_learns_at_once(place, learn):
    with folder.writing(place / "m"):
        err = learn("week1", fast=True, code=1)[2]
    assert f"m is being changed by process {os.getpid()}" in err


def test_readers_need_no_lock(model, call):
    with folder.writing(model):
        assert call("predict", model, "test/one/000.png")[0] == 0


def test_the_checkpoint_is_deleted_to_make_room_for_the_model(place, learn, limit_disk):
    learn("week1", "-q", fast=True)
    weights = sum(p.stat().st_size for p in (place / "m").glob("weights-*"))
    limit_disk(3 * weights)  # for weights and momentum once, and then not for the new weights
    learn("week2", "-q", "--checkpoint-every", "0")
    assert lmrc.load("m").classes_.tolist() == ["one", "zero", "three", "two"]
    assert not list((place / "m").glob("training-*"))


def test_without_room_the_model_is_unchanged_and_resume_restarts(place, learn, limit_disk):
    learn("week1", "-q", fast=True)
    weights = sum(p.stat().st_size for p in (place / "m").glob("weights-*"))
    limit_disk(0.5 * weights)
    assert "No space left" in learn("week2", "-q", "--checkpoint-every", "0", code=1)[2]
    limit_disk(10**9)
    assert lmrc.load("m").classes_.tolist() == ["one", "zero"]
    learn("--resume", "-q")
    assert lmrc.load("m").classes_.tolist() == ["one", "zero", "three", "two"]
