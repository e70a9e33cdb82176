"""Unicode forms of class names."""

import numpy as np

import lmrc

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"  # they look the same


def test_unicode_forms_in_folder_names_are_one_class(place, learn, call):
    (place / "week1" / "one").rename(place / "week1" / COMPOSED)
    (place / "week2" / "two").rename(place / "week2" / DECOMPOSED)
    learn("week1", "-q", fast=True)
    assert f"1 known class: {COMPOSED} (30)" in learn("week2")[1]
    assert lmrc.load("m").classes_.tolist() == [COMPOSED, "zero", "three"]
    assert call("forget", "m", DECOMPOSED)[0] == 0
    assert lmrc.load("m").classes_.tolist() == ["zero", "three"]


def test_a_model_keeps_its_unicode_form(place, learn, call):
    X, y = np.zeros((4, 8, 8), np.uint8), np.array([DECOMPOSED, "zero"] * 2)
    lmrc.LMRCClassifier(backbone="mlp", epochs=1, random_state=0).fit(X, y).save("m")
    (place / "week1" / "one").rename(place / "week1" / COMPOSED)
    assert call("evaluate", "m", "week1")[2] == ""
    assert f"2 known classes: {DECOMPOSED} (30), zero (30)" in learn("week1")[1]
    assert call("forget", "m", COMPOSED)[0] == 0
    assert lmrc.load("m").classes_.tolist() == ["zero"]
