"""Names of classes as users have them, and what else files bring along."""

import shutil

import numpy as np
import pytest
from PIL import Image

import lmrc
from lmrc.practice.batch import read_source

COMPOSED, APART = "caf\u00e9", "cafe\u0301"  # an é, and an e with an accent: they look the same


def test_both_forms_of_an_accent_are_one_class(place, learn, call):
    (place / "week1" / "one").rename(place / "week1" / COMPOSED)
    (place / "week2" / "two").rename(place / "week2" / APART)
    learn("week1", "-q", fast=True)
    assert f"1 known class: {COMPOSED} (30)" in learn("week2")[1]
    assert lmrc.load("m").classes_.tolist() == [COMPOSED, "zero", "three"]
    assert call("forget", "m", APART)[0] == 0
    assert lmrc.load("m").classes_.tolist() == ["zero", "three"]


def test_both_forms_in_a_table_are_one_class(place):
    rows = [f"week1/one/000.png,{COMPOSED}", f"week1/one/001.png,{APART}"]
    (place / "list.csv").write_text("\n".join(["path,label", *rows]), "utf-8")
    assert read_source(place / "list.csv").y.tolist() == [COMPOSED] * 2


def test_both_forms_in_arrays_are_one_class(place):
    arrays = {"X": np.zeros((4, 8, 8), np.uint8), "y": np.array([COMPOSED, "zero", APART, "zero"])}
    np.savez(place / "batch.npz", **arrays, X_val=arrays["X"][2:], y_val=arrays["y"][2:])
    batch = read_source(place / "batch.npz")
    assert batch.y.tolist() == [COMPOSED, "zero"] * 2
    assert batch.y_val.tolist() == [COMPOSED, "zero"]
    np.savez(place / "none.npz", **arrays, X_val=arrays["X"][:0], y_val=arrays["y"][:0])
    assert read_source(place / "none.npz").y_val.dtype.kind == "U"


def test_a_model_that_knows_another_form_goes_on_with_it(place, learn, call):
    X, y = np.zeros((4, 8, 8), np.uint8), np.array([APART, "zero"] * 2)
    lmrc.LMRCClassifier(backbone="mlp", epochs=1, random_state=0).fit(X, y).save("m")
    (place / "week1" / "one").rename(place / "week1" / COMPOSED)
    assert call("evaluate", "m", "week1")[2] == ""
    assert f"2 known classes: {APART} (30), zero (30)" in learn("week1")[1]
    assert call("forget", "m", COMPOSED)[0] == 0
    assert lmrc.load("m").classes_.tolist() == ["zero"]


def test_names_from_elsewhere_do_not_control_a_terminal_nor_a_spreadsheet(place, call):
    X, y = np.zeros((4, 8, 8), np.uint8), np.array(["=1\x1b[2J\u202e", "zero"] * 2)
    lmrc.LMRCClassifier(backbone="mlp", epochs=1, random_state=0).fit(X, y).save("m")
    image = "week1/one/\x1b]0;x\x07.png"
    shutil.copy(place / "week1" / "one" / "000.png", place / image)
    (place / "week1" / "one").rename(place / "week1" / "=1\x1b[2J\u202e")
    image = image.replace("one", "=1\x1b[2J\u202e")
    name = r"=1\u001b[2J\u202e"
    for words, told in (
        (("info", "m"), f"head 1: {name}, zero"),
        (("info", "m", "--json"), name),
        (("log", "m"), "version 1"),
        (("predict", "m", image, "-k", "2"), rf"{name}/\u001b]0;x\u0007.png  "),
        (("predict", "m", image, "-k", "2", "--json"), f'"class": "{name}"'),
        (("predict", "m", image, "-k", "2", "--csv"), f",'{name},"),
        (("predict", "m", "\x1b.png"), r"cannot read \u001b.png"),
        (("evaluate", "m", "week1"), f"| {name} | 31 |"),
        (("learn", "m", "week1", "--epochs", "1"), f"{name} (31)"),
        (("forget", "m", "=1\x1b[2J\u202e"), f"{name} is forgotten"),
        (("forget", "m", "\x9b" * 10**5), "…"),
    ):
        said = "".join(call(*words)[1:])
        assert told in said
        assert said.replace("\n", "").isprintable()
        assert len(said) < 3000
    table = (place / "runs" / "evaluate-m" / "classes.csv").read_text("utf-8")
    assert f"\n'{name},31," in table


def test_names_that_are_nearly_one_are_told_before_training(place, learn, monkeypatch):
    learn("week1", "-q", fast=True)
    (place / "week2" / "two").rename(place / "week2" / "ONE ")
    told = (
        "lmrc: 'ONE ' is new, but the model knows 'one': if they are one, give them one name "
        "(lmrc rollback undoes this learn)\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr("lmrc.practice.learn._train", lambda *_: 1 / 0)
        assert told in learn("week2", code=1)[2]
    learn("--discard")
    assert learn("week2", "-q")[2] == told
    assert learn("week2", "-q")[2] == ""  # known by now
    shutil.copytree(place / "week1" / "zero", place / "week1" / "Zero")
    shutil.copytree(place / "week1" / "zero", place / "week1" / "ZERO")
    shutil.rmtree(place / "m")
    err = learn("week1", "-q", fast=True)[2]
    assert err == (
        "lmrc: 'Zero' is new, and so is 'ZERO' (and 1 more like that): if they are one, give them "
        "one name\n"
    )


@pytest.mark.parametrize("command", ["learn", "evaluate"])
def test_what_a_model_guessed_is_not_taken_for_labels(place, model, call, command):
    (place / "guessed.csv").write_text(call("predict", model, "test", "--csv")[1])
    code, _, err = call(command, model, "guessed.csv")
    assert code == 1
    assert "a column 'rank': it looks like what lmrc predict --csv wrote" in err
    (place / "guessed.csv").write_text("file,class,Similarity\ntest/one/000.png,one,0.9\n")
    assert "a column 'Similarity'" in call(command, model, "guessed.csv")[2]


def test_colour_is_not_lost_in_silence(place, learn, call):
    out = learn("week1", fast=True)[1]
    assert "grey images of 8×8 pixels: later ones are brought to that\n" in out
    _, out, err = learn("week2")
    assert "later ones" not in out
    assert err == ""
    for path in sorted(place.glob("week2/two/*.png"))[5:]:
        Image.open(path).convert("RGB").save(path)
    err = learn("week2")[2]
    assert err.count("in colour, such as") == err.count("\n") == 1
    assert "two/005.png, are taken in grey, as the model's first images were" in err
    assert "are taken in grey" in call("evaluate", "m", "week2")[2]
    shutil.rmtree(place / "m")
    _, out, err = learn("week2", fast=True)
    assert "colour images of 8×8 pixels: later ones are brought to that\n" in out
    assert err == ""
