import json
import os
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

import lmrc
from lmrc.nets.backbones import build
from lmrc.practice.learn_output import seconds_for
from lmrc.store import folder

FAST = ("--backbone", "mlp", "--epochs", "3", "--batch-size", "16", "--device", "cpu")


def test_two_tasks_and_the_first_folder_is_not_needed_for_the_second(place, learn):
    _, out, err = learn("week1", "--val", "0.2", fast=True)
    assert out.splitlines()[:2] == [
        "2 new classes: one (24), zero (24)",
        "48 images for training, 12 held out for validation",
    ]
    assert "validation accuracy on new classes: " in out
    assert "m now knows 2 classes" in out
    assert out.endswith(", no exemplars\n")
    assert err == ""
    shutil.rmtree(place / "week1")
    out = learn("week2")[1]
    assert "2 new classes: three (30), two (30)" in out
    assert lmrc.load("m").classes_.tolist() == ["one", "zero", "three", "two"]


def test_few_images_give_small_mini_batches(place, learn, monkeypatch):
    learn("week1", "--epochs", "1")
    assert lmrc.load("m").batch_size == 32
    monkeypatch.setattr("lmrc.practice.learn.FEW_IMAGES", 10)
    learn("week2", "--epochs", "1")
    assert lmrc.load("m").batch_size == 32
    shutil.rmtree(place / "m")
    learn("week1", "--epochs", "1")
    assert lmrc.load("m").batch_size == 128


def test_validation_images_of_an_unknown_class_are_refused(place, learn):
    shutil.copytree(place / "week1", place / "mixed" / "train")
    shutil.copytree(place / "other", place / "mixed" / "val")
    assert "validation images of four, but neither" in learn("mixed", fast=True, code=1)[2]
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
def test_the_architecture_is_fixed_by_the_first_learn(place, learn, option, value, was):
    learn("week1", "-q", fast=True)
    err = learn("week2", option, value, code=2)[2]
    assert f"{option} was fixed by the first learn of m ({was})" in err
    learn("week2", "--size", "8x8", "--backbone", "mlp", "--label-dim", "100", "--seed", "0")


def test_size_resizes_images_to_any_shape(place, learn):
    learn("week1", "--size", "12x10", fast=True)
    assert lmrc.load("m").input_shape_ == (1, 12, 10)


@pytest.mark.parametrize("size", ["0", "a", "8x", "8x8x8", "-3"])
def test_an_invalid_size_is_refused(place, learn, size):
    assert size in learn("week1", "--size", size, fast=True, code=2)[2]


def test_few_and_imbalanced_images_give_warnings(place, learn):
    for path in sorted((place / "week1" / "one").iterdir())[1:]:
        path.unlink()
    err = learn("week1", fast=True)[2]
    assert "zero has 30 times as many images as one: with --class-weight balanced" in err
    assert "one has only 1 image" in err
    assert "(--backbone efficientnet-lite0)" in err
    err = learn("week1", "--class-weight", "balanced", "--freeze")[2]
    assert "--class-weight" not in err


def test_weights_are_for_the_first_learn_and_must_fit_the_backbone(place, learn, call):
    learn("week1", fast=True)
    (weights,) = (place / "m").glob("weights-*")
    words = ["learn", "other.lmrc", "week1", "--weights", str(weights), "--freeze"]
    assert call(*words, *FAST)[0] == 0
    taught = lmrc.load("m").network_.encoder.backbone.state_dict()
    for name, weight in lmrc.load("other.lmrc").network_.encoder.backbone.state_dict().items():
        assert weight.equal(taught[name])
    assert "start a new model" in learn("week2", "--weights", str(weights), code=2)[2]
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


def test_unreadable_weights_are_refused_before_images_are_read(place, learn):
    (place / "r.pth").write_bytes(b"PK no safetensors" * 9)
    _, out, err = learn("week1", "--weights", "r.pth", code=1)
    assert out == ""
    assert "r.pth cannot be read as a safetensors file" in err
    assert "tutorial" in err


def test_quiet_prints_nothing(place, learn):
    assert learn("week1", "--quiet", fast=True)[1:] == ("", "")


def test_without_a_terminal_progress_is_printed_as_lines(place, learn, monkeypatch):
    assert learn("week1", fast=True)[2] == ""
    monkeypatch.setattr("lmrc.practice.usage.PROGRESS_EVERY", 0.0)
    first, second, third = learn("week2")[2].splitlines()
    assert first.startswith("epoch 1 of 3, about ")
    assert second.startswith("epoch 2 of 3, about ")
    assert third == "epoch 3 of 3"


def test_keep_limits_the_number_of_versions(place, learn):
    learn("week1", "-q", fast=True)
    learn("week2", "-q")
    learn("week2", "-q", "--keep", "3")
    assert [v["number"] for v in folder.versions(place / "m")] == [1, 2, 3]
    learn("week2", "-q")  # as many as before
    assert [v["number"] for v in folder.versions(place / "m")] == [2, 3, 4]
    learn("week2", "-q", "--keep", "1")
    assert [v["number"] for v in folder.versions(place / "m")] == [5]


# --- Photographs: a pre-trained backbone by default -------------------------------------------

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 224, 224, 3), dtype=np.uint8)
QUICK = ("--epochs", "1", "--device", "cpu")


def save_photographs(folder, names, *, size=(80, 64), mode="RGB", n=3):
    """Write images of one colour each: red, green, blue, in turn by class."""
    for i, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for j in range(n):
            pixels = np.full((size[1], size[0], 3), 40, np.uint8)
            pixels[..., i % 3] = 200 + 10 * j
            Image.fromarray(pixels).convert(mode).save(folder / name / f"{j}.png")


@pytest.fixture
def photographs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_photographs(tmp_path / "week1", ["red", "green"])
    save_photographs(tmp_path / "week2", ["x", "y", "blue"])
    for name in ("x", "y"):
        shutil.rmtree(tmp_path / "week2" / name)
    return tmp_path


def test_photographs_are_learnt_with_a_pretrained_backbone(photographs, learn, call):
    first, *rest = learn("week1", *QUICK)[1].splitlines()
    assert "leave-one-out accuracy on new classes: 100.0 % (6 images)" in rest
    assert first.startswith(
        "photographs: LMRC+ with the pre-trained backbone efficientnet-lite0, about "
    )
    assert first.endswith(" s (choose another way with --from-scratch, --backbone or --method)")
    _, out, err = learn("week2")
    assert out.startswith("1 new class: blue (3)\n")
    assert err == "lmrc: blue has only 3 images: add images\n"  # no other backbone is suggested
    model = lmrc.load("m")
    assert isinstance(model, lmrc.LMRCPlusClassifier)
    assert (model.backbone, model.prediction_rule_) == ("efficientnet-lite0", "ridge")
    assert model.input_shape_ == (3, 224, 224)
    info = call("info", "m")[1]
    assert "backbone: efficientnet-lite0, " in info
    assert "of 1,792 features and 4,000 random projections, growing with the images" in info
    assert "no images are stored in this model" in info
    out = call("predict", "m", "week1/red/0.png", "week1/green/1.png", "week2/blue/2.png")[1]
    assert [line.split()[1] for line in out.splitlines()] == ["red", "green", "blue"]


@pytest.mark.usefixtures("small_pretrained")
def test_a_pretrained_backbone_that_the_user_chooses_is_frozen_by_lmrc_plus(photographs, learn):
    first, *_ = learn("week1", *QUICK, "--backbone", "efficientnet-lite0@32")[1].splitlines()
    start = r"LMRC\+ with the pre-trained backbone efficientnet-lite0@32, about"
    assert re.fullmatch(rf"{start} \d+ s", first)
    model = lmrc.load("m")
    assert (type(model), model.prediction_rule_) == (lmrc.LMRCPlusClassifier, "ridge")
    assert model.input_shape_ == (3, 32, 32)
    assert learn("week2")[1].startswith("1 new class: blue (3)\n")


@pytest.mark.usefixtures("small_pretrained", "small_inputs")
@pytest.mark.parametrize(
    "settings", [(), ("--set", "freeze=later", "--set", "adaptation_epochs=1")]
)
def test_learning_photographs_is_resumed(photographs, learn, monkeypatch, settings):
    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("lmrc.practice.checkpoint.FolderCheckpoint.on_features", stop)
        learn("week1", *QUICK, *settings, code=130)
        learn("week1", *QUICK, *settings, code=130)  # nothing was saved that could be lost
    out = learn("--resume")[1]
    assert out.startswith("2 new classes: green (3), red (3)\n")
    assert ("leave-one-out" in out) == (not settings)  # an adapted backbone knows the images
    resumed = lmrc.load("m").similarities(IMAGES[:, :64, :64])
    shutil.rmtree("m")
    learn("week1", *QUICK, *settings, "-q")
    np.testing.assert_array_equal(lmrc.load("m").similarities(IMAGES[:, :64, :64]), resumed)


@pytest.mark.usefixtures("small_pretrained", "small_inputs")
def test_an_interrupted_adaptation_goes_on_where_it_was(photographs, learn, monkeypatch):
    settings = ("--set", "freeze=later", "--set", "adaptation_epochs=3", "--checkpoint-every", "0")
    said = []

    def stop(checkpoint, done, total):
        said.append((done, total))
        if done == 2 and len(said) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("lmrc.practice.checkpoint.FolderCheckpoint.on_adaptation", stop)
    learn("week1", *settings, code=130)
    assert "was interrupted, 1 epoch saved" in learn("week1", code=2)[2]
    assert "resuming after 1 epoch of the adaptation\n" in learn("--resume")[1]
    assert [done for done, _ in said] == [0, 1, 2, 1, 2, 3]
    resumed = lmrc.load("m").similarities(IMAGES[:, :64, :64])
    shutil.rmtree("m")
    learn("week1", *settings, "-q")
    np.testing.assert_array_equal(lmrc.load("m").similarities(IMAGES[:, :64, :64]), resumed)


@pytest.mark.usefixtures("small_pretrained", "small_inputs")
def test_the_epochs_of_an_adaptation_are_printed(photographs, learn, monkeypatch):
    """It takes minutes on a CPU, before features are computed."""
    monkeypatch.setattr("lmrc.practice.usage.PROGRESS_EVERY", 0.0)
    settings = ("--set", "freeze=later", "--set", "adaptation_epochs=2")
    _, first, second, *features = learn("week1", *settings)[2].splitlines()
    assert first.startswith("adaptation epoch 1 of 2, about ")
    assert second == "adaptation epoch 2 of 2"
    assert all(line.startswith("image ") for line in features)


@pytest.mark.usefixtures("small_pretrained", "small_inputs")
def test_an_adapted_backbone_is_said_and_shared_between_versions(photographs, learn, call):
    settings = ("--set", "freeze=later", "--set", "adaptation_epochs=1")
    learn("week1", *settings, "-q")
    (first,) = (photographs / "m").glob("backbone-*")
    learn("week2", "-q")
    assert [*(photographs / "m").glob("backbone-*")] == [first]
    said = "backbone: efficientnet-lite0, adapted to the first task, beside the pre-trained one, "
    assert said in call("info", "m")[1]
    info = json.loads(call("info", "m", "--json")[1])
    assert info["adapted"] is True
    assert info["parameters"] == sum(p.numel() for p in lmrc.load("m").network_.parameters())
    assert call("forget", "m", "red")[0] == 0
    assert [*(photographs / "m").glob("backbone-*")] == [first]


def test_the_expected_time_grows_with_the_work():
    def per_image(backbone="efficientnet-lite0", **settings):
        model = lmrc.LMRCPlusClassifier(backbone=backbone, device="cpu", **settings)
        return (seconds_for(model, 1000) - seconds_for(model, 0)) / 1000

    assert per_image("efficientnet-lite0@448") == pytest.approx(4 * per_image())
    assert per_image("efficientnet-lite2") == pytest.approx(2.24 * per_image())
    without, one, two = (per_image(freeze="later", adaptation_epochs=n) for n in (0, 1, 2))
    assert without == per_image()  # nothing is adapted
    assert one - without > two - one > 0  # features are computed twice, too


@pytest.fixture
def small_backbone(monkeypatch):
    """Let "auto" stand for a network that is quick to train."""
    monkeypatch.setattr("lmrc.nets.backbones.pick", lambda shape: "mlp")


@pytest.mark.usefixtures("small_backbone")
@pytest.mark.parametrize(
    ("words", "method", "backbone"),
    [
        (("--from-scratch", "--size", "64"), lmrc.LMRCClassifier, "auto"),
        (("--from-scratch", "--method", "lmrc+", "--size", "64"), lmrc.LMRCPlusClassifier, "auto"),
        (("--method", "lmrc", "--size", "64"), lmrc.LMRCClassifier, "auto"),
        (("--backbone", "mlp"), lmrc.LMRCClassifier, "mlp"),
        (("--method", "lmrc+", "--backbone", "mlp"), lmrc.LMRCPlusClassifier, "mlp"),
        (("--method", "lmrc+", "--no-freeze", "--size", "64"), lmrc.LMRCPlusClassifier, "auto"),
        (("--size", "32"), lmrc.LMRCClassifier, "auto"),
    ],
)
def test_a_users_choice_is_not_overruled(photographs, learn, words, method, backbone):
    out = learn("week1", *words, *QUICK)[1]
    assert "pre-trained" not in out
    model = lmrc.load("m")
    assert type(model) is method
    assert model.backbone == backbone
    assert model.network_.encoder.saved is None


@pytest.mark.usefixtures("small_backbone")
def test_small_and_grey_images_get_no_pretrained_backbone(photographs, learn):
    save_photographs(photographs / "small", ["a", "b"], size=(63, 80))
    save_photographs(photographs / "grey", ["a", "b"], mode="L")
    for source in ("small", "grey"):
        assert "pre-trained" not in learn(source, "--method", "lmrc+", *QUICK, "-q")[1]
        assert lmrc.load("m").network_.encoder.saved is None
        shutil.rmtree("m")


NO_EFFECT = "has no effect with a frozen backbone: for a new model, "


@pytest.mark.usefixtures("small_pretrained", "small_inputs", "small_backbone")
def test_settings_of_training_that_have_no_effect_are_named(photographs, learn):
    adapted = ("--set", "freeze=later")
    later = f"{' '.join(adapted)} adapts it to the first task, --from-scratch trains a network"
    assert f"--epochs {NO_EFFECT}{later}\n" in learn("week1", "--epochs", "5", "-q")[2]
    err = learn("week2", "--epochs", "5", "--learning-rate", "0.1")[2]
    assert err.startswith("lmrc: --epochs and --learning-rate have no effect with a frozen")
    assert learn("week2", "--quiet")[2] == ""
    shutil.rmtree("m")
    _, out, err = learn("week1", "--epochs", "5", *adapted, "--set", "adaptation_epochs=1")
    assert "--epochs has no effect with --set freeze=later: --set adaptation_epochs sets" in err
    assert "backbone efficientnet-lite0, adapted to this first task, about " in out
    model = lmrc.load("m")
    assert (type(model), model.freeze) == (lmrc.LMRCPlusClassifier, "later")
    for words in (["--from-scratch", "--size", "64"], ["--set", "predict_with=ensemble"]):
        shutil.rmtree("m")
        assert "no effect" not in learn("week1", "--epochs", "1", *words)[2]
    X = np.random.default_rng(0).normal(size=(8, 12))
    np.savez("v.npz", X=X, y=np.repeat(["a", "b"], 4))
    shutil.rmtree("m")
    assert f"--epochs {NO_EFFECT}--from-scratch trains" in learn("v.npz", "--epochs", "5", "-q")[2]
    shutil.rmtree("m")
    learn("v.npz", "--freeze", "-q")
    assert isinstance(lmrc.load("m"), lmrc.LMRCPlusClassifier)  # not random weights, frozen


@pytest.mark.usefixtures("small_pretrained")
def test_a_pretrained_model_stays_one(photographs, learn):
    learn("week1", *QUICK, "-q")
    err = learn("week2", "--from-scratch", code=2)[2]
    assert "--from-scratch was fixed by the first learn of m (efficientnet-lite0)" in err
    shutil.rmtree("m")
    for words in (("--backbone", "efficientnet-lite0"), ("--freeze",)):
        err = learn("week1", "--from-scratch", *words, code=2)[2]
        assert f"--from-scratch and {words[0]} contradict each other" in err


# --- Interruptions ------------------------------------------------------------


def test_a_network_that_learns_from_few_features_is_said_to_forget(place, call):
    np.savez(place / "few.npz", X=np.arange(40.0).reshape(10, 4), y=np.arange(10) % 2)
    said = call("learn", "v", "few.npz", "--epochs", "1")[1]
    assert said.startswith("vectors of only 4 features: LMRC trains a network, which forgets")


def test_vectors_are_learnt_by_exact_statistics(place, call):
    rng = np.random.default_rng(0)
    for name, labels in (("first", ["a", "b"]), ("later", ["c", "d"])):
        y = np.repeat(labels, 20)
        X = rng.normal(size=(40, 12)) + 5 * np.repeat(rng.normal(size=(2, 12)), 20, axis=0)
        np.savez(place / f"{name}.npz", X=X, y=y)
    code, said, _ = call("learn", "v", "first.npz", "--val", "0.1")
    assert (code, "vectors: LMRC+ with exact statistics" in said) == (0, True)
    assert "\n36 vectors for training, 4 held out for validation\n" in said
    assert " (4 vectors)\n" in said
    assert "vectors: LMRC+" not in call("learn", "v", "later.npz")[1]
    assert "other than the defaults" not in call("info", "v")[1]  # as batch_size, of no effect
    model = lmrc.load("v")
    assert type(model) is lmrc.LMRCPlusClassifier
    assert model.scatter_
    for name in ("first", "later"):
        with np.load(place / f"{name}.npz") as parts:
            assert model.score(parts["X"], parts["y"]) == 1
    said = call("learn", "later", "first.npz", "--set", "freeze=later", "--epochs", "1")[1]
    assert "vectors of only" not in said
    assert call("learn", "own", "first.npz", "--from-scratch", "--epochs", "1")[0] == 0
    assert not lmrc.load("own").network_.encoder.is_frozen


def test_the_models_folder_may_vanish_while_options_are_checked(place, learn, monkeypatch):
    """A learn beside this one, which fails, removes the folder that it has made."""
    usual = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != "m" and usual(path, mode))
    (place / "m").mkdir()
    learn("week1", "-q", fast=True)
    assert (place / "m" / "manifest.json").exists()
