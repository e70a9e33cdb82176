"""Properties of all commands."""

import shutil

import numpy as np
import pytest

import lmrc


def test_untrusted_names_are_escaped_in_terminals_and_spreadsheets(place, call):
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
        (("forget", "m", "=1\x1b[2J\u202e"), f"class {name} is removed"),
        (("forget", "m", "\x9b" * 10**5), "…"),
    ):
        said = "".join(call(*words)[1:])
        assert told in said
        assert said.replace("\n", "").isprintable()
        assert len(said) < 3000
    table = (place / "runs" / "evaluate-m" / "classes.csv").read_text("utf-8")
    assert f"\n'{name},31," in table


@pytest.mark.parametrize("command", ["info", "log", "rollback"])
def test_commands_do_not_create_a_model_where_there_is_none(place, call, command):
    code, _, err = call(command, "none")
    assert code == 1
    assert "not a model" in err
    assert not (place / "none").exists()
    assert call(command, "week1")[0] == 1
    assert {p.name for p in (place / "week1").iterdir()} == {"one", "zero"}
