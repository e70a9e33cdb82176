import json
import os
import shutil
import threading

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

import lmrc
from lmrc.nets.backbones import build
from lmrc.practice import checkpoint
from lmrc.store import folder, unfinished

FAST = ("--backbone", "mlp", "--epochs", "3", "--batch-size", "16", "--device", "cpu")


def test_two_folders_and_the_first_is_not_needed_for_the_second(place, learn):
    _, out, err = learn("week1", "--val", "0.2", fast=True)
    assert out.splitlines()[:2] == [
        "2 new classes: one (24), zero (24)",
        "48 images to learn from, 12 more to validate with",
    ]
    assert "new classes: " in out
    assert "m now knows 2 classes" in out
    assert "no images stored in it" in out
    assert err == ""
    shutil.rmtree(place / "week1")
    out = learn("week2")[1]
    assert "2 new classes: three (30), two (30)" in out
    assert lmrc.load("m").classes_.tolist() == ["one", "zero", "three", "two"]


def test_settings_stay_from_one_learn_to_the_next(place, learn):
    learn("week1", "--memory-per-class", "4", fast=True)
    learn("week2", "--epochs", "2")
    model = lmrc.load("m")
    assert (model.memory_per_class, model.epochs, model.backbone) == (4, 2, "mlp")
    assert len(model.memory_) == 16
    assert model.verbose == 0


def test_steps_are_small_where_images_are_few(place, learn, monkeypatch):
    learn("week1", "--epochs", "1")
    assert lmrc.load("m").batch_size == 32
    monkeypatch.setattr("lmrc.practice.learn.SMALL", 10)
    learn("week2", "--epochs", "1")
    assert lmrc.load("m").batch_size == 32
    shutil.rmtree(place / "m")
    learn("week1", "--epochs", "1")
    assert lmrc.load("m").batch_size == 128


def test_known_classes_are_reviewed_and_old_validation_is_told_apart(place, learn):
    learn("week1", fast=True)
    for part, source in (("train", "week2"), ("val", "test")):
        shutil.copytree(place / source, place / "mixed" / part)
    shutil.copytree(place / "week1" / "one", place / "mixed" / "train" / "one")
    out = learn("mixed")[1]
    assert "2 new classes: three (30), two (30)\n1 known class: one (30)\n" in out
    assert "new classes: " in out
    assert "old classes: " in out
    assert "of 20 held-out images right" in out


def test_validation_images_of_no_known_class_are_refused(place, learn):
    shutil.copytree(place / "week1", place / "mixed" / "train")
    shutil.copytree(place / "other", place / "mixed" / "val")
    assert "four: " in learn("mixed", fast=True, code=1)[2]
    assert not (place / "m").exists()


@pytest.mark.parametrize(
    ("option", "value", "was"),
    [
        ("--size", "16", "8×8"),
        ("--backbone", "cnn", "mlp"),
        ("--label-dim", "50", "100"),
        ("--seed", "3", "0"),
    ],
)
def test_what_shapes_the_network_is_fixed_at_the_first_learn(place, learn, option, value, was):
    learn("week1", "-q", fast=True)
    err = learn("week2", option, value, code=2)[2]
    assert f"{option} shapes the network and was fixed by the first learn of m ({was})" in err
    learn("week2", "--size", "8x8", "--backbone", "mlp", "--label-dim", "100", "--seed", "0")


def test_size_brings_images_to_any_shape(place, learn):
    learn("week1", "--size", "12x10", fast=True)
    assert lmrc.load("m").input_shape_ == (1, 12, 10)


@pytest.mark.parametrize("size", ["0", "a", "8x", "8x8x8", "-3"])
def test_a_size_that_is_none(place, learn, size):
    assert size in learn("week1", "--size", size, fast=True, code=2)[2]


def test_unreadable_files_are_left_out_and_named(place, learn):
    (place / "week1" / "one" / "broken.png").write_bytes(b"")
    err = learn("week1", fast=True)[2]
    assert err.startswith("lmrc: left out 1 file:")
    assert "broken.png" in err
    assert len(err.splitlines()) == 1


def test_images_of_phones_are_not_passed_over_in_silence(place, learn, call):
    for name in ("a.HEIC", "b.heic", "c.dng", "notes.txt"):
        (place / "week1" / "one" / name).write_bytes(b"")
    told = (
        "lmrc: passed over 2 .heic files: JPEG and PNG can be read\n"
        "lmrc: passed over 1 .dng file: JPEG and PNG can be read\n"
    )
    assert learn("week1", fast=True)[2] == told
    assert call("evaluate", "m", "week1")[2] == told


def test_few_and_uneven_images_work_and_are_warned_about(place, learn):
    for path in sorted((place / "week1" / "one").iterdir())[1:]:
        path.unlink()
    err = learn("week1", fast=True)[2]
    assert "zero has 30 times as many images as one: with --class-weight balanced" in err
    assert "one has only 1 image" in err
    assert "--weights FILE --freeze" in err
    err = learn("week1", "--class-weight", "balanced", "--freeze")[2]
    assert "--class-weight" not in err


def test_weights_are_for_the_first_learn_and_must_fit(place, learn, call):
    learn("week1", fast=True)
    (weights,) = (place / "m").glob("weights-*")
    words = ["learn", "other.lmrc", "week1", "--weights", str(weights), "--freeze"]
    assert call(*words, *FAST)[0] == 0
    taught = lmrc.load("m").network_.encoder.backbone.state_dict()
    for name, weight in lmrc.load("other.lmrc").network_.encoder.backbone.state_dict().items():
        assert weight.equal(taught[name])
    assert "begin a new model" in learn("week2", "--weights", str(weights), code=2)[2]
    code, _, err = call(
        "learn", "third.lmrc", "week1", "--weights", str(weights), "--backbone", "cnn"
    )
    assert code == 1
    assert "do not fit the backbone" in err
    assert not (place / "third.lmrc").exists()


def test_grey_images_start_from_weights_for_coloured_ones(place, learn):
    save_file(build("resnet18", (3, 72, 72)).state_dict(), place / "r.safetensors")
    words = ("--size", "72", "--backbone", "resnet18", "--weights", "r.safetensors", "--freeze")
    for path in (*place.glob("week1/*/00[2-9].png"), *place.glob("week1/*/0[1-9]*.png")):
        path.unlink()  # few are quick
    learn("week1", *words, "--epochs", "1", "--device", "cpu", "-q")
    assert lmrc.load("m").input_shape_ == (3, 72, 72)


def test_weights_that_cannot_be_read_are_told_before_images_are(place, learn):
    (place / "r.pth").write_bytes(b"PK no safetensors" * 9)
    _, out, err = learn("week1", "--weights", "r.pth", code=1)
    assert out == ""
    assert "r.pth cannot be read as a safetensors file" in err
    assert "tutorial" in err


def test_csv(place, learn):
    lines = ["Path,Label"]
    for name in ("one", "zero"):
        lines += [f"week1/{name}/{i:03}.png,digit {name}" for i in range(20)]
    (place / "list.csv").write_text("\n".join([*lines, "week1/gone.png,digit one"]))
    err = learn("list.csv", fast=True)[2]
    assert "gone.png as an image: No such file" in err
    assert lmrc.load("m").classes_.tolist() == ["digit one", "digit zero"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a.png,one\n", "no column 'path'"),
        ("path,label\n,one\n", "line 2 has no path"),
        ("path,label\na.png\n", "line 2 has no label"),
        ("path,label\n", "lists no images"),
        ("path,label\na.png,one\n", "none of the 1 image(s) of class 'one'"),
        ("", "no column 'path'"),
        (b"path,label\n\xff\xfe,one\n", "UTF-8"),
        (b"path,label\n" + bytes(2**17), "a line has more than 65,536 letters"),
        ("x" * 10**4 + "\n", "x … x"),
        ("path,label\n" + "gone.png,one\n" * 1000, "none of the first 1,000 images of"),
    ],
)
def test_csv_that_cannot_be_used(place, learn, text, told):
    (place / "list.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert told in learn("list.csv", fast=True, code=1)[2]


def test_a_pipe_in_place_of_a_csv_is_refused(place, learn):
    os.mkfifo(place / "list.csv")
    assert "list.csv is not a file" in learn("list.csv", fast=True, code=1)[2]


def test_npz(place, learn, call):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (40, 6, 6, 3), dtype=np.uint8), np.arange(40) % 2
    np.savez(place / "batch.npz", X=X, y=y)
    out = learn("batch.npz", "--val", "0.1", fast=True)[1]
    assert "36 images to learn from, 4 more to validate with" in out
    code, _, err = call("learn", "sized", "batch.npz", "--size", "8", *FAST)
    assert code == 2
    assert "--size is for image files" in err
    err = learn("week1", code=1)[2]
    assert "labels so far were numbers, but 'one' is text" in err
    assert lmrc.load("m").classes_.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["empty", "text", "no y", "objects", "lengths"])
def test_npz_that_cannot_be_used(place, learn, kind):
    path = place / "batch.npz"
    if kind == "no y":
        np.savez(path, X=np.zeros((2, 3)))
    elif kind == "objects":
        np.savez(path, X=np.array([{}, {}], dtype=object), y=np.zeros(2))
    elif kind == "lengths":
        np.savez(path, X=np.zeros((2, 3)), y=np.zeros(5))
    else:
        path.write_bytes(b"" if kind == "empty" else b"no archive")
    assert "batch.npz" in learn("batch.npz", fast=True, code=1)[2]


def test_what_is_no_source_is_refused(place, learn):
    (place / "notes.txt").write_text("my pets")
    assert "neither a folder, nor a .csv" in learn("notes.txt", fast=True, code=2)[2]
    (place / "flat").mkdir()
    Image.new("L", (8, 8)).save(place / "flat" / "a.png")
    assert "no sub-folders" in learn("flat", fast=True, code=1)[2]
    assert not (place / "m").exists()


def test_quiet_says_nothing(place, learn):
    assert learn("week1", "--quiet", fast=True)[1:] == ("", "")


def test_without_a_terminal_there_is_a_line_now_and_then(place, learn, monkeypatch):
    assert learn("week1", fast=True)[2] == ""
    monkeypatch.setattr("lmrc.practice.usage.HALF_A_MINUTE", 0.0)
    first, second, third = learn("week2")[2].splitlines()
    assert first.startswith("epoch 1 of 3, about ")
    assert second.startswith("epoch 2 of 3, about ")
    assert third == "epoch 3 of 3"


def test_only_as_many_versions_as_asked_are_kept(place, learn):
    learn("week1", "-q", fast=True)
    learn("week2", "-q")
    learn("week2", "-q", "--keep", "3")
    assert [v["number"] for v in folder.versions(place / "m")] == [1, 2, 3]
    learn("week2", "-q")  # as many as before
    assert [v["number"] for v in folder.versions(place / "m")] == [2, 3, 4]
    learn("week2", "-q", "--keep", "1")
    assert [v["number"] for v in folder.versions(place / "m")] == [5]


# --- Interruptions ------------------------------------------------------------


@pytest.fixture
def killed(run_job):
    """Learn in a process that is killed after some epochs, each of them kept."""

    def run(*words, epochs):
        done = run_job("learn", *words, "--checkpoint-every", "0", epochs=epochs)
        assert done["code"] == -9, done["said"]

    return run


def test_a_killed_learn_goes_on_bit_for_bit(place, learn, killed, call, same_files):
    whole = ("week1", "--val", "0.1", "--memory-per-class", "2", *FAST)
    call("learn", "whole.lmrc", *whole)
    call("learn", "whole.lmrc", "week2", "--class-weight", "balanced")

    killed("m", *whole, epochs=2)
    assert "--resume" in call("predict", "m", "test/one/000.png")[2]
    err = learn("week1", fast=True, code=2)[2]
    assert "interrupted after 2 kept epochs: go on with lmrc learn m --resume" in err
    assert "not finished" in call("info", "m")[2]
    assert "going on after 2 of " in learn("--resume")[1]
    killed("m", "week2", "--class-weight", "balanced", epochs=1)
    assert lmrc.load("m").classes_.tolist() == ["one", "zero"]  # as before
    assert "unfinished" in call("info", "m")[1]
    assert "unfinished" in call("rollback", "m")[2]
    assert "unfinished" in call("forget", "m", "one")[2]
    with pytest.raises(folder.ModelFileError, match="unfinished: go on with it"):
        lmrc.load("m").save("m")
    learn("--resume")
    same_files(place / "m", place / "whole.lmrc")
    assert lmrc.load("m").history_ == lmrc.load("whole.lmrc").history_
    assert not (place / "m" / "unfinished.json").exists()
    assert "nothing of m is unfinished" in learn("--resume", code=2)[2]


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
    assert "dropped" in learn("--discard")[1]


def test_an_interrupted_learn_can_be_discarded(place, learn, killed):
    killed("m", "week1", *FAST, epochs=1)
    assert learn("--discard")[1] == "what was unfinished in m is dropped\n"
    assert not (place / "m").exists()
    assert learn("--discard")[1] == ""
    killed("m", "week1", *FAST, epochs=1)
    learn("week2", "--discard", fast=True)
    assert lmrc.load("m").classes_.tolist() == ["three", "two"]


def test_changed_images_are_not_gone_on_with(place, learn, killed):
    killed("m", "week1", *FAST, epochs=1)
    Image.new("L", (8, 8), 3).save(place / "week1" / "one" / "000.png")
    assert "week1 is not what was being learnt" in learn("--resume", code=1)[2]
    learn("--discard")


def test_moved_images_are_gone_on_with_at_their_new_place(place, call, killed, same_files):
    words = ("week1", "--val", "0.1", *FAST)
    call("learn", "whole", *words)
    killed("my model", *words, epochs=2)
    (place / "week1").rename(place / "elsewhere")
    code, _, err = call("learn", "my model", "--resume")
    assert code == 2
    assert f"there is no {place / 'week1'}: put it back, or say where it is now (" in err
    assert "(lmrc learn 'my model' NEWPLACE --resume)" in err
    code, _, err = call("learn", "my model", "week2", "--resume")
    assert code == 1
    assert "week2 is not what was being learnt" in err
    assert "(lmrc learn 'my model' --discard)" in err
    assert call("learn", "my model", "elsewhere", "--resume")[0] == 0
    same_files(place / "my model", place / "whole")


def test_resume_remembers_and_takes_no_options(place, learn):
    assert "remembers its folder" in learn("--resume", "--epochs", "5", code=2)[2]
    assert "remembers its folder" in learn("week1", "--resume", "--val", "0.1", code=2)[2]
    for option in (("--keep", "3"), ("--device", "cpu"), ("--set", "momentum=0.5"), ("--discard",)):
        assert "remembers its folder" in learn("--resume", *option, code=2)[2]


def test_ctrl_c_leaves_the_model_and_what_was_learnt(place, learn, monkeypatch):
    learn("week1", "-q", fast=True)
    save = checkpoint.FolderCheckpoint.save

    def save_and_stop(self, records, *rest):
        save(self, records, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.FolderCheckpoint, "save", save_and_stop)
        err = learn("week2", "--checkpoint-every", "0", code=130)[2]
    assert "the model is as before; lmrc learn m --resume goes on, --discard drops it" in err
    assert lmrc.load("m").classes_.tolist() == ["one", "zero"]
    kept = json.loads((place / "m" / "unfinished.json").read_text())["content"]
    assert len(kept["records"]) == 1
    learn("--resume")


def test_the_state_is_not_kept_more_often_than_asked(place, learn, monkeypatch):
    kept = []
    monkeypatch.setattr(checkpoint.unfinished, "write", lambda *args: kept.append(args))
    learn("week1", "-q", fast=True)
    assert len(kept) == 1  # what was asked, before the first epoch


def test_a_full_disk_while_state_is_kept_does_not_stop_training(place, learn, monkeypatch):
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


def test_what_is_kept_is_not_lost_when_going_on_fails(place, learn, killed, call, monkeypatch):
    learn("week1", "-q", fast=True)
    (weights,) = (place / "m").glob("weights-*")
    weights = weights.rename(place / "backbone.safetensors")
    shutil.rmtree(place / "m")
    killed("m", "week1", "--weights", "backbone.safetensors", *FAST, epochs=2)
    weights.rename(place / "elsewhere")
    assert "backbone.safetensors" in learn("--resume", code=1)[2]
    (place / "elsewhere").rename(weights)
    learn("--resume")


def test_two_learners_at_once(place, learn):
    with folder.writing(place / "m"):
        err = learn("week1", fast=True, code=1)[2]
    assert f"m is being changed by process {os.getpid()}" in err


def test_readers_need_no_lock(model, call):
    with folder.writing(model):
        codes = []
        thread = threading.Thread(target=lambda: codes.append(lmrc.load(model)))
        thread.start()
        thread.join()
        assert len(codes) == 1
        assert call("predict", model, "test/one/000.png")[0] == 0


def test_the_state_for_resume_makes_room_for_the_model(place, learn, limit_disk):
    learn("week1", "-q", fast=True)
    weights = sum(p.stat().st_size for p in (place / "m").glob("weights-*"))
    limit_disk(3 * weights)  # for weights and momentum once, and then not for the new weights
    learn("week2", "-q", "--checkpoint-every", "0")
    assert lmrc.load("m").classes_.tolist() == ["one", "zero", "three", "two"]
    assert not list((place / "m").glob("training-*"))


def test_without_room_for_the_model_it_is_as_before_and_resume_begins_anew(
    place, learn, limit_disk
):
    learn("week1", "-q", fast=True)
    weights = sum(p.stat().st_size for p in (place / "m").glob("weights-*"))
    limit_disk(0.5 * weights)
    assert "No space left" in learn("week2", "-q", "--checkpoint-every", "0", code=1)[2]
    limit_disk(10**9)
    assert lmrc.load("m").classes_.tolist() == ["one", "zero"]
    learn("--resume", "-q")
    assert lmrc.load("m").classes_.tolist() == ["one", "zero", "three", "two"]
